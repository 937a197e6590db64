"""A split of five components as a data source: training batches by (seed, step), and rows for reports."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.batch import Batch
from manyfit.data.dataset import SAMPLED
from manyfit.data.order import Order
from manyfit.data.overlap import Contents
from manyfit.data.randomness import own_randomness
from manyfit.data.row_hash import hash_row, update
from manyfit.pipeline.generators import METHODS, is_dataset, seed_with_tensorflow
from manyfit.pipeline.report_passes import ReportPasses
from manyfit.pipeline.row_numbers import Lost, id_text
from manyfit.pipeline.training_batches import Feed


@dataclass
class ComponentSource(ReportPasses):
    """The data source of one split. The preprocessor determines the size and number of batches."""

    _is_proven: bool = False

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, epoch after epoch; or every data point once, for a report."""
        if order.epochs is None:
            return Feed(self, order, start)
        if order.epochs != 1 or start:
            raise UsageError("generators can only be read once, from the beginning, or endlessly")
        count = order.count(self._rows)
        return self._by_number(count) if self.split == "test" else self._in_order(count)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of rows: test rows carry theirs, validation rows use the loader's index."""
        if any(int(row) not in self._ids for row in index):
            self._read_ids()
        return [self._ids[int(row)] for row in index]

    def fingerprint(self) -> str:
        """Return the loader's `fingerprint(split)`, or a hash of the count and the first data points."""
        own = getattr(self.loader, "fingerprint", None)
        if callable(own):
            return str(own(self.split))
        digest = hashlib.sha256(f"{len(self)}".encode())
        with own_randomness():
            seed_with_tensorflow(0)
            rows, self._fresh = self._fresh if self._fresh is not None else self.create()[0], None
            rows = rows.take(SAMPLED).as_numpy_iterator() if is_dataset(rows) else rows
            for row in itertools.islice(rows, min(SAMPLED, len(self))):
                update(digest, row)
        return digest.hexdigest()

    def prove(self) -> None:
        """Raise unless the validation split has the reported number of rows in a stable order.

        Its IDs come from the loader's index, so only the order identifies a row.
        """
        if self._is_proven or self.split != "validation" or not len(self):
            return
        first, second = self._digests(0), self._digests(1)
        if len(first) < len(self):
            raise self._count_error(str(len(first) or "none"))
        moved = sum(a != b for a, b in itertools.zip_longest(first[: len(self)], second[: len(self)]))
        if moved:
            raise UsageError(
                f"{type(self.loader).__name__}.{METHODS[self.split]} yields {moved} of {len(self)} data "
                "points with other values or in another place when it is called again, so their IDs are "
                "unknown: it must not shuffle, nor continue where it stopped"
            )
        if first[len(self) :] not in ([], first[:1]):  # it may start over
            raise self._count_error("more")
        try:
            came = [batch.index.astype(np.float64) for batch in self._by_number(len(self))]
            numbers = np.concatenate(came) if came else np.zeros(0)
        except Lost:
            numbers = self._weights(len(self))  # weights are changed: the order is inferred from them
        if len(numbers) != len(self) or (np.diff(numbers) <= 0).any():
            lost = len(self) - len(np.unique(numbers))
            what = f"drops {lost} of {len(self)} data points" if lost > 0 else "changes the order"
            raise UsageError(
                f"{self.remade_by} {what} of the validation split, so their IDs are unknown: it must yield "
                "every data point once, in the original order"
            )
        self._is_proven = True

    def contents(self, most: int) -> Contents:
        """Yield the hashes of the first data points, as the loader yields them."""
        with own_randomness():
            seed_with_tensorflow(0)
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            for number, row in enumerate(itertools.islice(rows, min(most, len(self)))):
                yield number, hash_row(row[:2])

    def _digests(self, number: int) -> list[bytes]:
        """Return a hash of every data point, and of one that may follow the last, under a separate seed."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "proof", self.split, number))
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            return [hash_row(row[:2]) for row in itertools.islice(rows, len(self) + 1)]

    def _read_ids(self) -> None:
        if self.split == "train":
            self._ids = {row: str(row) for row in range(len(self))}
        elif self.split == "validation":
            given = self.call(self.loader, "get_validation_index")
            given = range(len(self)) if given is None else given
            self._check_ids([id_text(id_) for id_ in given], "get_validation_index")
        else:
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            self._check_ids([id_text(row[2]) for row in itertools.islice(rows, len(self))], METHODS["test"])

    def _check_ids(self, ids: list[str], method: str) -> None:
        if len(ids) != len(self):
            name = f"{type(self.loader).__name__}.{method}"
            raise UsageError(f"{name} returns {len(ids)} IDs for {len(self)} data points")
        self._ids = dict(enumerate(ids))
