"""Moving averages of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence


class MovingAverage:
    """An exponential moving average without the bias towards its start."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._total = self._norm = 0.0

    def add(self, value: float) -> float:
        """Add a value, unless it is NaN or infinite, and return the average."""
        if math.isfinite(value):
            self._total = self._weight * self._total + (1 - self._weight) * value
            self._norm = self._weight * self._norm + (1 - self._weight)
        return self._total / self._norm if self._norm else value


def smooth_values(values: Sequence[float], weight: float) -> list[float]:
    """Return an exponential moving average without the bias towards its start; NaN is skipped.

    >>> smooth_values([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    average = MovingAverage(weight)
    return [average.add(value) for value in values]
