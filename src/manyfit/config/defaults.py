"""The weakest layer: what a value is when nobody gave it, so that references can reach it."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path as FilePath
from typing import Any

from manyfit.config.component import Component
from manyfit.config.resolve import ResolveError, resolve
from manyfit.config.roles import ANY, Role
from manyfit.config.schema import Run
from manyfit.config.signature import INHERITED, REQUIRED, signature_of
from manyfit.config.tree import Leaf, Map, Node, Path, find, from_plain
from manyfit.core.errors import ConfigError


def default_at(root: Map, path: Path, source: FilePath) -> Node | None:
    """The default of the field or parameter at `path`; None where there is none."""
    value: Any = REQUIRED
    owner = find(root, path[:-1])
    name = _class_named(owner)
    record = _record_at(path[:-1])
    if record is not None:
        parameter = signature_of(record).parameters.get(str(path[-1]))
        value = parameter.default if parameter else REQUIRED
    elif name:
        try:
            target = resolve(name, _role_at(path[:-1]), _source(root, source))
        except ResolveError:
            return None
        parameter = signature_of(target).parameters.get(str(path[-1])) if callable(target) else None
        value = parameter.default if parameter else REQUIRED
    if value is REQUIRED or value is INHERITED:
        return None
    try:
        return from_plain(value)
    except ConfigError:
        return None


def _record_at(path: Path) -> Any:
    record: Any = Run
    for key in path:
        hints = typing.get_type_hints(record)
        record = hints.get(str(key))
        if not dataclasses.is_dataclass(record) or record is Component:
            return None
    return record


def _role_at(path: Path) -> Role:
    record = _record_at(path[:-1])
    if record is None:
        return ANY
    hint = typing.get_type_hints(record, include_extras=True).get(str(path[-1]))
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Role)), ANY)


def _class_named(owner: Node | None) -> str:
    if isinstance(owner, Map):
        owner = next(
            (owner.items[word] for word in ("class", "_target_", "type") if word in owner.items), None
        )
    return (
        owner.value
        if isinstance(owner, Leaf) and isinstance(owner.value, str) and "${" not in owner.value
        else ""
    )


def _source(root: Map, fallback: FilePath) -> FilePath | None:
    node = root.items.get("src_code_path")
    text = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else fallback.name
    folder = fallback.parent / text
    return folder if folder.is_dir() else None
