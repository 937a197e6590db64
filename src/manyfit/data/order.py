"""The order of rows: a pure function of (seed, epoch), so that any step can be reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.seeds import derive
from manyfit.data.layout import Layout


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
    """Drop the last batch of an epoch, or of a visit to a shard, if it is incomplete."""
    layout: Layout | None = None
    """The shards of the rows. An epoch visits each of them once, in cyclic order; no batch spans two."""
    first_shard: int = 0
    """The shard at which an epoch begins."""
    visits: tuple[tuple[int, ...], ...] = ()
    """By epoch: the shards that it visits first; the others follow in cyclic order."""
    until: int | None = None
    """The step at which reading ends, so that nothing is read ahead beyond it; None for all epochs."""

    def count(self, rows: int) -> int:
        """Return how many of `rows` rows are read in an epoch."""
        return rows if self.limit is None else min(rows, self.limit)

    def steps(self, rows: int) -> int:
        """Return the number of batches in an epoch, including an incomplete one unless it is dropped."""
        if self.layout is not None:
            return sum(self.batches_of(size) for size in self.layout.sizes)
        return self.batches_of(self.count(rows))

    def batches_of(self, count: int) -> int:
        """Return the number of batches of some rows."""
        return count // self.batch_size if self.drop_remainder else -(-count // self.batch_size)

    def path(self, epoch: int) -> list[int]:
        """Return the shards that an epoch visits, in order.

        >>> Order(8, layout=Layout.divide(64, 4), first_shard=2, visits=((), (3, 1))).path(0)
        [2, 3, 0, 1]
        >>> Order(8, layout=Layout.divide(64, 4), first_shard=2, visits=((), (3, 1))).path(1)
        [3, 1, 2, 0]
        """
        known = self.visits[epoch] if epoch < len(self.visits) else ()
        return [*known, *(shard for shard in self.cycle() if shard not in known)]

    def cycle(self) -> list[int]:
        """Return all shards in cyclic order, from the first one."""
        assert self.layout is not None
        count = self.layout.shards
        return [(self.first_shard + visit) % count for visit in range(count)]

    def steps_of_visits(self, epoch: int) -> list[int]:
        """Return the number of steps of each visit of an epoch, in order."""
        assert self.layout is not None
        return [self.batches_of(self.layout.sizes[shard]) for shard in self.path(epoch)]

    def epoch(self, rows: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the row numbers of one epoch, in order, without shards."""
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
        count = None if self.until is None else max(0, self.until - start)
        return itertools.islice(self._walk_epochs(rows, start), count)

    def _walk_epochs(self, rows: int, start: int) -> Iterator[npt.NDArray[np.int64]]:
        steps = self.steps(rows)
        if not steps:
            return
        epoch, step = divmod(start, steps)
        while self.epochs is None or epoch < self.epochs:
            if self.layout is not None:
                yield from self._walk_shards(epoch, step)
            else:
                yield from self._cut(self.epoch(rows, epoch), step)
            epoch, step = epoch + 1, 0

    def _walk_shards(self, epoch: int, step: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the batches of an epoch from `step`, shard by shard; only the rows of these are computed."""
        assert self.layout is not None
        for shard, steps in zip(self.path(epoch), self.steps_of_visits(epoch), strict=True):
            if step < steps:
                found = self.layout.rows(shard)
                if self.seed is not None:
                    seed = derive(self.seed, "shard", shard, epoch)
                    found = np.random.RandomState(np.random.MT19937(seed)).permutation(found)
                yield from self._cut(found, step)
            step = max(0, step - steps)

    def _cut(self, order: npt.NDArray[np.int64], step: int) -> Iterator[npt.NDArray[np.int64]]:
        end = min(self.batches_of(len(order)) * self.batch_size, len(order))
        for begin in range(step * self.batch_size, end, self.batch_size):
            yield order[begin : begin + self.batch_size]


def order_of(source: Any, order: Order) -> Order:
    """Return the order in which a source reads rows: that of a run, with the settings of the source."""
    if getattr(source, "is_around", False):
        return order_of(source.source, order)
    own = getattr(source, "order", None)
    found: Order = order if own is None else own(order)
    return found


def steps_of(source: Any, order: Order) -> int:
    """Return the number of batches in an epoch of a source, which may define its own batches."""
    own = getattr(source, "steps", None)
    return int(own(order)) if own is not None else order.steps(len(source))
