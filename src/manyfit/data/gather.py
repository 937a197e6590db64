"""Sources that read the rows of a whole batch at once from a file, also in worker processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from manyfit.data.batch import Batch
from manyfit.data.collate import BatchFailure, unwrap
from manyfit.data.dataset import check_ids
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.row_hash import hash_row
from manyfit.data.splitting import RowNumbers
from manyfit.data.workers import read_in_workers


class RowReader(Protocol):
    """Reads rows by number. It opens its file in each process, so that workers do not share a handle."""

    def __len__(self) -> int:
        """Return the number of rows in the file."""
        ...

    def read(self, rows: RowNumbers) -> tuple[Any, Any]:
        """Return the inputs and the target of some rows; the target may be None."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the contents."""
        ...


class GatherSource:
    """Some rows of a file. A batch is one read."""

    takes_shards = True

    def __init__(
        self, reader: RowReader, rows: RowNumbers, ids: Sequence[object] | None = None, workers: int = 0
    ) -> None:
        self.reader = reader
        self.rows = rows
        self.workers = workers
        self.given_ids = check_ids(ids, len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, epoch after epoch."""
        plan = order.walk(len(self), start)
        if not self.workers:
            for index in plan:
                yield self.make_batch(index)
            return
        how = {"batch_size": None, "sampler": plan, "collate_fn": _as_it_is}
        for batch in read_in_workers(_Batches(self), self.workers, **how):
            yield unwrap(batch)

    def make_batch(self, index: RowNumbers) -> Batch:
        """Read the rows of one batch."""
        inputs, target = self.reader.read(self.rows[index])
        return Batch(inputs, target, index)

    def ids(self, index: RowNumbers) -> list[str]:
        """Return the IDs of some rows; by default their numbers in the file."""
        if self.given_ids is None:
            return [f"row-{row}" for row in self.rows[index].tolist()]
        return [self.given_ids[row] for row in index]

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows."""
        for row in spread(len(self), min(most, 2_000)).tolist():
            inputs, target = self.reader.read(self.rows[row : row + 1])
            yield row, hash_row((inputs, target))

    def fingerprint(self) -> str:
        """Return the fingerprint of the file, and of the rows that are read."""
        found = hashlib.sha256(self.reader.fingerprint().encode())
        found.update(np.ascontiguousarray(self.rows).data)
        found.update("\x1f".join(self.given_ids or ()).encode())
        return found.hexdigest()


class _Batches:
    """The batches of a source, by their row numbers: what a worker reads."""

    def __init__(self, source: GatherSource) -> None:
        self.source = source

    def __getitem__(self, index: RowNumbers) -> Batch | BatchFailure:
        try:
            return self.source.make_batch(index)
        except Exception as error:  # raised in the training process, without the traceback of a worker
            return BatchFailure.of(f"row {index[0]}", error)


def _as_it_is(value: Any) -> Any:
    return value
