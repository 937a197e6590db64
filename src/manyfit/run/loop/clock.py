"""Time-based decisions: how long to train between pauses, and which actions are due by elapsed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from manyfit.run.loop.plan import Boundary, Plan

PAUSE = 0.5
"""Seconds between pauses, in which progress, signals and time-based cadences are handled."""
AUTO_INTERVAL = 30.0
"""Seconds between automatic checkpoints."""

_suspended: ContextVar[float] = ContextVar("suspended", default=0.0)


class Suspension:
    """How long a group was suspended while others had their turns, which is not part of its pace."""

    def __init__(self) -> None:
        self._seconds, self._since = 0.0, time.monotonic()

    @contextmanager
    def end(self) -> Iterator[None]:
        """Go on for a turn."""
        self._seconds += time.monotonic() - self._since
        token = _suspended.set(self._seconds)
        try:
            yield
        finally:
            _suspended.reset(token)
            self._since = time.monotonic()


class Pace:
    """The pace of training: how fast steps are, and when each action was last performed."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._began, self._before = clock(), _suspended.get()
        now = self._began
        self._last = {"log": now, "validate": now, "checkpoint": now}
        self.most = 1

    def begin(self) -> None:
        """Start the timer: training starts, or continues after a pause."""
        self._began, self._before = self._clock(), _suspended.get()

    def pause(self, boundary: Boundary, steps: int) -> Boundary:
        """Add the actions that are due by the clock, and estimate how many steps fit until the next pause."""
        now = self._clock()
        took = max(now - self._began - (_suspended.get() - self._before), 1e-6)
        wanted = int(steps * PAUSE / took)
        self.most = max(1, min(wanted, 2 * self.most))
        due = {
            name: getattr(boundary, name) or now - self._last[name] >= seconds
            for name, seconds in self._intervals(boundary).items()
        }
        due["checkpoint"] |= due["validate"] and self._plan.with_validation
        for name in due:
            if due[name]:
                self._last[name] = now
        return replace(boundary, **due)

    def _intervals(self, boundary: Boundary) -> dict[str, float]:
        plan = self._plan
        checkpoint = min((cadence.seconds for cadence in plan.checkpoint), default=float("inf"))
        if plan.auto and boundary.ends_epoch:
            checkpoint = min(checkpoint, AUTO_INTERVAL)
        return {"log": plan.log.seconds, "validate": plan.validate.seconds, "checkpoint": checkpoint}
