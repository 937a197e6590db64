"""How far a run is, or shall be trained: a value, not an epoch number."""

from __future__ import annotations

from dataclasses import dataclass

from manyfit.core.errors import UsageError


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place in the training data: epochs that are done, then shards of the next one, then steps.

    >>> Position(2) < Position(2, step=5) < Position(3)
    True
    """

    epoch: int
    shard: int = 0
    step: int = 0

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return how many steps are trained up to here.

        >>> Position(2, step=5).in_steps(steps_per_epoch=10)
        25
        """
        if self.shard:
            raise UsageError("data that is cut into shards cannot be trained on yet: a position has no shard")
        return self.epoch * steps_per_epoch + self.step
