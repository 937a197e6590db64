"""Streams as sources: iterables, and functions that return generators."""

from __future__ import annotations

import copy
import hashlib
import inspect
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.batch import Batch
from manyfit.data.collate import as_batch, collate
from manyfit.data.dataset import SAMPLED, check_ids
from manyfit.data.order import Order
from manyfit.data.overlap import Contents
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.data.row_hash import drop_weight, hash_row, update
from manyfit.data.stream_reading import Epoch, as_shard

log = logging.getLogger("manyfit")
PATIENCE = 60.0
"""The time limit for counting the rows of an iterable, which may be infinite."""
FIRST = 2_000
"""The number of rows of an iterable that are compared with those of another split."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
COMPARED = 8
"""The number of rows of a shard that are compared with those of the other shards."""


class IterableSource:
    """Rows that can only be read from the beginning: an iterable, or a function that returns a generator.

    Each epoch reads it again. Starting in the middle reads and discards the rows before. The random numbers
    that the iterable draws for a batch depend only on the seed, the epoch and the step.

    For training, rows can be shuffled in a buffer, and read in shards, each of which yields a batch in turn.
    The iterable finds its shard by torch's `get_worker_info`, or the function takes `(shard, shards)`. The
    number of workers that read the shards changes nothing.
    """

    def __init__(
        self,
        rows: Iterable[Any] | Callable[[], Iterable[Any]],
        count: int | None = None,
        ids: Sequence[object] | None = None,
        workers: int = 0,
        shards: int = 1,
        shuffle_buffer: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.rows = rows
        self.workers = workers
        self.shards = shards
        self.shuffle_buffer = shuffle_buffer
        self.drop_last = drop_last
        if isinstance(rows, Iterator):
            raise UsageError(
                "an iterator can be read only once; pass a function that returns one, or an iterable"
            )
        self.count = count
        """The number of rows in an epoch; None if it is not given and not counted yet."""
        self.given_ids = check_ids(ids, len(self)) if ids is not None else None
        self._is_proven = False
        self._are_distinct = shards == 1
        self._collate: Callable[[list[Any]], Any] | None = None

    def __len__(self) -> int:
        if self.count is None:
            self.count = self._count()
        return self.count

    def with_collate(self, collate: Callable[[list[Any]], Any]) -> IterableSource:
        """Return the same rows, collated by a function."""
        found = copy.copy(self)
        found._collate = collate
        return found

    def arrange(self, count: int | None, shards: int, shuffle_buffer: int, drop_last: bool) -> IterableSource:
        """Return the same rows with other settings; those that this source has by itself remain."""
        found = copy.copy(self)
        found.count = self.count if count is None else count
        found.shards, found.shuffle_buffer = max(shards, self.shards), shuffle_buffer or self.shuffle_buffer
        found.drop_last = drop_last or self.drop_last
        found._are_distinct = found.shards == 1
        return found

    def steps(self, order: Order) -> int:
        """Return the number of batches in an epoch."""
        drop = order.drop_remainder or (self.drop_last and order.seed is not None)
        return replace(order, drop_remainder=drop).steps(len(self))

    def _make_batch(self, items: list[Any]) -> Batch:
        index = range(len(items))
        if self._collate is None:
            return collate([(item, 0) for item in items], index)
        return as_batch(self._collate(items), np.asarray(index, dtype=np.int64))

    @property
    def is_stream(self) -> bool:
        """Whether the number of rows is unknown."""
        return self.count is None and not hasattr(self.rows, "__len__")

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, epoch after epoch."""
        steps = self.steps(order)
        if not steps:
            return
        epoch, skipped = divmod(start, steps)
        if skipped:
            log.warning(
                "reading and discarding %d batches: the data can only be read from the beginning", skipped
            )
        is_training = order.seed is not None
        if is_training:
            self._compare_shards()
            if self.workers > self.shards:
                log.warning(
                    "workers: %d, but the number of shards is %d: no more workers than that read it",
                    self.workers,
                    self.shards,
                )
        for number in itertools.count(epoch) if order.epochs is None else range(epoch, order.epochs):
            yield from Epoch(
                self._open,
                self._make_batch,
                number,
                order.seed or 0,
                min(order.count(len(self)), steps * order.batch_size),
                order.batch_size,
                steps,
                skipped if number == epoch else 0,
                self.shards if is_training else 1,
                self.shuffle_buffer if is_training else 0,
            ).read(self.workers)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows; their positions by default."""
        return (
            [str(row) for row in index] if self.given_ids is None else [self.given_ids[row] for row in index]
        )

    def prove(self) -> None:
        """Raise unless every evaluation yields the rows in the same order, by which IDs are assigned.

        Without given IDs, an order that is determined by the seed is sufficient.
        """
        if self._is_proven:
            return
        second = 0 if self.given_ids is None else 1
        passes = []
        for number in (0, second):
            with own_randomness():
                rows = itertools.islice(self._pass(0, number), min(len(self), FIRST))
                seed_for(derive(0, "proof", number))
                passes.append([hash_row(drop_weight(row)) for row in rows])
        known, again = passes
        moved = [b for a, b in itertools.zip_longest(known, again) if a != b]
        if second:  # rows whose contents are random do not show that the order changed
            moved = [row for row in moved if row in set(known)]
        if moved:
            raise UsageError(
                f"{len(moved)} of {len(known)} rows of the iterable change or move to another position when "
                "it is read again, so IDs cannot be assigned: it must not shuffle for validation and test"
            )
        self._is_proven = True

    def contents(self, most: int) -> Contents:
        """Yield the contents of the first rows, as in the first epoch."""
        with own_randomness():
            found = list(itertools.islice(self._pass(0, 0), min(most, len(self), FIRST)))
        for row, item in enumerate(found):
            yield row, hash_row(drop_weight(item))

    def fingerprint(self) -> str:
        """Return the iterable's own `fingerprint()`, else a hash of its length and its first rows."""
        own = getattr(self.rows, "fingerprint", None)
        if callable(own):
            return str(own())
        digest = hashlib.sha256(f"{len(self)}".encode())
        with own_randomness():
            for item in itertools.islice(self._pass(0, 0), SAMPLED):
                update(digest, item)
        digest.update("\x1f".join(self.given_ids or ()).encode())
        if self.shards > 1 or self.shuffle_buffer:
            digest.update(f"shards {self.shards}, buffer {self.shuffle_buffer}".encode())
        return digest.hexdigest()

    def _open(self, number: int, shard: int, shards: int) -> Iterable[Any]:
        """Return the rows of a shard in some epoch."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(number)
        if not callable(self.rows):
            return self.rows
        make: Callable[..., Iterable[Any]] = self.rows
        return make(shard, shards) if self._takes_shard() else make()

    def _takes_shard(self) -> bool:
        try:
            parameters = inspect.signature(self.rows).parameters.values()  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False  # a callable without a signature
        return sum(each.default is each.empty and each.kind in POSITIONAL for each in parameters) == 2

    def _pass(self, seed: int | None, number: int) -> Iterator[Any]:
        with own_randomness(), as_shard(0, 1):
            seed_for(derive(seed or 0, "pass", number))
            return iter(self._open(number, 0, 1))

    def _compare_shards(self) -> None:
        """Raise if two shards begin with the same rows: the stream does not divide itself."""
        if self._are_distinct:
            return
        seen: dict[Any, int] = {}
        epoch = Epoch(self._open, self._make_batch, 0, 0, COMPARED, COMPARED, 1, shards=self.shards)
        for shard in range(self.shards):
            rows = epoch.read_first(shard, COMPARED)
            found = tuple(hash_row(drop_weight(row)) for row in rows)
            if found and found in seen:
                raise UsageError(
                    f"shards {seen[found]} and {shard} of the stream begin with the same rows and would "
                    "read them twice: a stream that is read in shards must divide its rows by torch's "
                    "get_worker_info(), or be a function of (shard, shards)"
                )
            seen[found] = shard
        self._are_distinct = True

    def _count(self) -> int:
        try:
            return len(self.rows)  # type: ignore[arg-type]
        except TypeError:
            log.warning("reading an iterable once to count its rows because it has no length")
        ends = time.monotonic() + PATIENCE
        with own_randomness():
            found = 0
            for _ in self._pass(0, 0):
                found += 1
                if time.monotonic() > ends:
                    raise UsageError(
                        f"an iterable without a length has not ended after {found:,} rows: set the number of "
                        "rows in an epoch, IterableSource(rows, count=…), or, for training, train.steps"
                    )
        return found
