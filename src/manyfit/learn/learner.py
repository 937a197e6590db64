"""What a trainer trains. One protocol; everything that trains implements it.

A learner drives a cohort of n runs at once. Whatever it returns about them has a leading n; it returns one
state for each run, in the form in which a run of its own would have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.nested import Nested, mapped

Metrics: TypeAlias = Mapping[str, Any]
"""Of shape (n,), on the device: `train_loss` is a mean over rows, `lr` is the last rate."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one batch gave, row by row: arrays of shape (n, rows, ...)."""

    index: npt.NDArray[np.int64]
    output: npt.NDArray[Any]
    target: npt.NDArray[Any] | None
    rows: Mapping[str, npt.NDArray[np.float64]]
    """Numbers for each row: `loss`, where there is one, and every metric, of shape (n, rows)."""
    shared: frozenset[str] = frozenset()
    """Those of them that are numbers of the whole batch, the same for all its rows."""
    several: Callable[[], tuple[Nested, Nested]] | None = None
    """Where there is more than one output or target: all of them, as the model and the data give them.

    `output` and `target` are then the main ones. It is called only where rows are reported."""

    def every(self, member: int) -> tuple[Nested, Nested]:
        """All outputs and targets of one run of a cohort."""
        every = (self.output, self.target) if self.several is None else self.several()
        return tuple(mapped(lambda array: array[member], value) for value in every)


def fetch(value: Any) -> npt.NDArray[np.float64]:
    """Bring one of a learner's metrics from its device."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)


class Learner(Protocol):
    """Weights, optimiser, schedule and steps."""

    n: int

    def describe(self) -> str:
        """What it is, in a few words."""
        ...

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train to the next boundary. Where a run pauses changes neither its weights nor its means.

        With the first step of an epoch, a learner seeds whatever random generators its training draws from.
        """
        ...

    def take(self) -> Metrics:
        """The means since the last call."""
        ...

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Predict, row by row, without learning."""
        ...

    def whole(self) -> Sequence[Mapping[str, float]]:
        """What the learner itself has measured of all rows that were evaluated last, for each run."""
        ...

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Learn what was measured at a validation, or that an epoch has ended without one."""
        ...

    def stopped(self) -> Sequence[str]:
        """Why the training of each run shall end before the last epoch; empty if it shall not."""
        ...

    def end(self) -> None:
        """Learn that the training is over."""
        ...

    def state(self) -> Sequence[State]:
        """One state for each run: tensors and plain values, nothing else.

        The tensors are the live ones: whoever wants to keep a state copies it before training goes on.
        """
        ...

    def load(self, states: Sequence[State]) -> None:
        """Go on from states that `state` returned."""
        ...
