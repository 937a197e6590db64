"""The input of a stopper, and the decisions that it can return."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.tracebacks import user_frame
from manyfit.study.search.standings import Rung, Standings, View
from manyfit.study.work.records import PointRecord

MOST_PAUSES: Final = 1_000_000


@dataclass(frozen=True)
class Board:
    """All points of a study."""

    records: Sequence[PointRecord]
    sign: int
    epochs: int
    coming: int = 0
    """Number of points that the sampler has yet to propose."""
    seed: int = 0
    standings: Standings | None = None
    """The standings of these points, if somebody keeps them."""

    def __post_init__(self) -> None:
        if self.standings is None:
            object.__setattr__(self, "standings", Standings(self.records, self.sign))

    def at(self, epoch: int) -> Rung:
        """Return the points that have reached an epoch, best first."""
        assert self.standings is not None
        return self.standings.at(epoch)

    @property
    def waiting(self) -> list[View]:
        """The points that wait for a decision, by number."""
        assert self.standings is not None
        return self.standings.waiting

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
