"""Secrets in a config: known as soon as it names them, and never kept in plain, whatever way they came."""

from __future__ import annotations

import contextlib
import os
from urllib.parse import urlsplit

from manyfit.config.tree.nodes import Leaf, Map, Node, Seq, leaves
from manyfit.config.tree.references import MIN_SECRET
from manyfit.config.typed.artifacts import RESOLVED
from manyfit.core.errors import ConfigError, Problem
from manyfit.core.redaction import PATTERN, has_secrets, insert_templates, read_secret


def know_secrets(tree: Map) -> None:
    """Read every secret that a tree names, before an override takes the place of its name."""
    for _, leaf in leaves(tree):
        if isinstance(leaf, Leaf) and isinstance(leaf.value, str) and "${" in leaf.value:
            for name in PATTERN.findall(leaf.value):
                if len(os.environ.get(name, "")) >= MIN_SECRET:
                    read_secret(name)


def hide_secrets(tree: Map) -> Map:
    """A tree in which the value of a known secret is written as its name.

    Where no secret may stand, that is then said like any other mistake.
    """
    check_address(tree)
    if not has_secrets():
        return tree
    found = _hide(tree)
    assert isinstance(found, Map)
    return found


def check_address(tree: Map) -> None:
    """Refuse a password that stands in the address of MLflow: it would be kept with the config."""
    track = tree.items.get("track")
    given = track.items.get("mlflow") if isinstance(track, Map) else None
    if (
        not isinstance(given, Leaf)
        or not isinstance(given.value, str)
        or given.origin.file.endswith(RESOLVED)
    ):
        return  # a run of an earlier version may have kept one
    with contextlib.suppress(ValueError):  # not an address
        password = urlsplit(given.value).password
        if password and "${" not in password:
            message = "the password stands in plain, and would be kept with the config"
            hint = "http://name:${secret:NAME}@host, with the password in the environment variable NAME"
            raise ConfigError([Problem("track.mlflow", given.origin, message, hint)])


def _hide(node: Node) -> Node:
    if isinstance(node, Map):
        for key in (key for key in node.items if insert_templates(key) != key):
            message = f"a key has the value of a secret in its name: {insert_templates(key)}"
            raise ConfigError([Problem("", node.items[key].origin, message)])
        items = {key: _hide(item) for key, item in node.items.items()}
        same = all(items[key] is item for key, item in node.items.items())
        return node if same else Map(items, node.origin, node.keys)
    if isinstance(node, Seq):
        parts = tuple(map(_hide, node.items))
        same = all(new is old for new, old in zip(parts, node.items, strict=True))
        return node if same else Seq(parts, node.origin)
    value = insert_templates(node.value)
    return node if value == node.value and type(value) is type(node.value) else Leaf(value, node.origin)
