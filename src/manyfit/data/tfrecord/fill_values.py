"""Fill values of features: `pad` and `default_value`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.data.tfrecord.ragged import as_objects


def default_array(given: Any, dtype: str, shape: Sequence[int]) -> Any:
    """Return the `default_value` of a feature as an array; raise if type or shape do not fit."""
    if dtype == "string":
        values = given if isinstance(given, list | tuple) else [given]
        if not all(isinstance(value, str | bytes) and _fits_dtype(value, "string") for value in values):
            raise UsageError(f"the default_value of a string feature must be text, not {given!r}")
        made = as_objects([v.encode() if isinstance(v, str) else v for v in values])
    else:
        try:
            made = np.asarray(given)
        except ValueError as error:
            raise UsageError(f"the default_value {given!r} is not an array: {error}") from None
        fits = made.dtype.kind in ("iu" if dtype == "int64" else "iuf")
        if not fits or not all(_fits_dtype(value, dtype) for value in made.reshape(-1).tolist()):
            raise UsageError(f"the default_value {given!r:.80} is not of type {dtype}")
        made = made.astype("<i8" if dtype == "int64" else "<f4")
    if made.size not in (1, math.prod(shape)):
        raise UsageError(f"the default_value {given!r} does not fit the shape {list(shape)}")
    return made.reshape(shape) if made.size == math.prod(shape) else made.reshape(())[()]


def check_pad(pad: Any, dtype: str) -> None:
    """Raise if a pad value does not fit the type of its feature."""
    wanted: dict[str, Any] = {"int64": int, "float32": int | float, "string": str}
    fits = pad is None or (
        isinstance(pad, wanted[dtype]) and not isinstance(pad, bool) and _fits_dtype(pad, dtype)
    )
    if not fits:
        raise UsageError(f"pad: {pad!r:.80} is not of type {dtype}")


def _fits_dtype(value: Any, dtype: str) -> bool:
    """Return whether a Python number or text can be represented in a type."""
    if dtype == "int64":
        return bool(-(1 << 63) <= value < 1 << 63)
    if dtype == "float32":
        try:
            with np.errstate(over="ignore"):
                return bool(np.isfinite(np.float32(value))) or not math.isfinite(value)
        except OverflowError:
            return False
    return isinstance(value, bytes) or all(not 0xD800 <= ord(letter) < 0xE000 for letter in value)


def fill_value(pad: Any, dtype: str) -> Any:
    """Return the value that short rows are padded with."""
    if pad is None:
        return b"" if dtype == "string" else 0
    return pad.encode() if isinstance(pad, str) else pad
