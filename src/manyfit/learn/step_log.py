"""What user code logs inside a step: `manyfit.log(name, value)`.

The value of a step is the mean over its rows, also if its batch is split into parts. Learners average the
steps between two rows of the log, as they do with the loss. Of images and texts, the last ones are kept in
training, and those of the first batch in validation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from manyfit.core.errors import UsageError
from manyfit.learn.pictures import check_shape, make_grid

PATTERN: Final = re.compile(r"[A-Za-z_][\w./-]*")
TAKEN: Final = ("loss", "lr", "momentum")
"""Names that the log of a run uses itself."""
SHOWN: Final = 16
"""The number of images of a batch that are kept."""


class StepLog:
    """The values that were logged since the last call of `take`, weighted by the rows of their batches."""

    def __init__(self, taken: Mapping[str, Any] | None = None) -> None:
        """`taken` are the names of metrics, which values cannot have."""
        self._taken = taken if taken is not None else {}
        self._sums: dict[str, Any] = {}
        self._rows: dict[str, int] = {}
        self.rows = 0
        """The number of rows of the current batch; 0 while a batch is being read."""
        self.samples: dict[str, Any] = {}
        """Images and texts, by name."""

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, name: str, value: Any) -> None:
        """Add a value of the current batch: a number, or one per row."""
        if not isinstance(name, str) or not PATTERN.fullmatch(name):
            raise UsageError(f"manyfit.log: a name consists of letters, digits and _ . / -, not {name!r}")
        if name in TAKEN or name in self._taken:
            raise UsageError(f"manyfit.log: the log already has a value named {name!r}; choose another name")
        if not self.rows:
            raise UsageError(
                f"manyfit.log({name!r}, …) was called while data was read; values are logged by the model, "
                "the loss or the training step"
            )
        if is_sample(value):
            self.samples[name] = read_sample(name, value)
        else:
            self.put(name, read_value(name, value, self.rows))

    def take_samples(self) -> dict[str, Any]:
        """Return the images, as grids, and the texts, and start again."""
        found, self.samples = self.samples, {}
        return {name: each if isinstance(each, str) else make_grid(each) for name, each in found.items()}

    def put(self, name: str, value: Tensor) -> None:
        """Add one number, for all rows of the current batch."""
        before = self._sums.get(name)
        self._sums[name] = value * self.rows if before is None else before + value * self.rows
        self._rows[name] = self._rows.get(name, 0) + self.rows

    def take(self) -> dict[str, Tensor]:
        """Return the mean of every value, and start again."""
        found = {name: total / self._rows[name] for name, total in self._sums.items()}
        self._sums, self._rows = {}, {}
        return found


def read_value(name: str, value: Any, rows: int) -> Tensor:
    """Return a value as a tensor with one number, without its gradient."""
    try:
        found = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"manyfit.log: {name!r} must be a number, not {value!r:.60}") from error
    if found.numel() != 1 and found.shape != (rows,):
        raise UsageError(
            f"manyfit.log: {name!r} must be one number, or one for each of {rows} rows, but has the shape "
            f"{tuple(found.shape)}"
        )
    found = found if found.is_floating_point() else found.to(torch.float32)
    return found.reshape(()) if found.numel() == 1 else found.mean()


def is_sample(value: Any) -> bool:
    """Return whether a value is a text, or an image, or several."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, str) for each in value)
    return isinstance(value, str) or (getattr(value, "ndim", 0) >= 3 and math.prod(value.shape) != 1)


def read_sample(name: str, value: Any) -> Any:
    """Return a text, or some images that do not change any more."""
    if not re.fullmatch(r"[\w-]{1,100}", name) or name.startswith("val_"):
        raise UsageError(
            "manyfit.log: images and texts are named by up to 100 letters, digits, _ and -, and not val_…, "
            f"which are those of validation; but {name!r:.120} was given"
        )
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "\n".join(value)
    check_shape(value.shape, value.dtype)
    few = value[:SHOWN] if value.ndim == 4 or value.shape[0] > 3 else value
    return few.detach().clone() if isinstance(few, Tensor) else few.copy()


_active: list[StepLog | None] = []


@contextmanager
def logging_to(target: StepLog | None) -> Iterator[None]:
    """Direct `log` to this target; None discards the values."""
    _active.append(target)
    try:
        yield
    finally:
        _active.pop()


@contextmanager
def gather_logs(
    taken: Mapping[str, Any], rows: int, beside: StepLog | None = None
) -> Iterator[dict[str, Tensor]]:
    """Collect what user code logs for a batch of an evaluation; `taken` are the names of metrics.

    Images and texts of the first batch are put into the log `beside`.
    """
    target, found = StepLog(taken), dict[str, Tensor]()
    target.rows = rows
    with logging_to(target):
        yield found
    found |= target.take()
    if beside is not None:
        for name, sample in target.samples.items():
            beside.samples.setdefault(f"val_{name}", sample)


def record_value(name: str, value: Tensor) -> None:
    """Log one number of the current batch, on behalf of manyfit itself."""
    if _active and (target := _active[-1]) is not None:
        target.put(name, value)


def log(name: str, value: Any) -> None:
    """Log a number, images or a text inside a training step, a forward pass or a loss.

    A number appears in the log of the run as `train_<name>` in training, as `val_<name>` in validation: the
    mean over the rows since the last entry, or over the rows of the split. It is a number or a tensor, one
    for the batch or one per row. Images, (n, channels, height, width), and texts are written to the run
    folder and to TensorBoard whenever the run pauses. Outside of a run, nothing happens.

    >>> manyfit.log("kl", kl.mean())    # doctest: +SKIP
    """
    if _active and (target := _active[-1]) is not None:
        target.add(name, value)
