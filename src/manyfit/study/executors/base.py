"""The interface of all executors. `manyfit.testing.ExecutorContract` tests it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import UsageError
from manyfit.core.signals import Watch
from manyfit.study.work.failures import failure_of
from manyfit.study.work.unit_watch import Tell, UnitWatch
from manyfit.study.work.units import Failure, Outcome, Trial, Unit

Work: TypeAlias = Callable[[Unit, UnitWatch, Tell], Iterable[Outcome]]
"""What to do with a unit: return an outcome for each trial as it ends. Picklable, for other processes."""
Around: TypeAlias = Callable[[Trial], AbstractContextManager[object]]


@dataclass(frozen=True)
class Job:
    """What an executor is created for."""

    study: StudyConfig
    work: Work
    watch: Watch = field(default_factory=Watch)
    """Records the signals of the driver's process."""
    trials: int = 1
    """The number of trials to train, as far as it is known."""


def attempt(
    work: Work, unit: Unit, watch: UnitWatch, tell: Tell, around: Around = lambda trial: nullcontext()
) -> Iterator[Outcome]:
    """Do the work, and yield an outcome for each trial of the unit, whatever happens.

    An exception is the failure of the trial in progress; trials that were not started are reported as such.
    Changes of the process by the code of a trial are reverted after it. `around` is entered for each trial;
    work with the attribute `enters_scopes` does that itself, by `watch.scope`, to train several side by side.
    """
    from manyfit.run.loop.process_state import own_process

    this, left = os.getpid(), {trial.id: trial for trial in unit.trials}
    outcomes: Iterator[Outcome] | None = None
    try:
        is_scoped = len(unit.trials) > 1 and getattr(work, "enters_scopes", False)
    except Exception as error:  # work may be opened only now
        yield from fail_unanswered(list(left.values()), failure_of(error))
        return
    if is_scoped:
        watch.scope = around
    while left:
        first = next(iter(left.values()))
        try:
            with nullcontext() if is_scoped else around(first), own_process():
                outcomes = iter(work(unit, watch, tell)) if outcomes is None else outcomes
                outcome = next(outcomes, None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            yield from fail_unanswered(list(left.values()), failure_of(error))
            return
        finally:
            if os.getpid() != this:  # the code of a trial has forked; only one process may return outcomes
                os._exit(0)
        if outcome is None:
            yield from fail_unanswered(
                list(left.values()), Failure("infrastructure", "the work ended without an outcome")
            )
            return
        del left[outcome.trial]
        yield outcome


def fail_unanswered(left: Sequence[Trial], failure: Failure) -> Iterator[Outcome]:
    """Yield outcomes for trials of a unit that ended with an exception: the first was being trained."""
    others = Failure(
        "preempted", f"not started, because another trial of its unit ended it: {failure.message}"
    )
    for i, trial in enumerate(left):
        yield Outcome(trial.id, failure=others if i else failure, is_begun=not i)


def fail_together(unit: Unit, left: Sequence[Trial], failure: Failure) -> Iterator[Outcome]:
    """Yield outcomes for the trials of a unit whose process died.

    If the unit has several, nobody knows which of them is to blame: none has died, and each is tried alone.
    """
    if len(unit.trials) == 1:
        yield from (Outcome(trial.id, failure=failure) for trial in left)
        return
    text = f"the process of its unit ended ({failure.message}); it is tried in a unit of its own"
    shared = Failure("preempted", text, process_died=True)
    yield from (Outcome(trial.id, failure=shared, is_begun=False, is_shared=True) for trial in left)


class Executor(ABC):
    """An executor accepts units and returns their outcomes. Not thread-safe: one caller at a time."""

    isolates: ClassVar[bool] = True
    """Whether a crash in a unit does not affect the other units and the caller."""
    keeps_folders: ClassVar[bool] = True
    """Whether trials have run folders, which are authoritative for their progress."""
    travels: ClassVar[bool] = False
    """Whether its workers do not have the run folders: trials travel to them, and return what they train."""
    slots: int = 1
    """How many units it executes at once. It may change while units are executed."""
    places: Sequence[str] = ()
    """The names of its workers, if a unit may request one. They may change, too."""
    speeds: Mapping[str, float] = MappingProxyType({})
    """How fast each of these workers is, relative to the others; 1 by default."""
    replicas: int = 1
    """On how many of these workers each shard of the data is kept."""
    holds: Mapping[str, Sequence[int]] = MappingProxyType({})
    """The shards that some of these workers already have, and get before others."""
    tell: Tell = staticmethod(lambda progress: None)
    """Called with signs of life."""

    @abstractmethod
    def submit(self, unit: Unit) -> None:
        """Accept a unit; the caller never submits more units than there are slots. See `check_place`."""

    @abstractmethod
    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Block until a unit ends, progress is reported, a file descriptor of `wake` is readable, or the
        timeout expires; return outcomes. Every trial of a unit has exactly one outcome."""

    @abstractmethod
    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask some or all trials to commit their progress and to end as preempted.

        The other trials of their units continue.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop immediately, and leave nothing behind."""

    def check_place(self, unit: Unit) -> None:
        """Refuse a unit for a worker that does not exist."""
        if unit.place and unit.place not in self.places:
            there = ", ".join(self.places) or "none with a name"
            raise UsageError(f"there is no worker {unit.place!r}; available: {there}")

    def resize(self, workers: int) -> None:
        """Use this many workers from now on."""
        raise UsageError(f"the number of workers of {type(self).__name__} cannot be changed while it runs")

    def now(self) -> float:
        """Return the seconds of the executor's clock, which is monotonic."""
        return time.monotonic()

    def describe(self) -> dict[str, object]:
        """Return what the ledger records about how units are executed."""
        return {"executor": type(self).__name__.lower(), "slots": self.slots}
