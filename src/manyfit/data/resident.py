"""Rows that are all in memory: a learner may keep them on its device, and only read row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from manyfit.data.batch import Batch
from manyfit.data.nested import map_arrays, named_arrays
from manyfit.data.order import Order

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Resident:
    """The rows of a source in memory, and the order in which they are read."""

    columns: Batch
    """All rows."""
    rows: Callable[[int], Iterator[RowNumbers]]
    """Return the row numbers of each step, from a step on."""

    def take(self, index: RowNumbers) -> Batch:
        """Return a batch of some rows."""
        all_ = self.columns

        def of(value: Any) -> Any:
            return map_arrays(lambda array: array[index], value)

        return Batch(of(all_.inputs), of(all_.target), index, of(all_.weight))


@runtime_checkable
class HasResident(Protocol):
    """A source whose rows may all be in memory."""

    def resident(self, order: Order) -> Resident | str:
        """Return the rows in memory and their order, or the reason why there are none."""
        ...


def find_resident(source: Any, order: Order) -> Resident | str:
    """Return the rows of a source that are in memory as arrays of numbers, or why there are none."""
    if not isinstance(source, HasResident):
        return f"{type(source).__name__} reads each batch anew"
    found = source.resident(order)
    if isinstance(found, Resident):
        all_ = found.columns
        for name, array in named_arrays({"inputs": all_.inputs, "target": all_.target}):
            if array.dtype.kind in "OUS":
                return f"{name} has no numbers"
    return found
