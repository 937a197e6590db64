"""The position of a run: how far it is, or must be, trained."""

from __future__ import annotations

from dataclasses import dataclass

from manyfit.core.errors import UsageError


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A position in the training data: completed epochs, then shards of the next one, then steps.

    >>> Position(2) < Position(2, step=5) < Position(3)
    True
    """

    epoch: int
    shard: int = 0
    step: int = 0

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps up to this position.

        >>> Position(2, step=5).in_steps(steps_per_epoch=10)
        25
        """
        if self.shard:
            raise UsageError(
                "training on sharded data is not supported yet: a position must not have a shard"
            )
        return self.epoch * steps_per_epoch + self.step
