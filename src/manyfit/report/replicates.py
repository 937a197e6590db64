"""Statistics of replicates: a mean with its confidence interval, and a test of two points."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds; `half` is half the width of its t-interval, None for a single seed."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half:.2g}" if self.half is not None else f"{self.mean:.4g}"


def deviation_of(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def error_of(count: int, folds: int | None = None) -> float:
    """Return the standard error of a mean, as a multiple of the standard deviation of its replicates.

    Folds are not independent, since their training rows overlap: the correction of Nadeau and Bengio adds the
    ratio of validation rows to training rows, 1 / (folds - 1).
    """
    return math.sqrt(1 / count + (1 / (folds - 1) if folds else 0.0))


def mean_of(values: Sequence[float], level: float = 0.95, folds: int | None = None) -> Mean:
    """Return the mean of replicates with its confidence interval; `folds` if they are folds."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Mean(mean, None, count)
    factor = t_quantile((1 + level) / 2, count - 1) * error_of(count, folds)
    return Mean(mean, factor * deviation_of(values), count)


def mean_of_winner(
    winner: Sequence[float], others: Sequence[Sequence[float]], level: float = 0.95, folds: int | None = None
) -> Mean:
    """Return the mean of the best of several points, with an interval corrected for choosing it.

    The best point owes its place partly to luck, and with skewed noise the lucky ones also vary less. The
    level is therefore that of an interval for all points at once (Bonferroni), and the deviation at least
    that of all points together.
    """
    found = mean_of(winner, level, folds)
    points = [winner, *others]
    if found.half is None or len(points) < 2:
        return found
    spread = [deviation_of(values) for values in points if len(values) > 1]
    pooled = math.sqrt(math.fsum(each * each for each in spread) / len(spread))
    quantile = t_quantile(1 - (1 - level) / 2 / len(points), found.count - 1)
    return Mean(found.mean, quantile * max(spread[0], pooled) * error_of(found.count, folds), found.count)


@dataclass(frozen=True, slots=True)
class Paired:
    """The paired difference of two points on the same seeds: second minus first, where lower is better."""

    difference: Mean
    p: float | None
    """The p-value of a paired t-test; None for a single seed or equal differences."""
    needed: int | None = None
    """About how many more seeds would show a difference of this size; None if it is shown, or unknown."""
    unit: str = "seeds"
    """What was paired: seeds or folds."""
    is_corrected: bool = False
    """Whether the p-value is corrected for several comparisons."""

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
        test = "paired t-test, Holm-corrected" if self.is_corrected else "paired t-test"
        shown = f"on {self.difference.count} {self.unit} ({test}, p = {self.p:.2g})"
        if self.p < 0.05:
            size = Mean(abs(self.difference.mean), self.difference.half, self.difference.count)
            return f"{'better' if self.difference.mean > 0 else 'worse'}, by {size} {shown}"
        more = f"; {describe_need(self.needed)}" if self.needed else ""
        return f"not shown to be better: they differ by {self.difference} {shown}{more}"


MOST_SEEDS: Final = 1000


def describe_need(count: int) -> str:
    """Say how many more seeds would be needed.

    >>> describe_need(4)
    'about 4 more seeds would be needed to show a difference of this size'
    """
    if count > MOST_SEEDS:
        return f"more than {MOST_SEEDS:,} seeds would be needed to show a difference of this size"
    seeds = "1 more seed" if count == 1 else f"{count} more seeds"
    return f"about {seeds} would be needed to show a difference of this size"


def count_needed(difference: float, deviation: float, count: int) -> int:
    """Return how many more seeds a paired test needs to show a difference with a power of 80%.

    >>> count_needed(1.0, 1.0, 3)
    7
    """
    if abs(difference) * math.sqrt(MOST_SEEDS) < 2.8 * deviation:
        return MOST_SEEDS + 1
    normal = math.ceil((2.8 * deviation / abs(difference)) ** 2)  # without the correction for few seeds
    if normal > 30:
        return max(1, normal + 2 - count)
    total = count + 1
    while total <= MOST_SEEDS:
        wanted = t_quantile(0.975, total - 1) + t_quantile(0.8, total - 1)
        if abs(difference) * math.sqrt(total) >= wanted * deviation:
            break
        total += 1
    return total - count


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for being several, by the step-down method of Holm.

    >>> holm([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    found: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        found[i] = highest
    return found


def compare_seeds(
    first: Mapping[int, float], second: Mapping[int, float], folds: int | None = None
) -> Paired | None:
    """Compare two points seed by seed; return None if they have no seed in common."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    found = [second[seed] - first[seed] for seed in seeds]
    difference = mean_of(found, folds=folds)
    if len(found) < 2:
        return Paired(difference, None)
    spread = math.sqrt(math.fsum((value - difference.mean) ** 2 for value in found) / (len(found) - 1))
    scale = max(map(abs, (*first.values(), *second.values())))
    if spread <= 1e-9 * scale:  # equal differences: the variance is unknown
        return Paired(difference, None)
    t = abs(difference.mean) / (spread * error_of(len(found), folds))
    p = 2 * (1 - t_probability(t, len(found) - 1))
    is_open = p >= 0.05 and folds is None and abs(difference.mean) > 1e-3 * spread
    needed = count_needed(difference.mean, spread, len(found)) if is_open else None
    return Paired(difference, p, needed, "seeds" if folds is None else "folds")


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


@functools.lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t for a probability above 0.5."""
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2
