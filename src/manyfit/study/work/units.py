"""Units: "train these trials, at this place, until this position". All that executors execute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from manyfit.core.position import Position

FailureKind: TypeAlias = Literal[
    "out of memory",
    "not a number",
    "user error",
    "data",
    "infrastructure",
    "timeout",
    "preempted",
]
KINDS: Final[tuple[FailureKind, ...]] = (
    "out of memory", "not a number", "user error", "data", "infrastructure", "timeout", "preempted",
)  # fmt: skip
SHORT: Final[Mapping[str, FailureKind]] = {
    "oom": "out of memory",
    "nan": "not a number",
    "user": "user error",
    "data": "data",
    "infrastructure": "infrastructure",
    "timeout": "timeout",
    "preempted": "preempted",
}
"""How kinds are called on the command line."""


Purpose: TypeAlias = Literal["train", "evaluate", "rehearse"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One point with one seed, as far as it takes to train it."""

    id: str
    folder: str
    values: Mapping[str, Any]
    seed: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What was changed so that it can be trained at all; not part of its identity."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Train these trials until some position; None is to the end.

    Each of them has an outcome of its own: one may fail, be interrupted or end without the others.
    """

    trials: tuple[Trial, ...]
    until: Position | None = None
    place: str = ""
    """The worker that must execute it, one of the executor's `places`; empty if any worker may."""
    number: int = 0
    """Its number in the ledger."""
    purpose: Purpose = "train"
    """`evaluate` exports and evaluates what was trained; `rehearse` tries out whether it can be."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial could not go on."""

    kind: FailureKind
    message: str
    traceback: str = ""
    group: str = ""
    """The same for failures that happened at the same place."""
    process_died: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a unit has ended for one of its trials."""

    trial: str
    step: int = 0
    epoch: float = 0.0
    trained: int = 0
    """Steps of this unit that are committed."""
    over: bool = False
    """Whether nothing is left to train."""
    reason: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    """The objective, by epoch, since the first step."""
    seconds: float = 0.0
    failure: Failure | None = None
    is_begun: bool = True
    """Whether anything was done for the trial; what happens to others of its unit does not count for it."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What a rehearsal has measured."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life of a trial that is being trained."""

    trial: str
    step: int
    epoch: float
    value: float | None = None
