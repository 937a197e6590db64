"""Stop requests for a unit or for one trial of it, and the type of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

from manyfit.core.signals import Watch
from manyfit.study.work.units import Progress, Trial

Tell: TypeAlias = Callable[[Progress], None]
"""Called with signs of life."""
TERMINATED: Final = 15
"""The signal number that represents a stop request."""


class UnitWatch(Watch):
    """Whether a unit, or one trial of it, was asked to stop: by a signal to the process, or by the driver."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch or Watch()
        self.asked: set[str] = set()
        """Trials that were asked to stop."""
        self.is_asked = False
        """Whether the whole unit was asked to stop."""
        self.scope: Callable[[Trial], AbstractContextManager[object]] = lambda trial: nullcontext()
        """Context manager entered while working for one trial, by work that enters scopes itself."""

    @property
    def number(self) -> int:  # type: ignore[override]
        """The received signal, or the one that represents a request."""
        return self._watch.number or (TERMINATED if self.is_asked else 0)

    def of(self, trial: str) -> Watch:
        """Return the watch of one trial."""
        return _TrialWatch(self, trial)


class _TrialWatch(Watch):
    def __init__(self, unit: UnitWatch, trial: str) -> None:
        self._unit = unit
        self._trial = trial

    @property
    def number(self) -> int:  # type: ignore[override]
        return self._unit.number or (TERMINATED if self._trial in self._unit.asked else 0)
