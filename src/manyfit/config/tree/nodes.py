"""The config tree: mappings, lists and scalars, each with the file and line it was written in.

Nodes are immutable and shared: an override copies only the path that it changes, so a thousand trials of
one base config share almost all nodes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeAlias

from manyfit.core.errors import ConfigError, Origin, Problem
from manyfit.core.names import show_value
from manyfit.core.redaction import Secret

Scalar: TypeAlias = bool | int | float | str | Secret | None
Key: TypeAlias = str | int
Path: TypeAlias = tuple[Key, ...]

PYTHON = Origin("<python>")


class Unresolved:
    """A placeholder for a reference that could not be resolved; its problem is already recorded."""

    def __repr__(self) -> str:
        return "unresolved"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar and its origin."""

    value: Scalar | Unresolved
    origin: Origin = PYTHON


@dataclass(frozen=True, slots=True)
class Seq:
    """A list and its origin."""

    items: tuple[Node, ...]
    origin: Origin = PYTHON


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping with string keys; `keys` holds the origin of each key."""

    items: Mapping[str, Node] = field(default_factory=dict)
    origin: Origin = PYTHON
    keys: Mapping[str, Origin] = field(default_factory=dict)

    def key_origin(self, key: str) -> Origin:
        """Return the origin of `key`."""
        return self.keys.get(key, self.origin)

    def with_item(self, key: str, value: Node, origin: Origin | None = None) -> Map:
        """Return a copy in which `key` has the value `value`."""
        keys = {**self.keys, key: origin or value.origin}
        return Map({**self.items, key: value}, self.origin, keys)

    def without(self, *keys: str) -> Map:
        """Return a copy without some keys."""
        return Map({k: v for k, v in self.items.items() if k not in keys}, self.origin, self.keys)


Node: TypeAlias = Leaf | Seq | Map


def class_word(node: Map, free: bool = False) -> str:
    """Return the key by which a mapping names its class; empty if it names none.

    Where arbitrary data is allowed (`free`), `type` is an ordinary key, because it is common in data.
    """
    words = ("class", "_target_") if free else ("class", "_target_", "type")
    return next((word for word in words if word in node.items), "")


@functools.lru_cache(maxsize=8192)
def join_path(path: Path) -> str:
    """Return a path in dotted form: `train.metrics.0`."""
    return ".".join(str(part) for part in path)


def child(node: Node, key: Key) -> Node | None:
    """Return one child, by key in a mapping or by index in a list."""
    if isinstance(node, Map):
        return node.items.get(str(key))
    text = str(key)
    if isinstance(node, Seq) and text.isdecimal() and len(text) < 10 and int(text) < len(node.items):
        return node.items[int(key)]
    return None


def find(node: Node, path: Path) -> Node | None:
    """Return the node at a path, or None."""
    found: Node | None = node
    for key in path:
        found = child(found, key) if found is not None else None
    return found


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield every leaf with its path; an empty mapping or list counts as one."""
    if isinstance(node, Map) and node.items:
        for key, value in node.items.items():
            yield from leaves(value, (*path, key))
    elif isinstance(node, Seq) and node.items:
        for index, value in enumerate(node.items):
            yield from leaves(value, (*path, index))
    else:
        yield path, node


def size(node: Node) -> int:
    """Return the number of nodes of a tree; shared nodes count once per use."""
    if isinstance(node, Map):
        return 1 + sum(size(value) for value in node.items.values())
    return 1 + sum(size(value) for value in node.items) if isinstance(node, Seq) else 1


def merge(base: Node | None, over: Node) -> Node:
    """Merge one layer over another: mappings merge, everything else is replaced."""
    if not (isinstance(base, Map) and isinstance(over, Map)):
        return over
    items, keys = dict(base.items), dict(base.keys)
    for key, value in over.items.items():
        items[key] = merge(items.get(key), value)
        keys[key] = over.key_origin(key)
    return Map(items, base.origin, keys)


def plain(node: Node) -> Any:
    """Return the tree as dicts, lists and scalars; a secret becomes its template."""
    if isinstance(node, Map):
        return {key: plain(value) for key, value in node.items.items()}
    if isinstance(node, Seq):
        return [plain(value) for value in node.items]
    return str(node.value) if isinstance(node.value, Secret) else node.value


def from_plain(value: Any, origin: Origin = PYTHON, path: Path = ()) -> Node:
    """Build a tree from Python data. A class becomes its import path, an enum member its name."""
    if isinstance(value, Mapping):
        items = {
            _text_key(key, origin, path): from_plain(v, origin, (*path, str(key))) for key, v in value.items()
        }
        return Map(items, origin, dict.fromkeys(items, origin))
    if isinstance(value, list | tuple):
        return Seq(tuple(from_plain(v, origin, (*path, i)) for i, v in enumerate(value)), origin)
    if isinstance(value, Enum):
        return Leaf(value.name, origin)
    if isinstance(value, PurePath):
        return Leaf(str(value), origin)
    if value is None or isinstance(value, bool | int | Secret):
        return Leaf(value, origin)
    if isinstance(value, float):
        return Leaf(float(value), origin)
    if isinstance(value, str):
        return Leaf(_clean(value, origin, path), origin)
    if callable(value) and hasattr(value, "__qualname__"):
        return Leaf(f"{value.__module__}:{value.__qualname__}", origin)
    raise ConfigError(
        [
            Problem(
                join_path(path),
                origin,
                "a config cannot hold this value",
                "text, a number, true, false, null, a list, a mapping, an enum, a path or a class",
                show_value(value),
            )
        ]
    )


def _text_key(key: object, origin: Origin, path: Path) -> str:
    if isinstance(key, str):
        return _clean(key, origin, path)
    if isinstance(key, int | float) and not isinstance(key, bool) and math.isfinite(key):
        return str(key)
    raise ConfigError(
        [Problem(join_path(path), origin, "a config cannot hold this key", "text", show_value(key))]
    )


def _clean(text: str, origin: Origin, path: Path) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(
            [Problem(join_path(path), origin, "text that is not valid Unicode", received=show_value(text))]
        ) from None
    return str(text)
