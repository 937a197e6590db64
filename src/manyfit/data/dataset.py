"""Map-style data sets as sources, with reproducible random numbers."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.batch import Batch
from manyfit.data.collate import BatchFailure, collate, try_collate, unwrap
from manyfit.data.order import Order, steps_of
from manyfit.data.overlap import Contents, contents_of, spread
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.data.resident import Resident, find_resident
from manyfit.data.row_hash import drop_weight, hash_row, update
from manyfit.data.workers import read_in_workers

log = logging.getLogger("manyfit")
SAMPLED = 64
"""The number of rows that are read for a fingerprint if the data set has none of its own."""


class DatasetSource:
    """A map-style data set: `len(dataset)` rows, each `dataset[i]` an input, `(input, target)`,
    `(input, target, weight)` or a dict.

    The random numbers that a row draws (augmentation) depend only on the seed, the epoch and the row, not on
    the number of workers or on restarts.
    """

    takes_shards = True

    def __init__(self, dataset: Any, workers: int = 0, ids: Sequence[object] | None = None) -> None:
        self.dataset = dataset
        self.workers = workers
        own = getattr(dataset, "ids", None) if ids is None else ids
        self.given_ids = check_ids(own() if callable(own) else own, len(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def can_be_joined(self) -> bool:
        """Whether its rows can be divided anew: it reads them in the order of the run."""
        return type(self) is DatasetSource

    def over(self, dataset: Any) -> DatasetSource:
        """Return a source of the same settings over another data set."""
        return DatasetSource(dataset, self.workers)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, epoch after epoch."""
        rows = Rows(self.dataset, order.seed or 0)
        plan, make = self.plan(order, start), functools.partial(try_collate, make=self.make_batch)
        if not self.workers:
            for keys in plan:
                with own_randomness():
                    batch = make([rows[key] for key in keys])
                yield unwrap(batch)
        else:
            batches = read_in_workers(rows, self.workers, batch_sampler=plan, collate_fn=make)
            for batch in batches:
                yield unwrap(batch)

    def plan(self, order: Order, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the (epoch, row) keys of each step from `start`."""
        return _walk(order, len(self), start)

    def make_batch(self, items: list[tuple[Any, int]], index: list[int]) -> Batch:
        """Collate rows into a batch."""
        return collate(items, index)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows; row numbers by default."""
        return (
            [str(row) for row in index] if self.given_ids is None else [self.given_ids[row] for row in index]
        )

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows, as in the first epoch."""
        rows = Rows(self.dataset, 0)
        for row in spread(len(self), most).tolist():
            with own_randomness():
                item = rows[(0, row)][0]
            if isinstance(item, BatchFailure):
                return  # the next regular read raises the error
            yield row, hash_row(drop_weight(item))

    def fingerprint(self) -> str:
        """Return the data set's own `fingerprint()`, else a hash of its length and of rows spread over it."""
        own = getattr(self.dataset, "fingerprint", None)
        if callable(own):
            return str(own())
        rows, total = Rows(self.dataset, 0), len(self)
        digest = hashlib.sha256(f"{total}".encode())
        with own_randomness():
            for row in sorted({round(i * (total - 1) / max(1, SAMPLED - 1)) for i in range(SAMPLED)}):
                update(digest, rows[(0, row)][0] if total else None)
        digest.update("\x1f".join(self.given_ids or ()).encode())
        return digest.hexdigest()


class Rows:
    """A data set indexed by (epoch, row): the random generators are seeded before each row."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, int]:
        epoch, row = key
        seed_for(derive(self.seed, "row", epoch, row))
        try:
            return self.dataset[row], row
        except Exception as error:  # raised in the training process, without the traceback of a worker
            return BatchFailure.of(f"row {row}", error), row


class Limited:
    """Some rows of another source: a random sample by seed, or the first ones."""

    is_around = True

    def __init__(self, source: Any, rows: int, seed: int | None = None) -> None:
        self.source = source
        self.rows = min(rows, len(source))
        self.seed = seed

    def __len__(self) -> int:
        return self.rows

    def steps(self, order: Order) -> int:
        """Return the number of batches in an epoch."""
        return steps_of(self.source, replace(order, limit=order.count(self.rows)))

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches of these rows from step `start`, epoch after epoch."""
        return iter(self.source.batches(self._limit(order), start))

    def resident(self, order: Order) -> Resident | str:
        """Return the rows of the whole source, and the order of these rows."""
        return find_resident(self.source, self._limit(order))

    def _limit(self, order: Order) -> Order:
        return replace(order, limit=order.count(self.rows), sample=self.seed)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows."""
        found: list[str] = self.source.ids(index)
        return found

    def contents(self, most: int) -> Contents:
        """Yield the contents of rows of the whole source."""
        return contents_of(self.source, most)

    @property
    def remade_by(self) -> str:
        """The name of the component that may drop or multiply rows of the source."""
        return getattr(self.source, "remade_by", "")

    def prove(self) -> None:
        """Raise unless the source has a reproducible order."""
        if hasattr(self.source, "prove"):
            self.source.prove()

    def fingerprint(self) -> str:
        """Return the fingerprint of the whole source, and how much of it is used."""
        return self.derive_fingerprint(self.source.fingerprint())

    def derive_fingerprint(self, whole: str) -> str:
        """Derive the fingerprint from that of the whole source."""
        return f"{whole}:{self.rows}" + (":sampled" if self.seed is not None else "")


def _walk(order: Order, rows: int, start: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the (epoch, row) keys of each step from `start`."""
    per_epoch = order.steps(rows)
    for step, index in enumerate(order.walk(rows, start), start):
        yield [(step // per_epoch, int(row)) for row in index]


def check_ids(ids: Sequence[object] | None, rows: int) -> list[str] | None:
    """Return the IDs as text; raise unless there is one for each row and all are unique."""
    if ids is None:
        return None
    found = [id_.decode(errors="replace") if isinstance(id_, bytes) else str(id_) for id_ in ids]
    if len(found) != rows:
        raise UsageError(f"a source must have one ID per row, but there are {len(found)} IDs for {rows} rows")
    if len(set(found)) != rows:
        raise UsageError("the IDs of a source must be unique, but some are repeated")
    return found
