"""The batches of several runs that train together: one stream for each distinct order of rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from manyfit.data.batch import Batch
from manyfit.data.dataset import Limited
from manyfit.data.order import Order
from manyfit.data.resident import Resident, RowNumbers, find_resident
from manyfit.data.source import Source

MOST_BYTES: Final = 1 << 26
"""The most bytes of batches that are read ahead if runs share a stream."""


class Walk(Iterator[tuple[Batch, ...]]):
    """Batches for n runs, step by step. Runs that read the same rows in the same order share a stream.

    `next` returns a batch for each run, the same object for runs that share a stream. A learner that trains
    its runs one after another uses `chunks` or `separate` instead.
    """

    def __init__(
        self,
        make: Sequence[Callable[[], Iterator[Batch]]],
        which: Sequence[int],
        resident: Sequence[Resident | str] = (),
        start: int = 0,
        full: int = 0,
    ) -> None:
        """`make` has one function per stream, which opens it; `which` has the stream number of each run.

        `resident` has the rows of each stream, if they are in memory; `start` is the first step; `full` is
        the number of rows of a full batch.
        """
        self.full = full
        self._make = list(make)
        self._which = list(which)
        self._resident = list(resident) or ["its batches are given"] * len(self._make)
        self._step = start
        self._streams: dict[int, Iterator[Batch]] = {}
        self._rows: dict[int, Iterator[RowNumbers]] = {}
        self._ahead: dict[int, RowNumbers] = {}
        """The row numbers of the next step, by stream, if they were read already."""

    @property
    def n(self) -> int:
        """The number of runs."""
        return len(self._which)

    @property
    def streams(self) -> int:
        """The number of streams that are read."""
        return len(set(self._which))

    def __next__(self) -> tuple[Batch, ...]:
        if self._rows:
            (index,) = self.next_rows(1) or ((),)
            if not index:
                raise StopIteration
            return self.make(index)
        found = {number: next(self._stream(number)) for number in self.used}
        self._step += 1
        return tuple(found[number] for number in self._which)

    def make(self, index: Sequence[RowNumbers]) -> tuple[Batch, ...]:
        """Return the batches of a step, from what `next_rows` returns for it."""
        found = {n: self._at(n).take(rows) for n, rows in zip(self.used, index, strict=True)}
        return tuple(found[number] for number in self._which)

    @property
    def used(self) -> list[int]:
        """The numbers of the streams that are read."""
        return list(dict.fromkeys(self._which))

    @property
    def places(self) -> list[int]:
        """Where the stream of each run is among those that are read."""
        used = self.used
        return [used.index(number) for number in self._which]

    def columns(self) -> Batch | str:
        """Return the rows of all streams, if they are in memory and the same, or else why not."""
        found = [self._resident[number] for number in self.used]
        if reasons := [each for each in found if isinstance(each, str)]:
            return reasons[0]
        first = self._at(self.used[0]).columns
        if any(self._at(number).columns.inputs is not first.inputs for number in self.used):
            return "the runs read different rows"
        return first

    def next_rows(self, steps: int) -> list[tuple[RowNumbers, ...]]:
        """Return the row numbers of the next steps, by stream that is read; fewer if the data ends.

        From then on, batches are made of these rows, too.
        """
        used = self.used
        for number in used:
            if number not in self._rows:
                self._rows[number] = self._at(number).rows(self._step)
        found, ahead = list[tuple[RowNumbers, ...]](), self._ahead
        if ahead and steps:
            found, self._ahead = [tuple(ahead[number] for number in used)], {}
        found += itertools.islice(self._zip_rows(), steps - len(found))
        self._step += len(found)
        return found

    def look_ahead(self) -> None:
        """Read the row numbers of the next step, if they are read: the first of an epoch take a while."""
        if self._rows and not self._ahead:
            for index in itertools.islice(self._zip_rows(), 1):
                self._ahead = dict(zip(self.used, index, strict=True))

    def _zip_rows(self) -> Iterator[tuple[RowNumbers, ...]]:
        return zip(*(self._rows[number] for number in self.used), strict=False)

    def _at(self, number: int) -> Resident:
        found = self._resident[number]
        assert isinstance(found, Resident)
        return found

    def chunks(self, steps: int) -> Iterator[tuple[int, list[Iterator[Batch]]]]:
        """Yield a number of steps and one iterator per run, until `steps` are done.

        A stream of one run is passed on as it is: the run reads it, with its own random states. A shared one
        is read ahead, at most `MOST_BYTES` at a time, so that each run can train several steps in a row.
        """
        while steps:
            ahead: dict[int, list[Batch]] = {i: [] for i in self._which if self._which.count(i) > 1}
            count, size = 0, 0
            while ahead and count < steps and size < MOST_BYTES:
                for number, batches in ahead.items():
                    batches.append(next(self._stream(number)))
                    size += batches[-1].nbytes
                count += 1
            count = count or steps
            self._step += count
            yield count, [self._part(i, ahead) for i in range(self.n)]
            steps -= count

    def _part(self, run: int, ahead: dict[int, list[Batch]]) -> Iterator[Batch]:
        number = self._which[run]
        if number not in ahead:
            return self._stream(number)
        if number in self._which[run + 1 :]:
            # A model may change its inputs in place; runs that read the same batches later must not see it.
            return (batch.copy() for batch in ahead[number])
        return iter(ahead[number])

    def separate(self) -> list[Iterator[Batch]]:
        """Return a separate stream for each run, from the start."""
        return [self._make[number]() for number in self._which]

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these runs only."""
        self._which = [self._which[i] for i in indices]

    def _stream(self, number: int) -> Iterator[Batch]:
        if number not in self._streams:
            self._streams[number] = self._make[number]()
        return self._streams[number]


def walk_together(sources: Sequence[Source], orders: Sequence[Order], start: int = 0) -> Walk:
    """Return the batches of several runs from step `start` on."""
    make: dict[Any, Callable[[], Iterator[Batch]]] = {}
    keys = [_stream_key(*each) or number for number, each in enumerate(zip(sources, orders, strict=True))]
    for key, source, order in zip(keys, sources, orders, strict=True):
        make.setdefault(key, functools.partial(source.batches, order, start))
    numbers = {key: number for number, key in enumerate(make)}
    places = [keys.index(key) for key in make]
    resident = [find_resident(sources[place], orders[place]) for place in places]
    full = _find_full_size(sources[0], orders[0])
    return Walk(list(make.values()), [numbers[key] for key in keys], resident, start, full)


def _find_full_size(source: Source, order: Order) -> int:
    """Return the number of rows of the largest batches."""
    if order.layout is not None:
        return min(order.batch_size, max(order.layout.sizes))
    try:
        rows = len(source)
    except TypeError:  # a stream
        return order.batch_size
    return min(order.batch_size, order.count(rows))


def _stream_key(source: Source, order: Order) -> Any:
    """Return what determines the batches of a source; None if they may depend on the reader."""
    limits = []
    inner: Any = source
    while type(inner) is Limited:
        limits.append((inner.rows, inner.seed))
        inner = inner.source
    is_constant = vars(type(inner)).get("is_constant", False)
    return (id(inner), tuple(limits), order) if is_constant else None
