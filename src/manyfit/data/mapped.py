"""What a user's function makes of each row of a feeder: a map, or an augmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.secrets import redact
from manyfit.core.seeds import derive
from manyfit.core.trace import user_frame
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.data.tfrecord.ragged import Ragged


def each_row(
    operation: Callable[[int], Any], index: npt.NDArray[np.int64], epoch: int, seed: int | None
) -> list[Any]:
    """Do something for each row of a batch; what it draws at random is a function of (seed, epoch, row)."""
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


def applied(
    post_op: Callable[..., Any], features: dict[str, Any], labels: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call `post_op(features, labels)`, or `post_op(features)` where there are no labels."""
    found = post_op(features, labels) if labels else post_op(features)
    if labels and not (isinstance(found, tuple) and len(found) == 2):
        raise UsageError("post_op must return (features, labels), two dicts by name, as it is given them")
    new, after = found if labels else (found, {})
    for what, was, now in (("features", features, new), ("labels", labels, after)):
        if not isinstance(now, Mapping) or set(now) != set(was):
            names = ", ".join(now) if isinstance(now, Mapping) else type(now).__name__
            raise UsageError(f"post_op must return the {what} {', '.join(was)}, but it returned {names}")
    return dict(new), dict(after)


def stacked(name: str, values: Sequence[Any], was: Any) -> Any:
    """The values of a column, which `was` of some type, as one array; they must have one shape."""
    if values and isinstance(values[0], str | bytes):
        return np.fromiter(values, object, len(values))
    arrays = [_array(name, value, was) for value in values]
    shapes = list(dict.fromkeys(array.shape for array in arrays))
    if len(shapes) > 1:
        raise UsageError(f"post_op gives {name!r} several shapes in one batch, {shapes[0]} and {shapes[1]}")
    if arrays and arrays[0].dtype == np.float64 != was:  # what NumPy makes of any number
        arrays = [array.astype(np.float32) for array in arrays]
    return np.stack(arrays)


def listed(name: str, values: Sequence[Any], was: Any) -> Ragged:
    """The values of a column whose rows have several lengths, and whose values `was` holds."""
    rows = [_array(name, value, was.dtype) for value in values]
    for row in rows:
        if row.ndim != was.ndim or (len(row) and row.shape[1:] != was.shape[1:]):
            raise UsageError(
                f"post_op must return a list for {name!r}, as it is given one, not {row[()]!r:.60}"
            )
    made = [row if len(row) else was[:0] for row in rows]
    if any(row.dtype == np.float64 for row in made) and was.dtype != np.float64:
        made = [row.astype(np.float32) for row in made]
    return Ragged.of(made)


def _array(name: str, value: Any, was: Any) -> Any:
    """What was returned for a row; texts stay objects, since NumPy's own strip zeros at their end."""
    if value is None:
        raise UsageError(f"post_op returned nothing for {name!r}")
    return np.asarray(value, object if np.dtype(was).hasobject else None)
