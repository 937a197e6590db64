"""In this process, one unit after another."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Collection, Sequence
from typing import ClassVar

from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor, Work, attempt
from manyfit.study.units import Outcome, Progress, Unit


class Inline(Executor):
    """Exceptions are isolated; a crash is not. Signals that end the driver end the unit first."""

    isolates: ClassVar[bool] = False

    def __init__(self, work: Work, watch: Watch | None = None) -> None:
        """`watch` is the one that notes the signals of the process."""
        self._work = work
        self._watch = watch or Watch()
        self._waiting: deque[Unit] = deque()
        self._current: _Interrupt | None = None

    def submit(self, unit: Unit) -> None:
        """Remember a unit; it is worked on in `wait`."""
        self._waiting.append(unit)

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Work on the next unit."""
        if not self._waiting:
            return []
        unit = self._waiting.popleft()
        self._current = _Interrupt(self._watch, [trial.id for trial in unit.trials])
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                return attempt(self._work, unit, self._current, self._told)
        finally:
            self._current = None

    def _told(self, progress: Progress) -> None:
        self.tell(progress)

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask what is being trained to end."""
        if self._current is not None and (trials is None or set(trials) & set(self._current.trials)):
            self._current.asked = True

    def close(self) -> None:
        """Forget what was not begun."""
        self._waiting.clear()


class _Interrupt(Watch):
    """Asks one unit to end: because somebody wants that, or because the whole process was asked."""

    def __init__(self, watch: Watch, trials: Sequence[str]) -> None:
        self._watch = watch
        self.trials = trials
        self.asked = False

    @property
    def number(self) -> int:  # type: ignore[override]
        """The signal, or the one that stands for a request."""
        return self._watch.number or (15 if self.asked else 0)
