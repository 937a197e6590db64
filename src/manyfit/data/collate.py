"""Rows collated into a batch, and rows that could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.redaction import redact
from manyfit.core.tracebacks import user_frame
from manyfit.data.batch import Batch

T = TypeVar("T")


def collate(items: Sequence[tuple[Any, int]], index: Iterable[int]) -> Batch:
    """Collate rows into a batch: a row is an input, (input, target), (input, target, weight), or a dict."""
    from torch.utils.data import default_collate

    rows = [item for item, _ in items]
    where = np.fromiter(index, dtype=np.int64, count=len(rows))
    if isinstance(rows[0], Mapping):
        columns = dict(default_collate(rows))
        weight = columns.pop("weight", None)
        return Batch(columns, columns.get("target"), where, weight)
    if isinstance(rows[0], tuple | list):
        if not 1 <= len(rows[0]) <= 3:
            raise UsageError(
                f"a row must be (input, target) or (input, target, weight), but has {len(rows[0])} parts"
            )
        inputs, target, weight = (*default_collate(rows), None, None)[:3]
        return Batch(tuple(inputs) if isinstance(inputs, list) else inputs, target, where, weight)
    return Batch(default_collate(rows), None, where)


def as_batch(found: Any, index: npt.NDArray[np.int64]) -> Batch:
    """Return what a collate function made as a batch: a dict, (input, target, weight), or an input."""
    if isinstance(found, Batch):
        return found
    if isinstance(found, Mapping):
        columns = dict(found)
        weight = columns.pop("weight", None)
        return Batch(columns, columns.get("target"), index, weight)
    if isinstance(found, tuple | list):
        if not 1 <= len(found) <= 3:
            raise UsageError(f"collate_fn must return (input, target), or a dict, not {len(found)} parts")
        inputs, target, weight = (*found, None, None)[:3]
        return Batch(tuple(inputs) if isinstance(inputs, list) else inputs, target, index, weight)
    return Batch(found, None, index)


def try_collate(
    items: Sequence[tuple[Any, int]], make: Callable[[Any, list[int]], Batch] = collate
) -> Batch | BatchFailure:
    """Return the batch of some rows, made by `make`, or the failure of one of them."""
    failed = next((item for item, _ in items if isinstance(item, BatchFailure)), None)
    if failed is not None:
        return failed
    try:
        return make(items, [row for _, row in items])
    except Exception as error:
        return BatchFailure.of(f"row {items[0][1]}", error)


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A row that could not be created, in a form that a worker can send."""

    what: str
    message: str
    usage: bool

    @staticmethod
    def of(what: str, error: Exception) -> BatchFailure:
        """Describe an exception in reading `what`, such as "row 3"."""
        if isinstance(error, UsageError):
            return BatchFailure(what, str(error), usage=True)
        return BatchFailure(what, f"{type(error).__name__}: {error}\n  at {user_frame(error)}", usage=False)


def unwrap(batch: T | BatchFailure) -> T:
    """Return what was read, such as a batch, or raise the error of the row that failed."""
    if isinstance(batch, BatchFailure):
        text = redact(f"{batch.what} of the data could not be made into a batch: {batch.message}")
        raise UsageError(text) if batch.usage else ComponentFailed(text)
    return batch
