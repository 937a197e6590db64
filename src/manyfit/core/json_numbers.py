"""Numbers in JSON, which cannot represent NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def to_json(values: Mapping[str, float]) -> dict[str, float | str]:
    """Convert values by name for JSON; NaN and infinities become text.

    >>> to_json({"a": 1.0, "b": float("nan")})
    {'a': 1.0, 'b': 'nan'}
    """
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def from_json(values: Mapping[str, float | str]) -> dict[str, float]:
    """Read back what `to_json` wrote."""
    return {name: float(value) for name, value in values.items()}


def as_json_tree(value: Any) -> Any:
    """Convert nested data for JSON; NaN and infinities become text."""
    if isinstance(value, Mapping):
        return {str(key): as_json_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_tree(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
