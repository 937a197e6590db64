"""Annotations and signatures as JSON Schema."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from manyfit.config.typed.class_paths import ResolveError, resolve
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived, Kind
from manyfit.config.typed.roles import Role, is_record, list_supplied
from manyfit.config.typed.signatures import Parameter, signature_of

REFERENCE = {"type": "string", "pattern": r"\$\{"}
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_LISTS = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)


def describe_record(target: Any, named: dict[str, list[str]], at: str = "") -> dict[str, Any]:
    """Return the schema of a dataclass or pydantic model: an object with known keys."""
    parameters = {
        name: p for name, p in signature_of(target).parameters.items() if not _marks(p.annotation, Derived)
    }
    properties = {name: parameter(p, named, f"{at}{name}") for name, p in parameters.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [n for n, p in parameters.items() if p.required],
        "patternProperties": {r"^\$\{__": {}},
        "additionalProperties": False,
        "description": inspect.cleandoc(target.__doc__ or "").partition("\n")[0],
    }


def parameter(found: Parameter, named: dict[str, list[str]], at: str) -> dict[str, Any]:
    """Return the schema of one key: its type, default and kind."""
    schema = dict(value(found.annotation, named, at))
    if isinstance(found.default, bool | int | float | str) and not isinstance(found.default, Enum):
        schema["default"] = found.default
    for kind in _marks(found.annotation, Kind):
        schema["description"] = f"({kind})"
    return schema


def value(annotation: Any, named: dict[str, list[str]], at: str) -> dict[str, Any]:
    """Return the schema of an annotation; one without a counterpart accepts everything."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        roles = _marks(annotation, Role)
        return component(roles[0], named.get(at, [])) if roles else value(args[0], named, at)
    if inspect.isclass(annotation) and annotation in _SCALARS:
        return (
            {"anyOf": [{"type": _SCALARS[annotation]}, REFERENCE]}
            if annotation is not str
            else {"type": "string"}
        )
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [value(option, named, at) for option in args]}
    if origin is Literal:
        return {"anyOf": [{"enum": list(args)}, REFERENCE]}
    if origin in _LISTS or annotation in _LISTS:
        inner = next((option for option in args if option is not Ellipsis), Any)
        same = origin is not tuple or len(args) < 2 or args[-1] is Ellipsis
        return {"anyOf": [{"type": "array", "items": value(inner, named, at) if same else {}}, REFERENCE]}
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return {"anyOf": [{"enum": list(annotation.__members__)}, REFERENCE]}
    if inspect.isclass(annotation) and issubclass(annotation, Path):
        return {"type": "string"}
    if is_record(annotation) and annotation is not Component:
        return describe_record(annotation, named, f"{at}.")
    return {}


def component(role: Role, named: Iterable[str]) -> dict[str, Any]:
    """Return the schema of a component: a known class with its parameters, or any other class path."""
    known = [*role.short, *(path for path in named if path not in role.short)]
    variants = [variant for path in known if (variant := describe_class(path, role)) is not None]
    other = {
        "type": "object",
        "properties": {"class": {"type": "string", "not": {"enum": known}}},
        "required": ["class"],
    }
    # Other spellings of `class`, and a mapping without one: it is merged into that of an extended file.
    other_spellings = {"type": "object", "not": {"required": ["class"]}}
    text = (
        {"anyOf": [{"enum": known}, {"type": "string", "pattern": r"[.:]"}]} if known else {"type": "string"}
    )
    return {"anyOf": [text, *variants, other, other_spellings, {"type": "null"}]}


def describe_class(path: str, role: Role) -> dict[str, Any] | None:
    """Return the schema of a class with its parameters; None if it cannot be imported."""
    try:
        target = resolve(path, role, None)
    except ResolveError:
        return None
    signature = signature_of(target)
    beside = {name: Parameter(name, annotation) for name, annotation in role.beside.items()}
    own = {n: p for n, p in signature.parameters.items() if n not in list_supplied(target, role)}
    parameters = {**beside, **own}
    return {
        "type": "object",
        "required": ["class"],
        "additionalProperties": signature.open,
        "patternProperties": {r"^\$\{__": {}},
        "properties": {"class": {"const": path}, **{n: parameter(p, {}, n) for n, p in parameters.items()}},
    }


def _marks(annotation: Any, wanted: type) -> list[Any]:
    return [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, wanted)]
