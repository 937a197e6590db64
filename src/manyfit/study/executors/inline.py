"""The executor in this process, one unit after another."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Collection, Sequence
from typing import ClassVar

from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor, Work, attempt
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Outcome, Progress, Unit


class Inline(Executor):
    """An executor that isolates exceptions, but not crashes. A signal to the driver ends the unit first."""

    isolates: ClassVar[bool] = False

    def __init__(self, work: Work, watch: Watch | None = None) -> None:
        """`watch` records the signals of the process."""
        self._work = work
        self._watch = watch or Watch()
        self._waiting: deque[Unit] = deque()
        self._current: UnitWatch | None = None

    def submit(self, unit: Unit) -> None:
        """Queue a unit; it is executed in `wait`."""
        self.check_place(unit)
        self._waiting.append(unit)

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Execute the next unit."""
        if not self._waiting:
            return []
        unit = self._waiting.popleft()
        self._current = UnitWatch(self._watch)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                return list(attempt(self._work, unit, self._current, self._report_progress))
        finally:
            self._current = None

    def _report_progress(self, progress: Progress) -> None:
        self.tell(progress)

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask trials of the current unit to stop."""
        if self._current is None:
            return
        if trials is None:
            self._current.is_asked = True
        else:
            self._current.asked.update(trials)

    def close(self) -> None:
        """Discard units that were not started."""
        self._waiting.clear()
