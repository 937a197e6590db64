"""What every executor is. `manyfit.testing.ExecutorContract` tests it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from manyfit.study.failures import failure_of
from manyfit.study.units import Outcome, Progress, Unit

if TYPE_CHECKING:
    from manyfit.core.signals import Watch

Work: TypeAlias = "Callable[[Unit, Watch, Callable[[Progress], None]], list[Outcome]]"
"""What is done with a unit. It must be picklable for executors with other processes."""


def attempt(work: Work, unit: Unit, watch: Watch, tell: Callable[[Progress], None]) -> list[Outcome]:
    """Do the work; an exception is how all trials of the unit have ended.

    What the code of a trial changes in its process ends with the trial.
    """
    from manyfit.run.process import own_process

    this = os.getpid()
    try:
        with own_process():
            return work(unit, watch, tell)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [Outcome(trial.id, failure=failure_of(error)) for trial in unit.trials]
    finally:
        if os.getpid() != this:  # the code of a trial has forked; only one process may answer
            os._exit(0)


class Executor(ABC):
    """Takes units and answers how they went. Whoever calls it is the only one who does."""

    isolates: ClassVar[bool] = True
    """Whether a crash in a unit leaves the others, and the caller, alone."""
    keeps_folders: ClassVar[bool] = True
    """Whether trials have run folders, which are the truth about how far they are."""
    slots: int = 1
    """How many units it works on at once."""
    tell: Callable[[Progress], None] = staticmethod(lambda progress: None)
    """Called with signs of life."""

    @abstractmethod
    def submit(self, unit: Unit) -> None:
        """Take a unit; the caller never hands over more than there are slots."""

    @abstractmethod
    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Block until a unit has ended, something was told, a file descriptor of `wake` can be read, or time
        is up; return how units have ended. Every trial of a unit is answered exactly once."""

    @abstractmethod
    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask trials, or all of them, to commit what they have and to end as preempted."""

    @abstractmethod
    def close(self) -> None:
        """End at once, and leave nothing behind."""

    def now(self) -> float:
        """Seconds on the executor's clock, which never goes back."""
        return time.monotonic()

    def describe(self) -> dict[str, object]:
        """What the ledger keeps about how units were executed."""
        return {"executor": type(self).__name__.lower(), "slots": self.slots}
