"""Class weights: rows weighted by the class they belong to."""

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
    """A source whose row weights are multiplied by the weight of their class.

    A class is a number, or the position of the largest number in a row; classes without a weight have 1.
    """

    source: Any
    weights: Mapping[int, float]
    is_around: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.source)

    def steps(self, order: Order) -> int:
        """Return the number of batches in an epoch."""
        return steps_of(self.source, order)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of the source with weights."""
        for batch in self.source.batches(order, start):
            own = self.of(np.asarray(batch.target))
            given = 1.0 if batch.weight is None else np.asarray(batch.weight)
            yield replace(batch, weight=(own * given).astype(np.float32))

    def of(self, target: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the class weight of each row."""
        if target.ndim > 1:
            target = target.argmax(axis=-1) if target.shape[-1] != 1 else target[..., 0]
        classes = np.round(target).astype(np.int64)
        return np.array([float(self.weights.get(int(c), 1.0)) for c in classes])

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows."""
        found: list[str] = self.source.ids(index)
        return found

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows."""
        return contents_of(self.source, most)

    def fingerprint(self) -> str:
        """Return the fingerprint of the source: weights belong to the model, not to the data."""
        return self.derive_fingerprint(self.source.fingerprint())

    def derive_fingerprint(self, whole: str) -> str:
        """Return the fingerprint of the whole source unchanged."""
        return str(whole)
