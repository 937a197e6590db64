"""The input of a stopper, and the decisions that it can return."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.tracebacks import user_frame
from manyfit.study.work.records import PointRecord

MOST_PAUSES: Final = 1_000_000
Standing: TypeAlias = Literal["running", "waiting", "finished", "stopped", "failed"]


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


@dataclass(frozen=True)
class Board:
    """All points of a study."""

    records: Sequence[PointRecord]
    sign: int
    epochs: int
    coming: int = 0
    """Number of points that the sampler has yet to propose."""
    seed: int = 0

    @property
    def points(self) -> Iterator[View]:
        """Every point that the study currently has."""
        return (View(record, self.sign) for record in self.records if record.current)

    def ranked(self, points: Sequence[View], epoch: float = math.inf) -> list[View]:
        """Return the points, best first; ties are broken by name."""
        return sorted(points, key=lambda point: (point.score(epoch), point.id))


@dataclass(frozen=True)
class Go:
    """Train a point until an epoch; None means to the end."""

    point: int
    until: int | None
    reason: str = ""


@dataclass(frozen=True)
class Stop:
    """Stop a point early."""

    point: int
    reason: str


@dataclass(frozen=True)
class Add:
    """Add a point; `weights` is the number of the point whose weights it starts from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    weights: int | None = None
    reason: str = ""


Decision: TypeAlias = Go | Stop | Add


class Stopper(Protocol):
    """Decides which points continue. It is called repeatedly, and must return the same for the same board."""

    def pauses(self, epochs: int) -> Sequence[int]:
        """Return the epochs after which every point waits for a decision."""
        ...

    def decide(self, board: Board) -> Sequence[Decision]:
        """Decide about waiting points. A point without a decision ends at its pause."""
        ...


def next_pause(stopper: Stopper | None, epoch: float, epochs: int) -> int | None:
    """Return the next epoch at which a point pauses; None if it trains to the end."""
    if stopper is None:
        return None
    return next((pause for pause in sorted(pauses_of(stopper, epochs)) if epoch < pause < epochs), None)


def pauses_of(stopper: Stopper, epochs: int) -> list[int]:
    """Return the pauses of a stopper, checked, because it may be the user's."""
    name = f"{type(stopper).__name__}.pauses"
    try:
        found = list(itertools.islice(stopper.pauses(epochs), MOST_PAUSES + 1))
    except Exception as error:
        where = user_frame(error)
        raise ComponentFailed(f"{name} failed: {type(error).__name__}: {error}\n  at {where}") from error
    if len(found) > MOST_PAUSES or not all(isinstance(pause, int) for pause in found):
        raise UsageError(f"{name} must return a sequence of integers, not {found[:3]!r:.60} …")
    return found


def decisions_of(stopper: Stopper, board: Board) -> list[Decision]:
    """Return the decisions of a stopper, checked, because it may be the user's."""
    name = f"{type(stopper).__name__}.decide"
    try:
        found = list(stopper.decide(board))
    except Exception as error:
        where = user_frame(error)
        raise ComponentFailed(f"{name} failed: {type(error).__name__}: {error}\n  at {where}") from error
    if odd := [decision for decision in found if not isinstance(decision, Go | Stop | Add)]:
        raise UsageError(f"{name} must return decisions (Go, Stop, Add), not {odd[0]!r:.60}")
    return found
