r"""References: `${a.b}`, `${.sibling}`, `${oc.env:NAME}`, `${secret:NAME}`, in OmegaConf's syntax.

They are resolved after all files and overrides are merged, so that every reference sees the final value.
`\${` is a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from manyfit.config.tree.nodes import (
    Leaf,
    Map,
    Node,
    Path,
    Scalar,
    Seq,
    Unresolved,
    child,
    find,
    join_path,
    size,
)
from manyfit.config.tree.reader import MAX_BYTES, MAX_NODES, parse_yaml
from manyfit.core.errors import ConfigError, Origin, Problem
from manyfit.core.names import nearest
from manyfit.core.redaction import Secret, read_secret

RESOLVERS: Final = ("oc.env", "oc.decode", "oc.select", "secret")
MAX_NESTING: Final = 16
MAX_CHAIN: Final = 64
MIN_SECRET: Final = 8

_MARK = re.compile(r"(\\*)\$\{")
_PLAIN = re.compile(r"\\+|[^\\$}]+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """The content between `${` and `}`; parts may be references themselves."""

    parts: tuple[str | Reference, ...]


Text: TypeAlias = tuple[str | Reference, ...]
Default: TypeAlias = Callable[[Path], "Node | None"]


def escape(text: str) -> str:
    """Escape literal text so that it is not read as a reference."""
    return _MARK.sub(lambda found: f"{found[1] * 2}\\${{", text)


def unescape_references(text: str) -> str:
    """Return escaped text as it was; text with references is returned unchanged."""
    try:
        parts = parse_references(text)
    except ValueError:
        return text
    literal = [part for part in parts if isinstance(part, str)]
    return "".join(literal) if len(literal) == len(parts) else text


def parse_references(text: str) -> Text:
    """Split text into literal parts and references. Raises ValueError for an unclosed `${`."""
    parts, rest = _parse(text, 0, inside=False, depth=0)
    assert rest == len(text)
    return parts


def _parse(text: str, at: int, inside: bool, depth: int) -> tuple[Text, int]:
    if depth > MAX_NESTING:
        raise ValueError(f"references nested more than {MAX_NESTING} deep")
    parts: list[str | Reference] = []
    literal = ""
    while at < len(text):
        found = _MARK.match(text, at)
        if found and len(found[1]) % 2:
            literal += "\\" * (len(found[1]) // 2) + "${"
            at = found.end()
        elif found:
            literal += "\\" * (len(found[1]) // 2)
            inner, at = _parse(text, found.end(), inside=True, depth=depth + 1)
            parts += [literal, Reference(inner)] if literal else [Reference(inner)]
            literal = ""
        elif inside and text[at] == "}":
            return tuple([*parts, literal] if literal else parts), at + 1
        else:
            plain = _PLAIN.match(text, at)
            assert plain is not None
            literal += plain[0]
            at = plain.end()
    if inside:
        raise ValueError("unclosed reference: `}` is missing")
    return tuple([*parts, literal] if literal else parts), at


class Resolver:
    """Resolver of one tree. It collects problems and the environment variables that were read."""

    def __init__(
        self,
        root: Map,
        environ: Mapping[str, str],
        default: Default = lambda path: None,
        closed: str = "",
    ) -> None:
        """`closed` is the reason why this tree may not read the environment; empty if it may."""
        self.root = root
        self.environ = environ
        self.closed = closed
        self.default = default
        self.problems: list[Problem] = []
        self.environment: dict[str, str] = {}
        self.secrets: dict[str, Path] = {}
        self.done: dict[Path, Node] = {}
        self.busy: list[Path] = []
        self.count = 0

    def resolve(self) -> Map:
        """Return the tree with all references resolved; those that cannot be are `Unresolved`."""
        result = self.node(self.root, ())
        assert isinstance(result, Map)
        for name in self.secrets.keys() & self.environment.keys():
            message = f"{name!r} is a secret here, but read as plain text by ${{oc.env:{name}}} elsewhere"
            self.problems.append(Problem(join_path(self.secrets[name]), result.origin, message))
        return result

    def node(self, node: Node, path: Path) -> Node:
        """Resolve the node at `path`."""
        if path in self.done:
            return self.done[path]
        self.busy.append(path)
        if isinstance(node, Map):
            items = {key: self.node(value, (*path, key)) for key, value in node.items.items()}
            same = all(items[key] is value for key, value in node.items.items())
            result: Node = node if same else Map(items, node.origin, node.keys)
        elif isinstance(node, Seq):
            found = tuple(self.node(item, (*path, str(i))) for i, item in enumerate(node.items))
            same = all(new is old for new, old in zip(found, node.items, strict=True))
            result = node if same else Seq(found, node.origin)
        else:
            result = self.leaf(node, path)
        self.busy.pop()
        self.done[path] = result
        return result

    def leaf(self, leaf: Leaf, path: Path) -> Node:
        """Resolve the references in one scalar."""
        if not (isinstance(leaf.value, str) and "${" in leaf.value):
            return leaf
        try:
            parts = parse_references(leaf.value)
            if len(parts) == 1 and isinstance(parts[0], Reference):
                found = self.reference(parts[0], path, leaf.origin)
                return Leaf(found.value, leaf.origin) if isinstance(found, Leaf) else found
            return Leaf(self.text(parts, path, leaf.origin), leaf.origin)
        except ValueError as error:
            return self.fail(path, leaf.origin, str(error), leaf.value)
        except _Failed:
            return Leaf(Unresolved(), leaf.origin)

    def text(self, parts: Text, path: Path, origin: Origin) -> str | Secret:
        """Join literal text and the values of references."""
        joined, secret = "", False
        for part in parts:
            if isinstance(part, str):
                joined += part
                continue
            found = self.reference(part, path, origin)
            if not isinstance(found, Leaf):
                self.fail(
                    path, origin, "a mapping or list cannot be inserted into text", "".join(map(str, parts))
                )
                raise _Failed
            if isinstance(found.value, Unresolved):
                raise _Failed
            secret = secret or isinstance(found.value, Secret)
            joined += as_text(found.value)
        if len(joined) > MAX_BYTES:
            raise ValueError(
                f"the text is longer than {MAX_BYTES:,} characters after its references are resolved"
            )
        return Secret(joined) if secret else joined

    def reference(self, reference: Reference, path: Path, origin: Origin) -> Node:
        """Return the node that one reference refers to."""
        inner = self.text(reference.parts, path, origin)
        if isinstance(inner, Secret):
            raise ValueError("a secret cannot name a reference")
        name, colon, argument = inner.partition(":")
        if colon:
            return self.call(name.strip(), argument.strip(), path, origin)
        return self.lookup(inner.strip(), path, origin)

    def call(self, name: str, argument: str, path: Path, origin: Origin) -> Node:
        """Resolve `${resolver:argument}`."""
        key, comma, default = (part.strip() for part in argument.partition(","))
        fallback = Leaf(default.strip("'\""), origin) if comma else None
        if self.closed and name in ("oc.env", "secret"):
            return self.missing(path, origin, f"{self.closed}, and reads the environment variable {key!r}")
        if name == "oc.env":
            if key in self.environ:
                self.environment[key] = _unicode(key, self.environ[key])
                return Leaf(self.environ[key], origin)
            return fallback or self.missing(
                path, origin, f"the environment variable {key!r} is not set", nearest(key, self.environ)
            )
        if name == "secret":
            if len(_unicode(key, self.environ.get(key, "x" * MIN_SECRET)).strip()) < MIN_SECRET:
                raise ValueError(
                    f"the secret {key!r} has fewer than {MIN_SECRET} characters, too few to be redacted"
                )
            if key in self.environ:
                read_secret(key)
                self.secrets[key] = path
                return Leaf(Secret(f"${{secret:{key}}}"), origin)
            return self.missing(
                path, origin, f"the environment variable {key!r}, which holds a secret, is not set"
            )
        if name == "oc.decode":
            try:
                return parse_yaml(argument, origin.file)
            except ConfigError as error:
                raise ValueError(error.problems[0].message) from None
        if name == "oc.select":
            return self.find(self.absolute(key, path)) or fallback or Leaf(None, origin)
        return self.missing(path, origin, f"there is no resolver {name!r}", nearest(name, RESOLVERS))

    def lookup(self, key: str, path: Path, origin: Origin) -> Node:
        """Resolve `${a.b}`."""
        target = self.absolute(key, path)
        found = self.find(target)
        if found is None:
            return self.missing(
                path,
                origin,
                f"this refers to {join_path(target)!r}, which does not exist",
                self.nearby(target),
            )
        if not isinstance(found, Leaf):
            self.count += size(found)
            if self.count > MAX_NODES:
                raise ValueError(
                    f"this config has more than {MAX_NODES:,} values after its references are resolved"
                )
        return found

    def absolute(self, key: str, path: Path) -> Path:
        """Return `a[0].b`, `.sibling` or `..uncle` as a path from the root."""
        dots = len(key) - len(key.lstrip("."))
        names = tuple(part for part in re.sub(r"\[(\d+)\]", r".\1", key[dots:]).split(".") if part)
        return (*path[:-dots], *names) if dots else names

    def find(self, target: Path) -> Node | None:
        """Resolve the node at a path; a missing one may have a default."""
        if target in self.busy:
            chain = [*self.busy[self.busy.index(target) :], target]
            raise ValueError("circular references: " + " → ".join(join_path(step) or "." for step in chain))
        if len(self.busy) > MAX_CHAIN:
            raise ValueError(f"a chain of more than {MAX_CHAIN} references")
        node: Node | None = self.root
        for length in range(1, len(target) + 1):
            here = target[:length]
            node = child(node, target[length - 1]) if node is not None else None
            if node is None:
                return self.default(target)
            if isinstance(node, Leaf) and length < len(target):
                node = self.node(node, here) if here not in self.busy else None
        if node is None:
            return None
        return self.node(node, target)

    def nearby(self, target: Path) -> str:
        """Return the most similar existing key, or an empty string."""
        node: Node = self.root
        for index, key in enumerate(target):
            below = child(node, key)
            if below is None:
                best = nearest(str(key), node.items) if isinstance(node, Map) else ""
                return join_path((*target[:index], best, *target[index + 1 :])) if best else ""
            node = below
        return ""

    def missing(self, path: Path, origin: Origin, message: str, suggestion: str = "") -> Node:
        """Record a problem and skip this value, so that further problems are found."""
        self.problems.append(Problem(join_path(path), origin, message, suggestion=suggestion))
        raise _Failed

    def fail(self, path: Path, origin: Origin, message: str, received: str) -> Leaf:
        """Record a problem with the syntax or the value of a reference."""
        self.problems.append(Problem(join_path(path), origin, message, received=received))
        return Leaf(Unresolved(), origin)


class _Failed(Exception):
    """Raised after a problem was recorded: the value remains unresolved."""


def _unicode(name: str, value: str) -> str:
    """Return the value; raise ValueError if it is not UTF-8, because it could not be written to a file."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"the environment variable {name!r} is not UTF-8") from None
    return value


def as_text(value: Scalar | Unresolved) -> str:
    """Return a scalar as YAML writes it, for insertion into text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def drop_copied_problems(problems: Sequence[Problem], tree: Map) -> list[Problem]:
    """Return the problems without those of a copy that a reference made: the original has the same."""

    def is_written(problem: Problem) -> bool:
        return find(tree, tuple(problem.path.split("."))) is not None

    def key(problem: Problem) -> tuple[Any, ...]:
        name = problem.path.rpartition(".")[2]
        return problem.origin, name, problem.expected, problem.received

    originals = {key(problem) for problem in problems if is_written(problem)}
    return [problem for problem in problems if is_written(problem) or key(problem) not in originals]
