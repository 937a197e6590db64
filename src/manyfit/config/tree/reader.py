"""Reading and writing YAML: the structure of YAML with the scalars of JSON; `1e-3` is a float, `on` is text.

The tree is built from parser events, so that the reader can record every line number, reject duplicate keys
and tags, and stop at a depth or size that no real config reaches.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from manyfit.config.tree.nodes import Leaf, Map, Node, Seq, merge
from manyfit.core.errors import ConfigError, FolderError, Origin, Problem
from manyfit.core.files import read_bytes

log = logging.getLogger("manyfit")

NOT_YAML: Final = "not valid YAML"
MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_NODES: Final = 200_000
MOST_TEXTS: Final = 256
"""Size of the cache of serialized top-level keys."""

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


def read_file(path: Path, name: str | None = None) -> Node:
    """Read one YAML file. `name` is its name in messages."""
    shown = name or str(path)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            _fail(
                Origin(shown, 1),
                "this file is too large for a config",
                f"at most {MAX_BYTES:,} bytes",
                f"{size:,} bytes",
            )
        data = read_bytes(path)
    except IsADirectoryError:
        _fail(Origin(shown), "this is a folder", "a YAML file")
    except FolderError as error:
        _fail(Origin(shown), "this is a folder" if path.is_dir() else str(error), "a YAML file")
    except OSError as error:
        _fail(Origin(shown), f"cannot be read: {error.strerror or error}", "a YAML file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _fail(Origin(shown, line), "this file is not UTF-8", "UTF-8 text", f"byte 0x{data[error.start]:02x}")
    log.debug("read %s", shown)
    return parse_yaml(text, shown)


def parse_yaml(text: str, name: str) -> Node:
    """Parse one YAML document. `name` is its name in messages."""
    builder = _Builder(name)
    try:
        return builder.document(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        _fail(Origin(name, line), _explain(text, line, error))
    except yaml.reader.ReaderError as error:
        position = error.position if isinstance(error.position, int) else 0
        _fail(Origin(name, text[:position].count("\n") + 1), f"{NOT_YAML}: {error.reason}")
    except UnicodeEncodeError:
        _fail(Origin(name, 1), "text that is not valid Unicode")


def _explain(text: str, line: int, error: yaml.MarkedYAMLError) -> str:
    lines = text.splitlines()
    written = lines[line - 1] if line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return f"{NOT_YAML}: this line is indented with a tab; YAML requires spaces"
    if "${" in written and "{" in written.replace("${", ""):
        return NOT_YAML + ': inside { } or [ ], a reference needs quotes: {hidden: "${data.batch_size}"}'
    detail = "; ".join(part for part in (error.problem, error.context) if part)
    return f"{NOT_YAML}: {detail or error}"


class _Builder:
    """Builder of nodes from parser events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open_anchors: set[str] = set()
        self.count = 0

    def document(self, events: Iterator[Any]) -> Node:
        node: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    _fail(self.origin(event), "a second document begins here", "one YAML document")
                node = self.node(next(events), events, 0)
        return node if node is not None else Leaf(None, Origin(self.name, 1))

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        origin = self.origin(event)
        if depth > MAX_DEPTH:
            _fail(origin, "nested too deeply", f"at most {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, origin)
        before = self.count
        self.grow(1, origin)
        self.check_tag(event, origin)
        if event.anchor:
            self.open_anchors.add(event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            node: Node = Leaf(self.scalar(event, origin), origin)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Seq(tuple(self.sequence(events, depth)), origin)
        else:
            node = self.mapping(origin, events, depth)
        if event.anchor:
            self.open_anchors.discard(event.anchor)
            self.anchors[event.anchor] = (node, self.count - before)
        return node

    def sequence(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            yield self.node(event, events, depth + 1)

    def mapping(self, origin: Origin, events: Iterator[Any], depth: int) -> Map:
        items: dict[str, Node] = {}
        keys: dict[str, Origin] = {}
        merged: Node = Map({}, origin)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            where = self.origin(event)
            if not isinstance(event, yaml.ScalarEvent):
                _fail(where, "a key must be text", "a key such as `epochs:`")
            key = event.value
            value = self.node(next(events), events, depth + 1)
            if key == "<<" and event.implicit[0]:
                for part in value.items if isinstance(value, Seq) else (value,):
                    if not isinstance(part, Map):
                        _fail(where, "`<<` merges mappings only", "an alias of a mapping")
                    merged = merge(part, merged)
                continue
            if key in items:
                _fail(
                    where,
                    f"duplicate key {key!r}; the first is at line {keys[key].line}",
                    path=key,
                )
            items[key], keys[key] = value, where
        own = Map(items, origin, keys)
        result = merge(merged, own)
        assert isinstance(result, Map)
        return Map(result.items, origin, result.keys)

    def alias(self, event: Any, origin: Origin) -> Node:
        if event.anchor in self.open_anchors:
            _fail(origin, f"the alias *{event.anchor} contains itself")
        if event.anchor not in self.anchors:
            _fail(origin, f"the alias *{event.anchor} has no anchor before it")
        node, size = self.anchors[event.anchor]
        self.grow(size, origin)
        return node

    def grow(self, size: int, origin: Origin) -> None:
        self.count += size
        if self.count > MAX_NODES:
            _fail(
                origin,
                "this config has too many values after its aliases are expanded",
                f"at most {MAX_NODES:,}",
            )

    def check_tag(self, event: Any, origin: Origin) -> None:
        if event.tag is not None and event.tag not in _CORE_TAGS and event.tag != "!":
            _fail(
                origin, f"the tag {event.tag} is not supported: a config holds data, never objects", "no tag"
            )

    def scalar(self, event: Any, origin: Origin) -> bool | int | float | str | None:
        text: str = event.value
        if event.tag in _CORE_TAGS:
            kind = event.tag.rpartition(":")[2]
            value = text if kind == "str" else implicit(text, origin)
            if kind == "float" and type(value) is int:
                return float(value)
            if {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}[
                type(value)
            ] != kind:
                _fail(origin, f"the value {text!r} does not fit its tag !!{kind}")
            return value
        return implicit(text, origin) if event.implicit[0] else text

    def origin(self, event: Any) -> Origin:
        return Origin(self.name, event.start_mark.line + 1)


def implicit(text: str, origin: Origin) -> bool | int | float | str | None:
    """Return the value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        try:
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text.replace("_", ""))
        except ValueError:
            _fail(origin, "this number has too many digits")
    if special := _SPECIAL.fullmatch(text):
        return (
            math.nan
            if special[2].lower() == "nan"
            else math.copysign(math.inf, -1 if special[1] == "-" else 1)
        )
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        if math.isinf(number):
            _fail(origin, f"the number {text} is too large for a float", "write .inf for infinity")
        return number
    return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A dumper that quotes exactly the text that `implicit` would not read back unchanged."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Single quotes fold line breaks, and PyYAML treats more characters as breaks than it should.
        style = None if text.isprintable() else '"'
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node


for _tag, _pattern in (
    ("null", _NULL),
    ("bool", _BOOL),
    ("int", _INT),
    ("float", _SPECIAL),
    ("float", _FLOAT),
    ("merge", re.compile("<<")),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern.pattern})\Z"), None)
_Dumper.add_representer(str, _Dumper.represent_text)


def dump(value: Any) -> str:
    """Return plain data as YAML; `parse_yaml` restores the same data."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def dump_parts(value: Mapping[str, Any]) -> str:
    """Like `dump`, with a cache per top-level key: the trials of a study share most of them."""
    return "".join(_part(key, item) for key, item in value.items()) or dump({})


def _part(key: str, item: Any) -> str:
    known = key, repr(item)
    if known not in _texts:
        if len(_texts) > MOST_TEXTS:
            _texts.clear()
        _texts[known] = dump({key: item})
    return _texts[known]


_texts: dict[tuple[str, str], str] = {}


def _fail(origin: Origin, message: str, expected: str = "", received: str = "", path: str = "") -> NoReturn:
    raise ConfigError([Problem(path, origin, message, expected, received)])
