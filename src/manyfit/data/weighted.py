"""Rows that count more or less by the class that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from manyfit.data.batch import Batch
from manyfit.data.order import Order, steps_of
from manyfit.data.overlap import Contents, contents_of


@dataclass(frozen=True)
class ClassWeighted:
    """Another source, with a weight for each class on top of the weights of its rows.

    A class is a number, or the place of the largest number in a row; one that has no weight counts once.
    """

    source: Any
    weights: Mapping[int, float]
    is_around: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.source)

    def steps(self, order: Order) -> int:
        """Batches in an epoch."""
        return steps_of(self.source, order)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of the source, weighted."""
        for batch in self.source.batches(order, start):
            own = self.of(np.asarray(batch.target))
            given = 1.0 if batch.weight is None else np.asarray(batch.weight)
            yield replace(batch, weight=(own * given).astype(np.float32))

    def of(self, target: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The weight of each row."""
        if target.ndim > 1:
            target = target.argmax(axis=-1) if target.shape[-1] != 1 else target[..., 0]
        classes = np.round(target).astype(np.int64)
        return np.array([float(self.weights.get(int(c), 1.0)) for c in classes])

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows."""
        found: list[str] = self.source.ids(index)
        return found

    def contents(self, most: int) -> Contents:
        """What the rows hold."""
        return contents_of(self.source, most)

    def fingerprint(self) -> str:
        """The content of the source: weights belong to the model."""
        return self.derive_fingerprint(self.source.fingerprint())

    def derive_fingerprint(self, whole: str) -> str:
        """Return the fingerprint that follows from that of the whole source: the same."""
        return str(whole)
