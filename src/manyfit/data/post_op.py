"""`post_op`: a user function that a feeder applies to each row, such as an augmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.redaction import redact
from manyfit.core.seeds import derive
from manyfit.core.tracebacks import user_frame
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.data.tfrecord.ragged import Ragged


def each_row(
    operation: Callable[[int], Any], index: npt.NDArray[np.int64], epoch: int, seed: int | None
) -> list[Any]:
    """Call `operation` for each row of a batch; its random numbers depend only on (seed, epoch, row)."""
    made = []
    with own_randomness():
        for place, row in enumerate(index.tolist()):
            seed_for(derive(seed or 0, "row", epoch, row))
            try:
                made.append(operation(place))
            except UsageError:
                raise
            except Exception as error:
                told = f"post_op failed on row {row}: {type(error).__name__}: {error}"
                raise ComponentFailed(redact(f"{told}\n  at {user_frame(error)}")) from error
    return made


def call_post_op(
    post_op: Callable[..., Any], features: dict[str, Any], labels: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call `post_op(features, labels)`, or `post_op(features)` where there are no labels."""
    found = post_op(features, labels) if labels else post_op(features)
    if labels and not (isinstance(found, tuple) and len(found) == 2):
        raise UsageError("post_op must return (features, labels), two dicts by name, like its arguments")
    new, after = found if labels else (found, {})
    for what, was, now in (("features", features, new), ("labels", labels, after)):
        if not isinstance(now, Mapping) or set(now) != set(was):
            names = ", ".join(now) if isinstance(now, Mapping) else type(now).__name__
            raise UsageError(f"post_op must return the {what} {', '.join(was)}, but it returned {names}")
    return dict(new), dict(after)


def stack_values(name: str, values: Sequence[Any], was: Any) -> Any:
    """Stack the values of a column into one array; they must have one shape. `was` is the dtype before."""
    if values and isinstance(values[0], str | bytes):
        return np.fromiter(values, object, len(values))
    arrays = [_array(name, value) for value in values]
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise UsageError(
            f"post_op returned {name!r} with different shapes in one batch: {shapes[0]} and {shapes[1]}"
        )
    if arrays and arrays[0].dtype == np.float64 != was:  # NumPy's default for Python numbers
        arrays = [array.astype(np.float32) for array in arrays]
    return np.stack(arrays)


def to_ragged(name: str, values: Sequence[Any], was: Any) -> Ragged:
    """Join the values of a column of variable-length rows; `was` holds the values before `post_op`."""
    rows = [_array(name, value) for value in values]
    for row in rows:
        if not row.ndim:
            raise UsageError(
                f"post_op must return a list for {name!r}, like its argument, not {row[()]!r:.60}"
            )
    # An empty list has no type of its own: it gets the type of the other rows.
    typed = [
        row for row, value in zip(rows, values, strict=True) if len(row) or isinstance(value, np.ndarray)
    ]
    empty = (typed[0] if typed else was)[:0]
    rows = [
        row if len(row) or isinstance(v, np.ndarray) else empty for row, v in zip(rows, values, strict=True)
    ]
    shapes = list(dict.fromkeys(row.shape[1:] for row in rows if len(row)))
    if len(shapes) > 1:
        raise UsageError(
            f"post_op returned items of {name!r} with different shapes: {shapes[0]} and {shapes[1]}"
        )
    if any(row.dtype == np.float64 for row in rows) and was.dtype != np.float64:
        rows = [row.astype(np.float32) for row in rows]
    return Ragged.of(
        [row if len(row) else row.reshape(0, *(shapes[0] if shapes else was.shape[1:])) for row in rows]
    )


def _array(name: str, value: Any) -> Any:
    """Convert a returned value; text becomes objects because NumPy strings lose trailing zero bytes."""
    if value is None:
        raise UsageError(f"post_op returned nothing for {name!r}")
    try:
        made = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"the value that post_op returned for {name!r} is not an array: {error}") from None
    return np.asarray(value, object) if made.dtype.kind in "SU" else made
