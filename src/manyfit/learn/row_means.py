"""Means over rows, for learners whose per-row values are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class RowMeans:
    """The mean over rows. Rows without a value are skipped, except for the loss, where NaN propagates."""

    def __init__(self, name: str) -> None:
        self._is_loss = name == "loss"
        self._sums: list[Any] = []
        self._counts: list[Any] = []

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add the values of a batch, of shape (n, rows)."""
        known = np.ones(values.shape, dtype=bool) if self._is_loss else ~np.isnan(values)
        self._sums.append(np.where(known, values, 0.0).sum(axis=1))
        self._counts.append(known.sum(axis=1))

    def mean(self) -> npt.NDArray[np.float64]:
        """Return the mean of each run."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.sum(self._sums, axis=0) / np.sum(self._counts, axis=0))
