"""The JSON Schema of the config of a run, for completion and validation in editors."""

from __future__ import annotations

from typing import Any

from manyfit.config.config import Config
from manyfit.config.dialects.table import dialect_of
from manyfit.config.schema.json_types import describe_record
from manyfit.config.schema.run import Run
from manyfit.config.typed.component import Component
from manyfit.config.typed.roles import is_record
from manyfit.config.typed.signatures import signature_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(config: Config | None = None) -> dict[str, Any]:
    """Return the JSON Schema, with the parameters of built-ins and of the classes that `config` names."""
    named = _components(config.run) if config is not None else {}
    if config is not None and (own := dialect_of(config.tree).schema) is not None:
        return own(config.run)
    schema = describe_record(Run, named)
    schema["properties"] |= {
        "extend": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "Files that this one extends, relative to it; patterns are allowed.",
        },
    }
    section = {"type": "object", "required": ["class"], "properties": {"class": {"type": "string"}}}
    schema["additionalProperties"] = {
        **section,
        "description": "A custom section: a dataclass or pydantic model.",
    }
    # A file that extends others need not repeat their keys.
    required = schema.pop("required")
    schema["if"] = {"not": {"required": ["extend"]}}
    schema["then"] = {"required": required}
    return {
        "$schema": DRAFT,
        "title": "manyfit run config",
        **schema,
    }


def _components(section: Any, at: str = "") -> dict[str, list[str]]:
    """Return the classes that a config names, by key."""
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
