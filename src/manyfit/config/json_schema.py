"""JSON Schema of a run's config, so that editors complete it and mark mistakes while they are typed."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from manyfit.config.config import Config
from manyfit.config.dialects.five_components import CLASSES, REQUIRED, SHARED
from manyfit.config.dialects.variants import CHECKPOINT, FEEDERS, SUMMARY, VALIDATE, is_variant
from manyfit.config.schema.attributes import attributes_of, component_classes
from manyfit.config.schema.run import Run
from manyfit.config.typed.class_paths import ResolveError, resolve
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived, Kind
from manyfit.config.typed.roles import DATA, FEEDER, Role, is_record, supplied_to
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


def json_schema(config: Config | None = None) -> dict[str, Any]:
    """Describe every config, with the parameters of the built-ins and of the classes that `config` names."""
    named = _components(config.run) if config is not None else {}
    if config is not None and is_variant(config.tree):
        return variant_schema(config.run)
    if config is not None and config.meaning is not config.tree:
        return flat_schema(config.run)
    schema = record(Run, named)
    schema["properties"] |= {
        "extend": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "Files to lay below this one, relative to it; patterns are allowed.",
        },
    }
    section = {"type": "object", "required": ["class"], "properties": {"class": {"type": "string"}}}
    schema["additionalProperties"] = {
        **section,
        "description": "A section of your own: a dataclass or pydantic model.",
    }
    # A file that extends others need not repeat what they hold.
    required = schema.pop("required")
    schema["if"] = {"not": {"required": ["extend"]}}
    schema["then"] = {"required": required}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manyfit run config",
        **schema,
    }


def variant_schema(run: Run) -> dict[str, Any]:
    """Describe a variant: a model with its parameters, and feeders and cadences under `train`."""
    known = record(Run, {})["properties"]
    train, number = known["train"], {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, REFERENCE]}
    feeders: dict[str, Any] = {}
    for key, split in FEEDERS.items():
        feeder = run.data.params.get(split)
        found: Any = _variant(feeder.path, FEEDER) if isinstance(feeder, Component) else None
        feeders[key] = {**found, "required": []} if found is not None else {"type": "object"}
        feeders[key].setdefault("properties", {})["type"] = {"type": "string"}
    cadences = dict.fromkeys((*CHECKPOINT, *VALIDATE, *SUMMARY), number)
    beside = {name: value(annotation, {}, name) for name, annotation in DATA.beside.items()}
    model = {name: parameter(p, {}, name) for name, p in signature_of(run.model.target).parameters.items()}
    text = {"type": "string"}
    properties = {
        **{key: value for key, value in known.items() if key != "data"},
        "model": {
            "type": "object",
            "properties": {"type": text, "class": text, "model_dir": text, **model},
            "additionalProperties": signature_of(run.model.target).open,
        },
        "train": {
            **train,
            "required": [],
            "properties": {**train["properties"], **feeders, **cadences, **beside},
        },
        "extend": {"anyOf": [text, {"type": "array", "items": text}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manyfit variant",
        "type": "object",
        "properties": properties,
        "additionalProperties": True,
    }


def flat_schema(run: Run) -> dict[str, Any]:
    """Describe a config of five components: reserved keys, and sections of classes with attributes."""
    known = record(Run, {})["properties"]
    properties = {key: known[key] for key in SHARED if key in known}
    properties |= {key: {"type": "string"} for key in (*CLASSES, "data_dir", "extend")}
    properties |= {
        key: {"type": "boolean"}
        for key in ("do_train_augmentation", "do_validation_augmentation", "allow_overlap")
    }
    properties |= {key: {"anyOf": [{"type": "integer"}, REFERENCE]} for key in ("epochs", "batch_size")}
    # What a compiled model brings need not be said here.
    properties["train"] = {k: v for k, v in properties["train"].items() if k != "required"}
    for cls in component_classes(run):
        fields = {name: parameter(p, {}, name) for name, p in attributes_of(cls).items()}
        properties[cls.section] = {"type": "object", "properties": fields, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "manyfit config of five components",
        "type": "object",
        "properties": properties,
        "required": list(REQUIRED),
        "additionalProperties": True,
    }


def record(target: Any, named: dict[str, list[str]], at: str = "") -> dict[str, Any]:
    """A dataclass or pydantic model as an object with known keys."""
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
    """One key: its type, default and kind."""
    schema = dict(value(found.annotation, named, at))
    if isinstance(found.default, bool | int | float | str) and not isinstance(found.default, Enum):
        schema["default"] = found.default
    for kind in _marks(found.annotation, Kind):
        schema["description"] = f"({kind})"
    return schema


def value(annotation: Any, named: dict[str, list[str]], at: str) -> dict[str, Any]:
    """An annotation as a schema; what has no counterpart accepts everything."""
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
        return record(annotation, named, f"{at}.")
    return {}


def component(role: Role, named: Iterable[str]) -> dict[str, Any]:
    """A component: a known class with its parameters, or any other class path."""
    known = [*role.short, *(path for path in named if path not in role.short)]
    variants = [variant for path in known if (variant := _variant(path, role)) is not None]
    other = {
        "type": "object",
        "properties": {"class": {"type": "string", "not": {"enum": known}}},
        "required": ["class"],
    }
    # Other spellings of `class`, and a mapping without any: it is laid over one that an extended file holds.
    other_spellings = {"type": "object", "not": {"required": ["class"]}}
    text = (
        {"anyOf": [{"enum": known}, {"type": "string", "pattern": r"[.:]"}]} if known else {"type": "string"}
    )
    return {"anyOf": [text, *variants, other, other_spellings, {"type": "null"}]}


def _variant(path: str, role: Role) -> dict[str, Any] | None:
    try:
        target = resolve(path, role, None)
    except ResolveError:
        return None
    signature = signature_of(target)
    beside = {name: Parameter(name, annotation) for name, annotation in role.beside.items()}
    own = {n: p for n, p in signature.parameters.items() if n not in supplied_to(target, role)}
    parameters = {**beside, **own}
    return {
        "type": "object",
        "required": ["class"],
        "additionalProperties": signature.open,
        "patternProperties": {r"^\$\{__": {}},
        "properties": {"class": {"const": path}, **{n: parameter(p, {}, n) for n, p in parameters.items()}},
    }


def _components(section: Any, at: str = "") -> dict[str, list[str]]:
    """The classes that a config names, by the place where they stand."""
    found: dict[str, list[str]] = {}
    for name in signature_of(type(section)).parameters:
        item = getattr(section, name)
        if isinstance(item, Component):
            found[f"{at}{name}"] = [item.path]
        elif isinstance(item, list):
            found[f"{at}{name}"] = [entry.path for entry in item if isinstance(entry, Component)]
        elif is_record(type(item)):
            found |= _components(item, f"{at}{name}.")
    return found


def _marks(annotation: Any, wanted: type) -> list[Any]:
    return [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, wanted)]
