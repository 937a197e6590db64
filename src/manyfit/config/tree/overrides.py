"""Overrides: `key=value`, `+key=value`, `~key`, and pairs from `-p key value`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from manyfit.config.tree.layers import lay
from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Seq, child, find, from_plain, join_path
from manyfit.config.tree.reader import NOT_YAML, parse_yaml
from manyfit.core.errors import ConfigError, Origin, Problem
from manyfit.core.names import nearest

WHOLE_REFERENCE = re.compile(r"\$\{(\w[\w.\[\]-]*)\}")
COMMAND_LINE = Origin("command line")

Overrides: TypeAlias = "Iterable[str | Override] | Mapping[str, Any]"


@dataclass(frozen=True, slots=True)
class Override:
    """One change, applied after all files are merged."""

    action: Literal["set", "add", "delete", "lay"]
    """`set` replaces a value; `add` appends to a list or merges into a mapping; `lay` merges like a file that
    extends another."""
    path: Path
    value: Node
    origin: Origin


def parse_override(text: str) -> Override:
    """Parse `key=value`, `+key=value` or `~key`. Values are YAML.

    >>> parse_override("train.epochs=3").path
    ('train', 'epochs')
    """
    origin = Origin(f"command line ({text})")
    if text.startswith("~"):
        key, _, rest = text[1:].partition("=")
        if rest:
            raise ConfigError([Problem(key, origin, "a deletion takes no value", f"~{key}", text)])
        return Override("delete", split(key, origin), Leaf(None, origin), origin)
    action: Literal["set", "add"] = "add" if text.startswith("+") else "set"
    key, equals, value = text.removeprefix("+").partition("=")
    if not equals:
        raise ConfigError(
            [Problem("", origin, "not an override", "key=value, +key=value or ~key", repr(text))]
        )
    return Override(action, split(key, origin), parse_value(value, origin), origin)


def pair(key: str, value: str) -> Override:
    """Parse the arguments of `-p key value`; the key may start with `+`."""
    origin = Origin(f"command line (-p {key} {value})")
    path = split(key.removeprefix("+"), origin)
    return Override("add" if key.startswith("+") else "set", path, parse_value(value, origin), origin)


def parse_text_override(key: str, value: str) -> Override:
    """Parse the arguments of `-P key value`: the value is always text."""
    origin = Origin(f"command line (-P {key} {value})")
    return Override("set", split(key, origin), Leaf(value, origin), origin)


def parse_value(text: str, origin: Origin) -> Node:
    """Parse a value as YAML; invalid YAML is taken as text."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(
            [Problem("", Origin("command line"), "text that is not UTF-8", received=ascii(text))]
        )
    try:
        return _relocate(parse_yaml(text, origin.file), origin)
    except ConfigError as error:
        if text[:1] in ("{", "[") and not any(p.message.startswith(NOT_YAML) for p in error.problems):
            raise ConfigError([replace(problem, origin=origin) for problem in error.problems]) from None
        return Leaf(text, origin)


def _relocate(node: Node, origin: Origin) -> Node:
    if isinstance(node, Map):
        return Map(
            {k: _relocate(v, origin) for k, v in node.items.items()},
            origin,
            dict.fromkeys(node.items, origin),
        )
    if isinstance(node, Seq):
        return Seq(tuple(_relocate(item, origin) for item in node.items), origin)
    return Leaf(node.value, origin)


def split(key: str, origin: Origin) -> Path:
    """Split `a.b[0].c` into its keys and indexes."""
    parts = tuple(re.sub(r"\[(\d+)\]", r".\1", key).split("."))
    if not all(parts):
        raise ConfigError(
            [Problem(key, origin, "not a valid key", "names joined by dots, such as train.epochs", repr(key))]
        )
    return parts


def collect(overrides: Overrides, problems: list[Problem]) -> list[Override]:
    """Return overrides given in any form: strings, parsed ones, or a mapping from key to Python value."""
    found: list[Override] = []
    if isinstance(overrides, Mapping):
        origin = Origin("<python overrides>")
        return [
            Override("set", split(key, origin), from_plain(value, origin), origin)
            for key, value in overrides.items()
        ]
    for item in overrides:
        try:
            found.append(parse_override(item) if isinstance(item, str) else item)
        except ConfigError as error:
            problems += error.problems
    return found


def apply(root: Map, override: Override, problems: list[Problem]) -> Map:
    """Return the tree with one override applied."""
    try:
        _check_references(root, override)
        changed = _change(root, override.path, override, ())
    except ConfigError as error:
        problems += error.problems
        return root
    assert isinstance(changed, Map)
    return changed


def _check_references(root: Map, override: Override) -> None:
    """Refuse to change a part of a mapping that is only referred to."""
    for depth in range(1, len(override.path)):
        place, rest = override.path[:depth], override.path[depth:]
        node = find(root, place)
        target = _follow(root, node, override.origin) if node is not None else None
        if node is not None and target is not None:
            _fail(
                override,
                place,
                f"{join_path(place)} is a reference to {join_path(target)} (see {node.origin}); "
                f"override {join_path((*target, *rest))} instead",
            )


def _follow(root: Map, node: Node, origin: Origin) -> Path | None:
    """Return the path of the mapping that a reference leads to; None if it is none, or leads elsewhere."""
    path: Path | None = None
    for _ in range(10):  # references may refer to others, also in a circle, which is reported later
        named = WHOLE_REFERENCE.fullmatch(str(node.value)) if isinstance(node, Leaf) else None
        if named is None:
            break
        path = split(named[1], origin)
        found = find(root, path)
        if found is None:
            return None
        node = found
    return path if isinstance(node, Map) else None


def _change(node: Node, rest: Path, override: Override, done: Path) -> Node:
    key, here = str(rest[0]), (*done, rest[0])
    if isinstance(node, Leaf) and isinstance(node.value, str):
        # `optimizer: adamw` is short for {class: adamw}; an override of optimizer.lr means the long form.
        node = Map({"class": node}, node.origin, {"class": node.origin})
    if isinstance(node, Leaf):
        if node.value is not None:
            _fail(
                override,
                done,
                f"{join_path(done)} is not a mapping (see {node.origin}), so it has no {key!r}",
            )
        node = Map({}, override.origin)
    below = child(node, key)
    if isinstance(node, Seq) and below is None:
        _fail(
            override,
            done,
            f"{join_path(done)} is a list of {len(node.items)} (see {node.origin}), "
            f"so it has no item {key!r}",
        )
    if len(rest) > 1:
        if below is None and override.action == "delete":
            _missing(node, key, override, here)
        changed: Node | None = _change(below or Map({}, override.origin), rest[1:], override, here)
    else:
        changed = _last(node, key, below, override, here)
    is_inside = len(rest) > 1 or override.action != "set"
    return _replace(node, key, changed, override, is_inside)


def _last(node: Node, key: str, below: Node | None, override: Override, here: Path) -> Node | None:
    if override.action == "delete":
        return None if below is not None else _missing(node, key, override, here)
    if override.action == "set":
        below = None
    elif override.action == "add" and below is not None:
        if isinstance(below, Leaf) and isinstance(below.value, str) and isinstance(override.value, Map):
            below = Map({"class": below}, below.origin, {"class": below.origin})  # as in `_change`
        if isinstance(below, Seq):
            return Seq((*below.items, override.value), below.origin)
        if not (isinstance(below, Map) and isinstance(override.value, Map)):
            _fail(
                override,
                here,
                f"this key already exists (see {below.origin}); omit the `+` to change it",
            )
    problems: list[Problem] = []
    laid = lay(below, override.value, problems, here)
    if problems:
        raise ConfigError(problems)
    return laid


def _replace(node: Node, key: str, changed: Node | None, override: Override, is_inside: bool) -> Node:
    """Return the node with another value at a key; `is_inside`: only a part of that value has changed."""
    if isinstance(node, Seq):
        items = list(node.items)
        if changed is None:
            del items[int(key)]
        else:
            items[int(key)] = changed
        return Seq(tuple(items), node.origin)
    assert isinstance(node, Map)
    if changed is None:
        return node.without(key)
    keeps = is_inside and isinstance(changed, Map) and key in node.items and len(override.path) > 1
    return node.with_item(key, changed, node.key_origin(key) if keeps else override.origin)


def _missing(node: Node, key: str, override: Override, here: Path) -> Any:
    names = node.items if isinstance(node, Map) else ()
    best = nearest(key, names)
    _fail(
        override,
        here,
        f"nothing to delete (the mapping is at {node.origin})",
        join_path((*here[:-1], best)) if best else "",
    )


def _fail(override: Override, path: Path, message: str, suggestion: str = "") -> Any:
    raise ConfigError(
        [Problem(join_path(path or override.path), override.origin, message, suggestion=suggestion)]
    )
