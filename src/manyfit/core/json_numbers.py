"""Numbers in JSON, which has no word for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def to_json(values: Mapping[str, float]) -> dict[str, float | str]:
    """Values by name for JSON; nan and the infinities become text.

    >>> to_json({"a": 1.0, "b": float("nan")})
    {'a': 1.0, 'b': 'nan'}
    """
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def from_json(values: Mapping[str, float | str]) -> dict[str, float]:
    """Read back what `to_json` wrote."""
    return {name: float(value) for name, value in values.items()}


def as_json_tree(value: Any) -> Any:
    """The same for nested data."""
    if isinstance(value, Mapping):
        return {str(key): as_json_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_tree(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
