"""Batches: the rows that a source passes to a learner."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.data.nested import map_arrays, named_arrays

Array: TypeAlias = Any
"""A NumPy array, or a tensor on the CPU."""
Inputs: TypeAlias = Array | tuple[Array, ...] | dict[str, Array]


@dataclass(slots=True)
class Batch:
    """Some rows: the inputs of the model, the target, the row numbers, and the weight of each row."""

    inputs: Inputs
    target: Array | None
    index: npt.NDArray[np.int64]
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """The size of its arrays in memory."""
        arrays = [
            array for part in (self.inputs, self.target, self.weight) for _, array in named_arrays(part)
        ]
        return int(sum(getattr(array, "nbytes", 0) for array in arrays))

    def copy(self) -> Batch:
        """Return a copy that shares no memory with this batch."""

        def own(value: Any) -> Any:
            return map_arrays(lambda array: array.clone() if hasattr(array, "clone") else array.copy(), value)

        return Batch(own(self.inputs), own(self.target), self.index.copy(), own(self.weight))

    def split(self, count: int) -> Iterator[tuple[Batch, float]]:
        """Yield parts of about the same size, at most one per row, with their shares of the rows."""
        bounds = split_rows(len(self), count)
        for begin, end in bounds:
            yield (self, 1.0) if len(bounds) == 1 else (self.part(begin, end), (end - begin) / len(self))

    def part(self, begin: int, end: int) -> Batch:
        """Return the rows from `begin` to `end`."""

        def cut(value: Any) -> Any:
            return map_arrays(lambda array: array[begin:end], value)

        return Batch(cut(self.inputs), cut(self.target), self.index[begin:end], cut(self.weight))


def split_rows(rows: int, count: int) -> list[tuple[int, int]]:
    """Return where `count` parts of some rows begin and end; there are not more parts than rows.

    >>> split_rows(5, 2)
    [(0, 2), (2, 5)]
    """
    parts = min(rows, count)
    return list(itertools.pairwise(rows * i // parts for i in range(parts + 1)))
