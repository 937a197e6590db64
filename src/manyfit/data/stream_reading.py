"""One epoch of a stream: read in shards, through a shuffle buffer, in this process or by workers.

The batches are a function of the stream, the seed, the epoch and the number of shards. Who reads the shards
does not matter: a full batch is taken from each shard in turn, and what remains of them at the end is joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.batch import Batch
from manyfit.data.collate import BatchFailure, unwrap
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.data.workers import read_in_workers


@dataclass(frozen=True, slots=True)
class Turn:
    """What a shard gave in its turn: a batch, or rows that are collated later; nothing if it is discarded."""

    batch: Batch | None = None
    rows: list[Any] | None = None
    is_last: bool = False
    """Whether the shard has ended, with fewer rows than a batch has."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """How one epoch of a stream is read."""

    open: Callable[[int, int, int], Iterable[Any]]
    """Returns the rows of a shard, given the epoch, the shard and the number of shards."""
    make: Callable[[list[Any]], Batch]
    number: int
    seed: int
    rows: int
    """The number of rows that are read."""
    size: int
    steps: int
    skipped: int = 0
    """The number of batches that are read and discarded."""
    shards: int = 1
    buffer: int = 0

    def read(self, workers: int) -> Iterator[Batch]:
        """Yield the batches."""
        for step, part in enumerate(self._arrange(workers)):
            if step >= self.skipped:
                begin, made = step * self.size, part.batch
                if made is None:
                    rows = part.rows or []
                    made = self._collate(rows[: self.rows - begin], step, self.shards)
                made.index = np.arange(begin, min(begin + self.size, self.rows), dtype=np.int64)
                yield made

    def _arrange(self, workers: int) -> Iterator[Turn]:
        """Yield the part of each step: the shards take turns, then what remained of them."""
        readers = self._start(min(workers, self.shards))
        live, remainders, step = list(range(self.shards)), {}, 0
        while live:
            for shard in list(live):
                if step == self.steps:
                    return
                part = unwrap(next(readers[shard % len(readers)]))
                if part.is_last:
                    live.remove(shard)
                    remainders[shard] = part.rows or []
                else:
                    step += 1
                    yield part
        rest = [row for shard in sorted(remainders) for row in remainders[shard]]
        found = step * self.size + len(rest)
        if found < self.rows:
            raise UsageError(f"the iterable should have {self.rows} rows, but ended after {found}")
        for number in range(self.steps - step):
            yield Turn(rows=rest[number * self.size : (number + 1) * self.size])

    def _start(self, workers: int) -> list[Iterator[Turn | BatchFailure]]:
        """Return the readers; shard s is read by reader s modulo their number."""
        if not workers:
            return [self.turns(range(self.shards))]
        groups = [range(worker, self.shards, workers) for worker in range(workers)]
        return [
            read_in_workers(_as_dataset(self, group), 1, batch_size=None, collate_fn=_as_is)
            for group in groups
        ]

    def turns(self, mine: Sequence[int]) -> Iterator[Turn]:
        """Yield the parts of some shards, which take turns until they end."""
        streams = {shard: self._open(shard) for shard in mine}
        turn = 0
        while streams:
            for shard in list(streams):
                if self.shards == 1 and turn == self.steps:
                    return  # without reading further than necessary
                part = self._take(streams[shard], shard, turn)
                if part.is_last:
                    del streams[shard]
                yield part
            turn += 1

    def read_first(self, shard: int, count: int) -> list[Any]:
        """Return the first rows of a shard, with the random numbers of its first batch."""
        stream = self._open(shard)
        with own_randomness(), as_shard(shard, self.shards):
            seed_for(derive(self.seed, "iterable", self.number, 0, *self._seed_parts(shard)))
            return list(itertools.islice(stream, count))

    def _take(self, stream: Iterator[Any], shard: int, turn: int) -> Turn:
        latest = turn * self.shards + shard  # the step is an earlier one if other shards have ended
        size = min(self.size, self.rows - turn * self.size) if self.shards == 1 else self.size
        with own_randomness(), as_shard(shard, self.shards):
            seed_for(derive(self.seed, "iterable", self.number, turn, *self._seed_parts(shard)))
            rows = list(itertools.islice(stream, size))
        if len(rows) < size:
            return Turn(rows=rows, is_last=True)
        if latest < self.skipped:
            return Turn()
        if self.shards > 1 and self.rows % self.size and latest + 1 >= self.steps:
            return Turn(rows=rows)  # may be the last batch, which has fewer rows
        return Turn(self._collate(rows, turn, shard))

    def _collate(self, rows: list[Any], turn: int, shard: int) -> Batch:
        with own_randomness():
            seed_for(derive(self.seed, "collate", self.number, turn, shard))
            return self.make(rows)

    def _open(self, shard: int) -> Iterator[Any]:
        seed = derive(self.seed, "pass", self.number, *self._seed_parts(shard))
        with own_randomness(), as_shard(shard, self.shards):
            seed_for(seed)
            rows = iter(self.open(self.number, shard, self.shards))
        return shuffle_rows(rows, self.buffer, derive(seed, "buffer")) if self.buffer else rows

    def _seed_parts(self, shard: int) -> tuple[int, ...]:
        return () if self.shards == 1 else (shard,)


def shuffle_rows(rows: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    """Yield rows in random order, of which at most `size` are held at a time.

    >>> list(shuffle_rows(iter(range(8)), 4, seed=1))
    [1, 2, 0, 6, 4, 5, 7, 3]
    """
    state = np.random.RandomState(np.random.MT19937(seed))
    held = list(itertools.islice(rows, size))
    for row in rows:
        place = state.randint(size)
        yield held[place]
        held[place] = row
    for place in state.permutation(len(held)):
        yield held[place]


@contextmanager
def as_shard(shard: int, shards: int) -> Iterator[None]:
    """Make torch's `get_worker_info` describe a shard, by which data sets divide themselves among workers."""
    from torch.utils.data._utils import worker

    before, dataset = worker._worker_info, cast(Any, None)
    info = worker.WorkerInfo(id=shard, num_workers=shards, seed=0, dataset=dataset) if shards > 1 else None
    worker._worker_info = info
    try:
        yield
    finally:
        worker._worker_info = before


def _as_dataset(epoch: Epoch, shards: Sequence[int]) -> Any:
    """Return some shards as a data set of torch, which a worker iterates over."""
    from torch.utils.data import IterableDataset

    class Group(IterableDataset[Turn | BatchFailure]):
        def __iter__(self) -> Iterator[Turn | BatchFailure]:
            try:
                yield from epoch.turns(shards)
            except Exception as error:  # raised in the training process, without the traceback of a worker
                yield BatchFailure.of("a row", error)

        def __reduce__(self) -> Any:  # for systems on which workers are not forked
            return _as_dataset, (epoch, shards)

    return Group()


def _as_is(part: Any) -> Any:
    return part
