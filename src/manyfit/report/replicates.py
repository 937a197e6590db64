"""What replicates say: a mean with its interval, and whether one point is better than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds; `half` is half of its interval by Student's t, and unknown for a single seed."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half:.2g}" if self.half is not None else f"{self.mean:.4g}"


def mean_of(values: Sequence[float], level: float = 0.95) -> Mean:
    """The mean of replicates, and how sure it is."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Mean(mean, None, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Mean(mean, t_quantile((1 + level) / 2, count - 1) * deviation / math.sqrt(count), count)


@dataclass(frozen=True, slots=True)
class Paired:
    """By how much the second of two points is worse than the first on the same seeds, if less is better."""

    difference: Mean
    p: float | None
    """How likely a difference this large is by chance, if there is none; unknown for a single seed."""

    @property
    def verdict(self) -> str:
        """What may be said: "better" only with replicates, an interval and a test behind it."""
        if self.p is None and self.difference.count > 1:
            same = abs(self.difference.mean) < 1e-12
            return (
                "the same on every seed"
                if same
                else (f"{self.difference.mean:.4g} better on every seed alike, which no test can judge")
            )
        if self.p is None:
            return "too few seeds to show which is better; raise search.seeds"
        shown = f"{self.difference} on {self.difference.count} seeds (paired t-test, p = {self.p:.2g})"
        if self.p < 0.05 and self.difference.mean > 0:
            return f"better, by {shown}"
        return f"not shown to be better: they differ by {shown}"


def compare_seeds(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """Compare two points seed by seed; None if they share none."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    found = [second[seed] - first[seed] for seed in seeds]
    difference = mean_of(found)
    if len(found) < 2:
        return Paired(difference, None)
    spread = math.sqrt(math.fsum((value - difference.mean) ** 2 for value in found) / (len(found) - 1))
    scale = max(map(abs, (*first.values(), *second.values())))
    if spread <= 1e-9 * scale:  # the same for every seed says nothing about chance
        return Paired(difference, None)
    t = abs(difference.mean) / (spread / math.sqrt(len(found)))
    return Paired(difference, 2 * (1 - t_probability(t, len(found) - 1)))


def t_probability(t: float, degrees: int) -> float:
    """The distribution function of Student's t, by its closed form for whole degrees of freedom.

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
    """The value below which Student's t lies with some probability above one half."""
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2
