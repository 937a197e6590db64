"""When something happens: the boundaries of a run are known before its first step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step at which training pauses, and why."""

    step: int
    epoch: float
    ends_epoch: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How many steps there are, and where training pauses on the way."""

    steps_per_epoch: int
    epochs: int

    @property
    def total(self) -> int:
        """Steps until the end."""
        return self.steps_per_epoch * self.epochs

    @property
    def pause(self) -> int:
        """Steps between pauses within a long epoch, so that progress can be seen."""
        return max(50, math.ceil(self.steps_per_epoch / 20))

    def boundaries(self, start: int) -> Iterator[Boundary]:
        """Every boundary after step `start`: within long epochs, and at the end of each."""
        step = start
        while step < self.total:
            done = step % self.steps_per_epoch
            step += min(self.pause - done % self.pause, self.steps_per_epoch - done)
            yield Boundary(
                step, step / self.steps_per_epoch, step % self.steps_per_epoch == 0, step == self.total
            )
