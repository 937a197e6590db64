"""The position of a run: how far it is, or must be, trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyfit.core.errors import UsageError


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A position in the training data: completed epochs, then visits to shards in the next one, then steps.

    >>> Position(2) < Position(2, step=5) < Position(2, visit=1) < Position(3)
    True
    """

    epoch: int
    visit: int = 0
    step: int = 0

    def in_steps(self, steps_per_epoch: int, visits: Sequence[int] = ()) -> int:
        """Return the number of steps up to this position; `visits` has the steps of each visit of its epoch.

        >>> Position(2, step=5).in_steps(steps_per_epoch=10)
        25
        >>> Position(2, visit=1).in_steps(steps_per_epoch=10, visits=[4, 6])
        24
        """
        if self.visit > len(visits):
            raise UsageError(f"an epoch has {len(visits)} visits to shards, so it cannot have {self.visit}")
        return self.epoch * steps_per_epoch + sum(visits[: self.visit]) + self.step
