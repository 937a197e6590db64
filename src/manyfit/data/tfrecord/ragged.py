"""Rows of different lengths, without an object for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Ragged:
    """Variable-length rows: all values concatenated, and the offsets of the rows.

    >>> rows = Ragged(np.arange(6), np.array([0, 1, 3, 6]))
    >>> rows[1:].padded().tolist()
    [[1, 2, 0], [3, 4, 5]]
    """

    values: Any
    splits: npt.NDArray[np.int64]
    """The offsets of the rows: one more than there are rows; the first need not be 0."""

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, part: slice) -> Ragged:
        begin, end, _ = part.indices(len(self))
        return Ragged(self.values, self.splits[begin : max(begin, end) + 1])

    def __iter__(self) -> Iterator[Any]:
        bounds = itertools.pairwise(self.splits.tolist())
        return (self.values[begin:end] for begin, end in bounds)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of values of each row."""
        return np.diff(self.splits)

    def flat(self) -> Any:
        """Return the values of these rows only."""
        return self.values[self.splits[0] : self.splits[-1]]

    def take(self, rows: npt.NDArray[np.int64]) -> Ragged:
        """Return some rows, in any order."""
        begins, lengths = self.splits[rows], self.splits[rows + 1] - self.splits[rows]
        splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        places = np.arange(splits[-1]) + np.repeat(begins - splits[:-1], lengths)
        return Ragged(np.asarray(self.values[places]), splits)

    @staticmethod
    def of(rows: Sequence[Any]) -> Ragged:
        """Create from rows that are arrays."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        return Ragged(np.concatenate(rows) if len(rows) else np.zeros(0), splits)

    def rows(self) -> Any:
        """Return an object array of arrays."""
        return as_objects([row.copy() for row in self])

    def padded(self, fill: Any = 0, length: int | None = None) -> Any:
        """Return one array: short rows are padded at the end, and rows longer than `length` are truncated."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        made = np.empty((len(self), width, *self.values.shape[1:]), self.values.dtype)
        is_value = np.arange(width) < lengths[:, None]
        if (lengths > width).any():
            places = np.repeat(self.splits[:-1], np.minimum(lengths, width)) + np.nonzero(is_value)[1]
            made[is_value] = self.values[places]
        else:
            made[is_value] = self.flat()
        made[~is_value] = fill
        return made


def as_objects(values: Sequence[Any]) -> Any:
    """Return a list as a one-dimensional array of objects."""
    return np.fromiter(values, dtype=object, count=len(values))
