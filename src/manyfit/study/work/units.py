"""Units, all that executors execute: "train these trials, on this worker, until this position"."""

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
"""Names of the kinds on the command line."""


Purpose: TypeAlias = Literal["train", "evaluate", "rehearse"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One point with one seed: what is needed to train it."""

    id: str
    folder: str
    values: Mapping[str, Any]
    seed: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes that make it possible to train it at all; not part of its identity."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Trials to train until a position; None means to the end.

    Each trial has its own outcome: one may fail, be interrupted or end without the others.
    """

    trials: tuple[Trial, ...]
    until: Position | None = None
    place: str = ""
    """The worker that must execute it, one of the executor's `places`; empty if any worker may."""
    number: int = 0
    """Its number in the ledger."""
    purpose: Purpose = "train"
    """`evaluate` exports and evaluates trained trials; `rehearse` tests whether they can be trained."""
    shard: int | None = None
    """The shard that its trials visit; None to train on all data."""
    luggage: Mapping[str, Any] = field(default_factory=dict)
    """What each trial takes along to a worker that does not have its folder, by name; empty if the worker
    has the folders."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a trial could not continue."""

    kind: FailureKind
    message: str
    traceback: str = ""
    group: str = ""
    """The same for failures that occurred at the same place."""
    process_died: bool = False
    is_usage: bool = False
    """Whether the config asks for what cannot be done; otherwise, code has failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a unit for one of its trials."""

    trial: str
    step: int = 0
    epoch: float = 0.0
    trained: int = 0
    """Steps that this unit has committed."""
    over: bool = False
    """Whether nothing is left to train."""
    reason: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    """The objective, by epoch, since the first step."""
    seconds: float = 0.0
    failure: Failure | None = None
    is_begun: bool = True
    """Whether work on the trial was started; if not, the failure of its unit does not count for it."""
    is_shared: bool = False
    """Whether the failure ended a whole unit, and it is not known which of its trials caused it."""
    how: str = ""
    """How it was trained: in one pass with other trials or alone, and why."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The measurements of a rehearsal."""
    parcel: Any = None
    """What a trial without its folder returns: its state and new rows of its log."""
    output: str = ""
    """The output of a trial without its folder."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life of a trial that is training."""

    trial: str
    step: int
    epoch: float
    value: float | None = None
    parcel: Any = None
    """What a trial without its folder has trained since it last delivered something."""
