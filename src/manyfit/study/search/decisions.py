"""What a stopper sees, and what it can ask for."""

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
    """A point as a stopper sees it. A score is the mean over its seeds of the best value so far, and less
    is better, whatever the direction of the objective."""

    record: PointRecord
    sign: int

    @property
    def number(self) -> int:
        """The number by which decisions name it."""
        return self.record.number

    @property
    def id(self) -> str:
        """Its name, which breaks ties."""
        return self.record.id

    @property
    def values(self) -> Mapping[str, Any]:
        """What the space sets for it."""
        return self.record.values

    @property
    def epoch(self) -> float:
        """Epochs that all of its seeds have done; infinite when it is over."""
        return self.record.epoch

    @property
    def state(self) -> Standing:
        """`waiting` means that it has got as far as was decided, and that a decision is due."""
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
        """How good it was after some epochs; infinite if that is not known."""
        value = self.record.value(self.sign, epoch)
        return math.inf if value is None or math.isnan(value) else self.sign * value


@dataclass(frozen=True)
class Board:
    """All points of a study."""

    records: Sequence[PointRecord]
    sign: int
    epochs: int
    coming: int = 0
    """Points that have not been asked for yet."""
    seed: int = 0

    @property
    def points(self) -> Iterator[View]:
        """Every point that the study has now."""
        return (View(record, self.sign) for record in self.records if record.current)

    def ranked(self, points: Sequence[View], epoch: float = math.inf) -> list[View]:
        """The best first; ties are broken by name."""
        return sorted(points, key=lambda point: (point.score(epoch), point.id))


@dataclass(frozen=True)
class Go:
    """Train a point until some epoch; None is to the end."""

    point: int
    until: int | None
    reason: str = ""


@dataclass(frozen=True)
class Stop:
    """Give a point up."""

    point: int
    reason: str


@dataclass(frozen=True)
class Add:
    """Try a further point; with `weights`, it begins with those of another one."""

    values: Mapping[str, Any] = field(default_factory=dict)
    weights: int | None = None
    reason: str = ""


Decision: TypeAlias = Go | Stop | Add


class Stopper(Protocol):
    """Decides which points go on. It is asked again and again, and must answer the same to the same board."""

    def pauses(self, epochs: int) -> Sequence[int]:
        """The epochs after which every point waits for a decision."""
        ...

    def decide(self, board: Board) -> Sequence[Decision]:
        """What shall happen to points that wait. One that is never decided about ends where it is."""
        ...


def next_pause(stopper: Stopper | None, epoch: float, epochs: int) -> int | None:
    """The next epoch at which a point pauses; None is the end."""
    if stopper is None:
        return None
    return next((pause for pause in sorted(pauses_of(stopper, epochs)) if epoch < pause < epochs), None)


def pauses_of(stopper: Stopper, epochs: int) -> list[int]:
    """The pauses of a stopper, which may be anybody's."""
    name = f"{type(stopper).__name__}.pauses"
    try:
        found = list(itertools.islice(stopper.pauses(epochs), MOST_PAUSES + 1))
    except Exception as error:
        where = user_frame(error)
        raise ComponentFailed(f"{name} failed: {type(error).__name__}: {error}\n  at {where}") from error
    if len(found) > MOST_PAUSES or not all(isinstance(pause, int) for pause in found):
        raise UsageError(f"{name} must return some whole numbers, not {found[:3]!r:.60} …")
    return found


def decisions_of(stopper: Stopper, board: Board) -> list[Decision]:
    """What a stopper decides, which may be anybody's."""
    name = f"{type(stopper).__name__}.decide"
    try:
        found = list(stopper.decide(board))
    except Exception as error:
        where = user_frame(error)
        raise ComponentFailed(f"{name} failed: {type(error).__name__}: {error}\n  at {where}") from error
    if odd := [decision for decision in found if not isinstance(decision, Go | Stop | Add)]:
        raise UsageError(f"{name} must return decisions (Go, Stop, Add), not {odd[0]!r:.60}")
    return found
