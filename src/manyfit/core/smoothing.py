"""Moving averages of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence


def smooth_values(values: Sequence[float], weight: float) -> list[float]:
    """Return an exponential moving average without the bias towards its start; NaN is skipped.

    >>> smooth_values([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    total = norm = 0.0
    found = []
    for value in values:
        if math.isfinite(value):
            total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
        found.append(total / norm if norm else value)
    return found
