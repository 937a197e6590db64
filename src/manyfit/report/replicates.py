"""Statistics of replicates: a mean with its confidence interval, and a test of two points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds; `half` is half the width of its t-interval, None for a single seed."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half:.2g}" if self.half is not None else f"{self.mean:.4g}"


def mean_of(values: Sequence[float], level: float = 0.95) -> Mean:
    """Return the mean of replicates with its confidence interval."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Mean(mean, None, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Mean(mean, t_quantile((1 + level) / 2, count - 1) * deviation / math.sqrt(count), count)


@dataclass(frozen=True, slots=True)
class Paired:
    """The paired difference of two points on the same seeds: second minus first, where lower is better."""

    difference: Mean
    p: float | None
    """The p-value of a paired t-test; None for a single seed or equal differences."""

    @property
    def verdict(self) -> str:
        """The conclusion: "better" only if replicates and a test support it."""
        if self.p is None and self.difference.count > 1:
            mean = self.difference.mean
            if abs(mean) < 1e-12:
                return "identical on every seed"
            how = "better" if mean > 0 else "worse"
            return f"{abs(mean):.4g} {how} on every seed; without variance, no test is possible"
        if self.p is None:
            return "too few seeds to tell which is better; increase search.seeds"
        shown = f"{self.difference} on {self.difference.count} seeds (paired t-test, p = {self.p:.2g})"
        if self.p < 0.05 and self.difference.mean > 0:
            return f"better, by {shown}"
        return f"not shown to be better: they differ by {shown}"


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """Compare two points seed by seed; return None if they have no seed in common."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    found = [second[seed] - first[seed] for seed in seeds]
    difference = mean_of(found)
    if len(found) < 2:
        return Paired(difference, None)
    spread = math.sqrt(math.fsum((value - difference.mean) ** 2 for value in found) / (len(found) - 1))
    scale = max(map(abs, (*first.values(), *second.values())))
    if spread <= 1e-9 * scale:  # equal differences: the variance is unknown
        return Paired(difference, None)
    t = abs(difference.mean) / (spread / math.sqrt(len(found)))
    return Paired(difference, 2 * (1 - t_probability(t, len(found) - 1)))


def t_probability(t: float, degrees: int) -> float:
    """Return the CDF of Student's t at `t` >= 0, by its closed form for integer degrees of freedom.

    >>> round(t_probability(12.706, 1), 3)
    0.975
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    total, term = 0.0, 1.0
    if degrees % 2:
        term = cosine
        for k in range(1, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        area = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        for k in range(0, degrees, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        area = math.sin(angle) * total
    return 0.5 + area / 2


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t for a probability above 0.5."""
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2
