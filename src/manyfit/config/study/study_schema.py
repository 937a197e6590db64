"""The JSON Schema of `study.yaml`, for completion and validation in editors."""

from __future__ import annotations

from typing import Any

from manyfit.config.config import Config
from manyfit.config.json_schema import DRAFT
from manyfit.config.schema.json_types import describe_record
from manyfit.config.schema.run import Run
from manyfit.config.study.keys import list_keys, list_keys_of
from manyfit.config.study.sections import Described
from manyfit.config.study.space import RANGES

ENDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
"""The ends of a range."""


def study_schema(config: Config | None = None) -> dict[str, Any]:
    """Return the JSON Schema of `study.yaml`; with the base config, editors know the keys of the space."""
    schema = describe_record(Described, {})
    axis = {
        "anyOf": [
            {"type": "array", "minItems": 1},
            {
                "type": "object",
                "anyOf": [{"required": [word]} for word in (*RANGES, "values")],
                "properties": {
                    **{word: {"anyOf": [ENDS, {"type": "boolean"}]} for word in RANGES},
                    "values": {"type": "array", "minItems": 1},
                    "step": {"type": "number"},
                    "points": {"type": "integer", "minimum": 1},
                    "when": {"type": "object"},
                },
                "additionalProperties": False,
            },
        ]
    }
    zipped = {"type": "object", "additionalProperties": {"type": "array"}}
    keys = list_keys_of(config.file) if config is not None and config.file else list_keys(Run)
    changes = {"type": "object", "properties": {key: {} for key in keys}}
    schema["properties"] |= {
        "base": {
            "anyOf": [{"type": "string"}, {"type": "object"}],
            "description": "The config of all trials.",
        },
        "set": {**changes, "description": "Values for all trials."},
        "space": {
            "type": "object",
            "description": "The search space: keys of the base, and what is tried for each.",
            "properties": {
                "zip": {"anyOf": [zipped, {"type": "array", "items": zipped}]},
                "list": {"type": "array", "items": changes},
                "ablate": changes,
                "constraints": {
                    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
                },
                **dict.fromkeys(keys, axis),
            },
            "additionalProperties": axis,
        },
        "extend": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    }
    schema.pop("required")
    # A file that extends others need not repeat their keys.
    schema["if"] = {"not": {"required": ["extend"]}}
    schema["then"] = {"required": ["base", "objective", "search", "space"]}
    return {"$schema": DRAFT, "title": "manyfit study", **schema}
