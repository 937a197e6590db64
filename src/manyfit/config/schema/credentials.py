"""Secrets in a config: registered when the config names them, and never stored in plain text."""

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
    """Read every secret that a tree names, before an override can replace the reference."""
    for _, leaf in leaves(tree):
        if isinstance(leaf, Leaf) and isinstance(leaf.value, str) and "${" in leaf.value:
            for name in PATTERN.findall(leaf.value):
                if len(os.environ.get(name, "")) >= MIN_SECRET:
                    read_secret(name)


def hide_secrets(tree: Map) -> Map:
    """Return the tree with the values of known secrets replaced by their references.

    A secret where none is allowed is then reported like any other problem.
    """
    check_address(tree)
    if not has_secrets():
        return tree
    found = _hide(tree)
    assert isinstance(found, Map)
    return found


def check_address(tree: Map) -> None:
    """Raise `ConfigError` for a plain password in the MLflow URI: it would be stored with the config."""
    track = tree.items.get("track")
    given = track.items.get("mlflow") if isinstance(track, Map) else None
    if (
        not isinstance(given, Leaf)
        or not isinstance(given.value, str)
        or given.origin.file.endswith(RESOLVED)
    ):
        return  # an earlier version may have stored one
    with contextlib.suppress(ValueError):  # not a URI
        password = urlsplit(given.value).password
        if password and "${" not in password:
            message = "the password is in plain text and would be stored with the config"
            hint = "http://name:${secret:NAME}@host, with the password in the environment variable NAME"
            raise ConfigError([Problem("track.mlflow", given.origin, message, hint)])


def _hide(node: Node) -> Node:
    if isinstance(node, Map):
        for key in (key for key in node.items if insert_templates(key) != key):
            message = f"a key contains the value of a secret: {insert_templates(key)}"
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
