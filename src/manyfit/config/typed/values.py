"""Checks of a tree against annotations, as strict as JSON: nothing is converted.

An int is accepted as a float, a list as a tuple, text as an enum or a path. The checker descends through
the structure itself, because components may be nested anywhere; constraints and single values of other
types (dates, URLs) are validated by pydantic.
"""

from __future__ import annotations

import abc
import collections.abc
import inspect
import types
import typing
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path as FilePath
from typing import Any, Literal

from annotated_types import BaseMetadata, GroupedMetadata

from manyfit.config.tree.nodes import (
    Leaf,
    Map,
    Node,
    Path,
    Seq,
    Unresolved,
    class_word,
    join_path,
    leaves,
    plain,
)
from manyfit.config.tree.project import below
from manyfit.config.typed import torch_facts
from manyfit.config.typed.component import is_plain
from manyfit.config.typed.config_struct import ConfigStruct
from manyfit.config.typed.findings import INVALID, WRONG_TYPE
from manyfit.config.typed.kinds import FromProject, Kind, Verbatim
from manyfit.config.typed.roles import ANY, BY_BASE, CALLABLE, Role, describe_target, is_record, qualify
from manyfit.config.typed.scalars import Scalars, adapter_of
from manyfit.config.typed.wording import MAPPINGS, PATTERNS, SEQUENCES, SETS, expectation, expectation_of_any
from manyfit.core.errors import Problem
from manyfit.core.redaction import Secret


class Values(Scalars, abc.ABC):
    """Checks of values of any type. Kinds, classes and defaults are collected along with the problems."""

    def __init__(self, root: Node, project: FilePath, source: FilePath | None) -> None:
        super().__init__(root, project, source)
        self.structs: dict[int, ConfigStruct] = {}

    @abc.abstractmethod
    def component(
        self, node: Node, role: Role, path: Path, wanted: type | None = None, keep: bool = False
    ) -> Any:
        """Check a component."""

    @abc.abstractmethod
    def record(self, node: Node, wanted: type, path: Path) -> Any:
        """Check a mapping against the fields of a class."""

    @abc.abstractmethod
    def target(self, text: str, role: Role, node: Leaf, path: Path) -> Any:
        """Import the object that a class path names."""

    def value(self, node: Node, annotation: Any, path: Path) -> Any:
        """Check a node against an annotation and return the typed value, or INVALID."""
        if isinstance(node, Leaf) and isinstance(node.value, Unresolved):
            return INVALID
        if typing.get_origin(annotation) is typing.Annotated:
            return self.check_annotated(node, annotation, path)
        if isinstance(node, Leaf) and isinstance(node.value, Secret):
            return self.secret(node, annotation, path)
        while isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        if isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        origin = typing.get_origin(annotation) or annotation
        if (
            annotation is Any
            or annotation is object
            or isinstance(annotation, str | typing.ForwardRef | typing.ParamSpec)
        ):
            return self.anything(node, path)
        if origin in (typing.Union, types.UnionType):
            return self.union(node, typing.get_args(annotation), path)
        if origin is Literal:
            return self.literal(node, typing.get_args(annotation), path)
        if annotation in (None, type(None), bool, int, float, str):
            return self.scalar(node, annotation, path)
        if origin is tuple or (
            inspect.isclass(origin) and issubclass(origin, tuple) and not hasattr(origin, "_fields")
        ):
            return self.tuple(node, typing.get_args(annotation), path)
        if origin in SEQUENCES or origin in SETS:
            return self.sequence(node, origin, typing.get_args(annotation), path)
        if origin in MAPPINGS:
            return self.mapping(node, typing.get_args(annotation), path)
        if origin is collections.abc.Callable:
            return self.component(node, CALLABLE, path)
        if origin is type:
            return self.class_itself(node, typing.get_args(annotation), path)
        return self.instance(node, origin, path) if inspect.isclass(origin) else self.anything(node, path)

    def check_annotated(self, node: Node, annotation: Any, path: Path) -> Any:
        """Check `Annotated` values: marks for the kind, a role, or constraints that pydantic knows."""
        base, *marks = typing.get_args(annotation)
        before = self.kind
        role = None
        if Verbatim in marks:
            return self.verbatim(node, path)
        for mark in marks:
            if isinstance(mark, Kind):
                self.kind = mark
                self.kinds[path] = mark
            role = mark if isinstance(mark, Role) else role
        constraints = [mark for mark in marks if _constrains(mark)]
        count = len(self.problems)
        if role is not None:
            value = self.roles(node, base, role, path)
        else:
            value = self.value(node, base, path)
        wanted = next((PATTERNS[p] for mark in marks if (p := getattr(mark, "pattern", "")) in PATTERNS), "")
        if wanted and value is INVALID:  # more specific than "text"
            self.problems[count:] = [replace(problem, expected=wanted) for problem in self.problems[count:]]
        if FromProject in marks:
            value = self.from_project(value)
        self.kind = before
        if constraints and value is not INVALID and value is not None and is_plain(value):
            return self.pydantic(node, typing.Annotated[(base, *constraints)], path, value)
        return value

    def from_project(self, value: Any) -> Any:
        """Return a file name or pattern, or a list of them, relative to the project root."""
        if isinstance(value, list):
            return [self.from_project(item) for item in value]
        is_path = isinstance(value, str) and value and "://" not in value and not value.startswith("~")
        return below(self.project, value) if is_path else value

    def verbatim(self, node: Node, path: Path) -> Any:
        """Return a mapping as written. Components given the same mapping share its record of keys read."""
        if not isinstance(node, Map):
            return self.fail(node, path, WRONG_TYPE, "a mapping")
        for where, leaf in leaves(node):
            # Secrets of trackers are exempt: they appear as templates, without their values.
            if isinstance(leaf, Leaf) and isinstance(leaf.value, Secret) and where[0] != "track":
                return self.fail(
                    leaf,
                    where,
                    "a secret cannot be passed to components; read the environment variable instead",
                )
        if id(node) not in self.structs:
            self.structs[id(node)] = ConfigStruct.of(self.project, plain(node))
        return self.structs[id(node)]

    def roles(self, node: Node, base: Any, role: Role, path: Path) -> Any:
        """Check a component that its section keeps; None, or several by name, if the annotation allows it."""
        options = [typing.get_origin(option) or option for option in typing.get_args(base)]
        if base is type or type in options:
            return self.class_of(node, role, path, type(None) in options)
        if type(None) in options and isinstance(node, Leaf) and node.value is None:
            return None
        if collections.abc.Mapping in options and isinstance(node, Map) and not class_word(node):
            found = {
                name: self.component(item, role, (*path, name), keep=True)
                for name, item in node.items.items()
            }
            return INVALID if any(item is INVALID for item in found.values()) else found
        return self.component(node, role, path, keep=True)

    def union(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """Return the first option that fits; if none does, record the problems of the likeliest one."""
        if (
            isinstance(node, Leaf)
            and type(node.value) in options
            and not (
                isinstance(node.value, str)
                and any(inspect.isclass(o) and issubclass(o, FilePath) for o in options)
            )
        ):
            return node.value
        options = sorted(options, key=lambda option: option is str)
        if isinstance(node, Leaf) and node.value is None and type(None) not in options:
            return self.fail(node, path, WRONG_TYPE, expectation_of_any(options))
        likely: list[Problem] = []
        others = [option for option in options if typing.get_origin(option) is not Literal]
        for option in sorted(options, key=lambda option: option not in others):  # words last
            found, problems = self.attempt(node, option, path)
            if not problems:
                return found
            if any(p.path != join_path(path) or p.message != WRONG_TYPE for p in problems):
                is_word = option not in others and others != [type(None)]
                extra = f", or {expectation_of_any(others)}" if is_word and others else ""
                likely = likely or [replace(p, expected=p.expected + extra) for p in problems]
        if likely:
            self.problems += likely
            return INVALID
        return self.fail(node, path, WRONG_TYPE, expectation_of_any(options))

    def attempt(self, node: Node, annotation: Any, path: Path) -> tuple[Any, list[Problem]]:
        """Check against one option; discard everything recorded if it does not fit."""
        saved = self.problems, dict(self.kinds), dict(self.classes), dict(self.defaults), dict(self.derived)
        self.problems = []
        value = self.value(node, annotation, path)
        problems = self.problems
        if problems:
            self.problems, self.kinds, self.classes, self.defaults, self.derived = saved
        else:
            self.problems = saved[0]
        return value, problems

    def tuple(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """Check a list against a tuple, item by item."""
        if not isinstance(node, Seq):
            return self.fail(node, path, WRONG_TYPE, "a list")
        if not options or options[-1] is Ellipsis:
            options = [options[0] if options else Any] * len(node.items)
        if len(options) != len(node.items):
            return self.fail(
                node, path, "wrong number of items", f"{len(options)} items", f"{len(node.items)} items"
            )
        items = [
            self.value(item, option, (*path, i))
            for i, (item, option) in enumerate(zip(node.items, options, strict=True))
        ]
        return INVALID if any(item is INVALID for item in items) else tuple(items)

    def sequence(self, node: Node, origin: Any, options: Sequence[Any], path: Path) -> Any:
        """Check a list, or a set written as one."""
        if not isinstance(node, Seq):
            return self.fail(node, path, WRONG_TYPE, expectation(origin[options[0]] if options else origin))
        items = [
            self.value(item, options[0] if options else Any, (*path, i)) for i, item in enumerate(node.items)
        ]
        if any(item is INVALID for item in items):
            return INVALID
        if origin in SEQUENCES:
            return items
        try:
            return frozenset(items) if origin is frozenset else set(items)
        except TypeError:
            return self.fail(node, path, "a set cannot hold one of these items", "text and numbers")

    def mapping(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """Check a mapping with arbitrary keys."""
        if not isinstance(node, Map):
            return self.fail(node, path, WRONG_TYPE, "a mapping")
        key_type, value_type = options or (str, Any)
        result: dict[Any, Any] = {}
        for key, item in node.items.items():
            where = Leaf(key if key_type in (str, Any) else _number(key), node.key_origin(key))
            typed = self.value(where, key_type, (*path, key))
            result[typed] = self.value(item, value_type, (*path, key))
        broken = INVALID in result or any(item is INVALID for item in result.values())
        return INVALID if broken else result

    def class_itself(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """Return the class itself for `type[Base]`, given by its path."""
        if not (isinstance(node, Leaf) and isinstance(node.value, str)):
            return self.fail(node, path, WRONG_TYPE, "a class path")
        target = self.target(node.value, ANY, node, path)
        base = options[0] if options and inspect.isclass(options[0]) else object
        if target is not INVALID and not (inspect.isclass(target) and issubclass(target, base)):
            return self.fail(
                node, path, f"{describe_target(target)} does not fit", f"a subclass of {qualify(base)}"
            )
        return target

    @abc.abstractmethod
    def class_of(self, node: Node, role: Role, path: Path, optional: bool) -> Any:
        """Return the class itself, given by its path, if it fits the role."""

    def instance(self, node: Node, wanted: type, path: Path) -> Any:
        """Check a class: an enum, path, record, component, or a single value that pydantic validates."""
        if issubclass(wanted, Enum):
            return self.enum(node, wanted, path)
        if issubclass(wanted, FilePath):
            text = self.scalar(node, str, path)
            return text if text is INVALID else wanted(self.project / text)
        if torch_facts.is_dtype(qualify(wanted)):
            return self.dtype(node, path)
        named = isinstance(node, Map) and class_word(node, free=True)
        if not named and hasattr(wanted, "_fields") and isinstance(node, Seq):
            node = self.name_fields(node, wanted)
        if not named and (is_record(wanted) or typing.is_typeddict(wanted) or hasattr(wanted, "_fields")):
            return self.record(node, wanted, path)
        role = BY_BASE.get(qualify(wanted), ANY)
        text = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else ""
        component_only = adapter_of(wanted) is None
        if named or (component_only and (isinstance(node, Map) or "." in text or text in role.short)):
            return self.component(node, role, path, wanted)
        if component_only:
            return self.fail(node, path, WRONG_TYPE, expectation(wanted))
        return self.pydantic(node, wanted, path)

    @staticmethod
    def name_fields(node: Seq, wanted: Any) -> Map:
        """Return a list as a mapping of the fields of a named tuple."""
        names = [*wanted._fields, *(str(i) for i in range(len(wanted._fields), len(node.items)))]
        items = dict(zip(names, node.items, strict=False))
        return Map(items, node.origin, {name: item.origin for name, item in items.items()})

    def anything(self, node: Node, path: Path) -> Any:
        """Return a value without annotation: plain data, or a component if a mapping has `class`."""
        if isinstance(node, Map):
            if class_word(node, free=True):
                return self.component(node, ANY, path)
            mapping = {key: self.anything(value, (*path, key)) for key, value in node.items.items()}
            return INVALID if any(value is INVALID for value in mapping.values()) else mapping
        if isinstance(node, Seq):
            items = [self.anything(value, (*path, i)) for i, value in enumerate(node.items)]
            return INVALID if any(value is INVALID for value in items) else items
        if isinstance(node.value, Secret):
            return self.secret(node, Any, path)
        return INVALID if isinstance(node.value, Unresolved) else node.value


def _constrains(mark: Any) -> bool:
    """Return whether pydantic understands a mark in `Annotated`."""
    return not isinstance(mark, Kind | Role) and (
        isinstance(mark, BaseMetadata | GroupedMetadata)
        or type(mark).__name__ == "FieldInfo"
        or hasattr(mark, "__get_pydantic_core_schema__")
    )


def _number(key: str) -> Any:
    for read in (int, float):
        try:
            return read(key)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(key, key)
