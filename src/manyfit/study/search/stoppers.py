"""Stoppers: successive halving, ASHA, the median rule, patience."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

from manyfit.core.errors import UsageError
from manyfit.core.names import pluralize
from manyfit.study.search.decisions import Board, Decision, Go, Stop
from manyfit.study.search.standings import View


def rungs(first: int, factor: int, epochs: int) -> list[int]:
    """Return the epochs at which points are compared: first, first · factor, first · factor² …

    >>> rungs(1, 3, 27)
    [1, 3, 9]
    """
    if first < 1 or factor < 2:
        raise UsageError(f"first must be at least 1 and factor at least 2, not {first} and {factor}")
    found = [first]
    while found[-1] * factor < epochs:
        found.append(found[-1] * factor)
    return [rung for rung in found if rung < epochs]


class Halving:
    """Synchronous successive halving: when all points have reached a rung, the best of them continue.

    The result does not depend on the order in which points are trained.
    """

    def __init__(self, first: int = 1, factor: int = 3) -> None:
        self.first = first
        self.factor = factor
        rungs(first, factor, first + 1)

    def pauses(self, epochs: int) -> Sequence[int]:
        """Return the rungs."""
        return rungs(self.first, self.factor, epochs)

    def decide(self, board: Board) -> Sequence[Decision]:
        """Decide about the lowest rung that all points have reached and at which some are waiting."""
        if board.coming:
            return []
        taking_part = list(board.points)
        pauses = [*self.pauses(board.epochs), None]
        for rung, after in itertools.pairwise(pauses):
            assert rung is not None
            if any(p.state == "running" and p.epoch < rung for p in taking_part):
                return []
            there = [p for p in taking_part if p.state != "failed" and p.epoch >= rung]
            best = board.ranked(there, rung)[: max(1, len(taking_part) // self.factor)]
            found = list(self._verdicts(there, best, rung, after, len(taking_part)))
            if found:
                return found
            taking_part = best
        return []

    def _verdicts(
        self, there: list[View], best: list[View], rung: int, after: int | None, count: int
    ) -> Iterator[Decision]:
        chosen = {point.number for point in best}
        among = f"among the best {len(best)} of {count} after {pluralize(rung, 'epoch')}"
        for point in there:
            here = point.record.granted == rung
            if point.number in chosen and here and point.state in ("waiting", "stopped"):
                yield Go(point.number, after, among)
            elif point.number not in chosen and here and point.state == "waiting":
                yield Stop(point.number, f"not {among}")


class Asha:
    """Asynchronous successive halving: a point continues as soon as it is among the best at its rung."""

    def __init__(self, first: int = 1, factor: int = 3) -> None:
        self.first = first
        self.factor = factor
        rungs(first, factor, first + 1)

    def pauses(self, epochs: int) -> Sequence[int]:
        """Return the rungs."""
        return rungs(self.first, self.factor, epochs)

    def decide(self, board: Board) -> Sequence[Decision]:
        """Continue points, those at the highest rung first."""
        pauses = [*self.pauses(board.epochs), None]
        found: list[Decision] = []
        for rung, after in reversed(list(itertools.pairwise(pauses))):
            assert rung is not None
            there = board.at(rung)
            best = len(there.keys) // self.factor
            rank = f"among the best {best} of {len(there.keys)} after {pluralize(rung, 'epoch')}"
            found += [Go(number, after, rank) for number in there.best(best)]
        return found


class Median:
    """Median rule: stops a point that is worse than the median of the others at the same epoch."""

    def __init__(self, after: int = 1, every: int = 1, least: int = 5) -> None:
        self.after = after
        self.every = every
        self.least = least
        if min(after, every, least) < 1:
            raise UsageError("after, every and least must be at least 1")

    def pauses(self, epochs: int) -> Sequence[int]:
        """Return every `every`-th epoch, from `after` on."""
        return range(self.after, epochs, self.every)

    def decide(self, board: Board) -> Sequence[Decision]:
        """Compare each waiting point with those that have reached the same epoch."""
        found: list[Decision] = []
        for point in board.waiting:
            at = point.record.granted
            assert at is not None
            scores = board.at(at).scores
            own, count = point.score(at), len(scores) - 1
            if count >= self.least and own > (middle := median_without(scores, own)):
                value, after = board.sign * own, pluralize(at, "epoch")
                than = f"the median of {count} others, {board.sign * middle:.6g}"
                found.append(Stop(point.number, f"{value:.6g} after {after} is worse than {than}"))
            else:
                following = at + self.every
                found.append(Go(point.number, following if following < board.epochs else None))
        return found


def median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted numbers without one of them.

    >>> median_without([1.0, 2.0, 3.0, 9.0], 9.0)
    2.0
    """
    place, count = bisect.bisect_left(ordered, value), len(ordered) - 1
    low, high = (i if i < place else i + 1 for i in ((count - 1) // 2, count // 2))
    return (ordered[low] + ordered[high]) / 2


class Patience:
    """Patience: stops a point that has not improved for a number of epochs."""

    def __init__(self, epochs: int = 5, min_delta: float = 0.0) -> None:
        self.epochs = epochs
        self.min_delta = min_delta
        if epochs < 1 or min_delta < 0:
            raise UsageError("epochs must be at least 1, and min_delta must not be negative")

    def pauses(self, epochs: int) -> Sequence[int]:
        """Return every epoch."""
        return range(1, epochs)

    def decide(self, board: Board) -> Sequence[Decision]:
        """Decide about each waiting point on its own."""
        found: list[Decision] = []
        for point in board.waiting:
            at = point.record.granted
            assert at is not None
            before = at - self.epochs
            if before >= 1 and not point.score(at) < point.score(before) - self.min_delta:
                value = board.sign * point.score(at)
                found.append(
                    Stop(point.number, f"not better than {value:.6g} for {pluralize(self.epochs, 'epoch')}")
                )
            else:
                found.append(Go(point.number, at + 1 if at + 1 < board.epochs else None))
        return found
