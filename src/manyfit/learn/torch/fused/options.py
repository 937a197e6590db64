"""The hyperparameters of several runs: vectors by name, step by step while schedules change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.learn.torch.update import Update

Vectors = dict[str, npt.NDArray[np.float64]]
"""Numbers by name, each of shape (runs,)."""


def read_option(group: Mapping[str, Any], name: str) -> float:
    """Return a number of a parameter group; `beta1` and `beta2` are those of `betas`."""
    value = group["betas"][int(name[-1]) - 1] if name in ("beta1", "beta2") else group[name]
    return float(value)


class OptionTable:
    """The hyperparameters of the next steps, by step and parameter group, and the rates that the log shows.

    Schedules are advanced on the way: afterwards, they are where they are after these steps.
    """

    def __init__(
        self, updates: Sequence[Update], rows: Sequence[int], numbers: Sequence[str], step: int, steps: int
    ) -> None:
        self.steps = steps
        self._rows = list(rows)
        self._numbers = numbers
        self.rates: list[dict[str, float]] = []
        """The rates of each run in the last of these steps."""
        moving = any(update.stepping for update in updates)
        self._steps: list[list[Vectors]] = []
        for i in range(steps if moving else 1):
            self._steps.append(self._read(updates))
            if i == steps - 1 or not moving:
                self.rates = [update.rates() for update in updates]
            for update in updates if moving else ():
                if update.stepping:
                    update.advance(step + i + 1)

    def at(self, number: int) -> StepOptions:
        """Return the hyperparameters of a step, which is counted from 0."""
        return StepOptions(self, number)

    def read(self, number: int) -> list[Vectors]:
        """Return the vectors of each parameter group in a step."""
        return self._steps[min(number, len(self._steps) - 1)]

    def _read(self, updates: Sequence[Update]) -> list[Vectors]:
        optimizers = [next(iter(update.optimizers.values())) for update in updates]
        found = []
        for i in range(len(optimizers[0].param_groups)):
            each = [[read_option(o.param_groups[i], name) for name in self._numbers] for o in optimizers]
            table = np.array(each, dtype=np.float64)[self._rows]
            found.append({name: table[:, j].copy() for j, name in enumerate(self._numbers)})
        return found


@dataclass(frozen=True)
class StepOptions:
    """The hyperparameters of a step, and of those after it."""

    table: OptionTable
    number: int

    @property
    def groups(self) -> list[Vectors]:
        """The vectors of each parameter group."""
        return self.table.read(self.number)

    def ahead(self, group: int, most: int) -> Iterator[Vectors]:
        """Yield the vectors of a parameter group in this step and the next ones."""
        for number in range(self.number, min(self.number + most, self.table.steps)):
            yield self.table.read(number)[group]
