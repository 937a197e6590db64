"""The order of rows: a pure function of (seed, epoch), so that any step can be reproduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.seeds import derive


@dataclass(frozen=True, slots=True)
class Order:
    """How a source is read: in batches, reshuffled every epoch, or in storage order without a seed."""

    batch_size: int
    seed: int | None = None
    epochs: int | None = None
    """The number of passes over the rows; unlimited by default."""
    limit: int | None = None
    """Read only this many rows: the first ones, or a random sample."""
    sample: int | None = None
    """The seed of the random sample. A source that can only be read in order uses the first rows."""
    drop_remainder: bool = False
    """Drop the last batch of an epoch if it is incomplete."""

    def count(self, rows: int) -> int:
        """Return how many of `rows` rows are read in an epoch."""
        return rows if self.limit is None else min(rows, self.limit)

    def steps(self, rows: int) -> int:
        """Return the number of batches in an epoch, including an incomplete one unless it is dropped."""
        count = self.count(rows)
        return count // self.batch_size if self.drop_remainder else -(-count // self.batch_size)

    def epoch(self, rows: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the row numbers of one epoch, in order."""
        count = self.count(rows)
        # RandomState's streams are frozen by NumPy's compatibility policy; Generator's methods are not.
        if self.seed is None:
            order = np.arange(count, dtype=np.int64)
        else:
            state = np.random.RandomState(np.random.MT19937(derive(self.seed, "order", epoch)))
            order = state.permutation(count).astype(np.int64, copy=False)
        if self.sample is None or count == rows:
            return order
        chosen = np.random.RandomState(np.random.MT19937(derive(self.sample, "limit"))).permutation(rows)
        return np.sort(chosen[:count]).astype(np.int64)[order]

    def walk(self, rows: int, start: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the row numbers of each step, from step `start`, epoch after epoch."""
        steps = self.steps(rows)
        if not steps:
            return
        epoch, step = divmod(start, steps)
        while epoch != self.epochs:
            order = self.epoch(rows, epoch)
            end = steps * self.batch_size
            for begin in range(step * self.batch_size, min(end, len(order)), self.batch_size):
                yield order[begin : begin + self.batch_size]
            epoch, step = epoch + 1, 0


def steps_of(source: Any, order: Order) -> int:
    """Return the number of batches in an epoch of a source, which may define its own batches."""
    own = getattr(source, "steps", None)
    return int(own(order)) if own is not None else order.steps(len(source))
