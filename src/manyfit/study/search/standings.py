"""The standings of points, kept up to date from changes, so that a decision does not look at every point."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from manyfit.study.work.records import PointRecord

Standing: TypeAlias = Literal["running", "waiting", "finished", "stopped", "failed"]
Key: TypeAlias = tuple[float, str, int]
"""Score, name and number of a point: lower is better, and names break ties."""


@dataclass(frozen=True)
class View:
    """A point as a stopper sees it.

    Its score is the mean over its seeds of the best value so far. Lower is better, whatever the direction of
    the objective.
    """

    record: PointRecord
    sign: int

    @property
    def number(self) -> int:
        """The number by which decisions refer to the point."""
        return self.record.number

    @property
    def id(self) -> str:
        """The name of the point, which breaks ties."""
        return self.record.id

    @property
    def values(self) -> Mapping[str, Any]:
        """The values that the search space sets."""
        return self.record.values

    @property
    def epoch(self) -> float:
        """Epochs that all of its seeds have completed; infinite when the point has finished."""
        return self.record.epoch

    @property
    def state(self) -> Standing:
        """The state of the point; `waiting` means that it has reached its pause and a decision is due."""
        point = self.record
        if point.state != "open":
            return point.state
        if any(trial.state in ("failed", "infeasible") for trial in point.trials):
            return "failed"
        if point.trials and all(trial.over for trial in point.trials):
            return "finished"
        reached = point.granted is not None and point.epoch >= point.granted
        return "waiting" if reached and all(t.state != "running" for t in point.trials) else "running"

    def score(self, epoch: float = math.inf) -> float:
        """Return the score up to an epoch; infinite if it is unknown."""
        value = self.record.value(self.sign, epoch)
        return math.inf if value is None or math.isnan(value) else self.sign * value


class Rung:
    """The points that have reached an epoch and have not failed, best first."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.keys: list[Key] = []
        """Every point that is there."""
        self.scores: list[float] = []
        """Their scores."""
        self.held: list[Key] = []
        """Those that may continue from here: they wait for a decision, or were stopped here."""
        self._known: dict[int, Key] = {}

    def update(self, view: View, state: Standing) -> None:
        """Put a point in its place, or take it away."""
        number = view.number
        before = self._known.pop(number, None)
        if before is not None:
            del self.keys[bisect.bisect_left(self.keys, before)]
            del self.scores[bisect.bisect_left(self.scores, before[0])]
            place = bisect.bisect_left(self.held, before)
            if place < len(self.held) and self.held[place] == before:
                del self.held[place]
        if not view.record.current or state == "failed" or view.epoch < self.epoch:
            return
        key = self._known[number] = (view.score(self.epoch), view.id, number)
        bisect.insort(self.keys, key)
        bisect.insort(self.scores, key[0])
        if view.record.granted == self.epoch and state in ("waiting", "stopped"):
            bisect.insort(self.held, key)

    def best(self, count: int) -> Iterator[int]:
        """Yield those of `held` that are among the best `count` points, best first."""
        for key in list(self.held):
            if bisect.bisect_left(self.keys, key) >= count:
                return
            yield key[2]


class Standings:
    """The standings at each epoch that was asked for."""

    def __init__(self, records: Sequence[PointRecord], sign: int) -> None:
        self._records = records
        self._sign = sign
        self._rungs: dict[int, Rung] = {}
        self._waiting: set[int] = set()
        self._stopped: set[int] = set()
        self.update(range(len(records)))

    def update(self, changed: Collection[int]) -> None:
        """Take note of points that have changed, by number."""
        for number in changed:
            view = View(self._records[number], self._sign)
            state = view.state
            for numbers, wanted in ((self._waiting, "waiting"), (self._stopped, "stopped")):
                is_in = state == wanted and view.record.current
                numbers.add(number) if is_in else numbers.discard(number)
            for rung in self._rungs.values():
                rung.update(view, state)

    def at(self, epoch: int) -> Rung:
        """Return the standings at an epoch."""
        rung = self._rungs.get(epoch)
        if rung is None:
            rung = self._rungs[epoch] = Rung(epoch)
            for record in self._records:
                view = View(record, self._sign)
                rung.update(view, view.state)
        return rung

    @property
    def waiting(self) -> list[View]:
        """The points that wait for a decision, by number."""
        return [View(self._records[number], self._sign) for number in sorted(self._waiting)]

    @property
    def stopped(self) -> int:
        """The number of stopped points."""
        return len(self._stopped)
