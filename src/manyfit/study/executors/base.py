"""What every executor is. `manyfit.testing.ExecutorContract` tests it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import UsageError
from manyfit.core.signals import Watch
from manyfit.study.work.failures import failure_of
from manyfit.study.work.unit_watch import Tell, UnitWatch
from manyfit.study.work.units import Failure, Outcome, Trial, Unit

Work: TypeAlias = Callable[[Unit, UnitWatch, Tell], Iterable[Outcome]]
"""What is done with a unit: an outcome for each trial, as it ends. Picklable, for other processes."""
Around: TypeAlias = Callable[[Trial], AbstractContextManager[object]]


@dataclass(frozen=True)
class Job:
    """What an executor is made for."""

    study: StudyConfig
    work: Work
    watch: Watch = field(default_factory=Watch)
    """Notes the signals of the driver's process."""
    trials: int = 1
    """How many trials are to be trained, as far as that is known."""


def attempt(
    work: Work, unit: Unit, watch: UnitWatch, tell: Tell, around: Around = lambda trial: nullcontext()
) -> Iterator[Outcome]:
    """Do the work, and yield an outcome for each trial of the unit, whatever happens.

    An exception is how the trial has ended that was at work; those that were not begun are told so. What the
    code of a trial changes in its process ends with the trial. `around` is entered for each of them; work
    with the attribute `enters_scopes` does that itself, by `watch.scope`, as it trains several side by side.
    """
    from manyfit.run.loop.process_state import own_process

    this, left = os.getpid(), {trial.id: trial for trial in unit.trials}
    outcomes: Iterator[Outcome] | None = None
    is_scoped = getattr(work, "enters_scopes", False) and len(unit.trials) > 1
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
            yield from fail_unanswered(left.values(), failure_of(error))
            return
        finally:
            if os.getpid() != this:  # the code of a trial has forked; only one process may answer
                os._exit(0)
        if outcome is None:
            yield from fail_unanswered(left.values(), Failure("infrastructure", "its work gave no answer"))
            return
        del left[outcome.trial]
        yield outcome


def fail_unanswered(
    left: Iterable[Trial], failure: Failure, begun: Collection[str] = ()
) -> Iterator[Outcome]:
    """Yield outcomes for trials of a unit that cannot go on: the first was at work, and those in `begun`."""
    others = Failure("preempted", f"not begun, as another trial of its unit ended it: {failure.message}")
    for i, trial in enumerate(left):
        is_begun = i == 0 or trial.id in begun
        yield Outcome(trial.id, failure=failure if is_begun else others, is_begun=is_begun)


class Executor(ABC):
    """Takes units and answers how they went. Not thread-safe: one caller at a time."""

    isolates: ClassVar[bool] = True
    """Whether a crash in a unit leaves the others, and the caller, alone."""
    keeps_folders: ClassVar[bool] = True
    """Whether trials have run folders, which are the truth about how far they are."""
    slots: int = 1
    """How many units it works on at once."""
    places: Sequence[str] = ()
    """The names of its workers, where a unit may ask for one."""
    tell: Tell = staticmethod(lambda progress: None)
    """Called with signs of life."""

    @abstractmethod
    def submit(self, unit: Unit) -> None:
        """Take a unit; the caller never hands over more than there are slots. See `check_place`."""

    @abstractmethod
    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Block until a unit has ended, something was told, a file descriptor of `wake` can be read, or time
        is up; return how units have ended. Every trial of a unit is answered exactly once."""

    @abstractmethod
    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask trials, or all of them, to commit what they have and to end as preempted.

        The other trials of their units go on.
        """

    @abstractmethod
    def close(self) -> None:
        """End at once, and leave nothing behind."""

    def check_place(self, unit: Unit) -> None:
        """Refuse a unit for a worker that there is not."""
        if unit.place and unit.place not in self.places:
            there = ", ".join(self.places) or "none that can be named"
            raise UsageError(f"there is no worker {unit.place!r}; there are: {there}")

    def now(self) -> float:
        """Seconds on the executor's clock, which never goes back."""
        return time.monotonic()

    def describe(self) -> dict[str, object]:
        """What the ledger keeps about how units were executed."""
        return {"executor": type(self).__name__.lower(), "slots": self.slots}
