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
        """`updates` are at `step`, from which the table has so many steps."""
        self.steps = steps
        self._updates, self._begin = updates, step
        self._rows = list(rows)
        self._numbers = numbers
        self._moves = any(update.stepping for update in updates)
        self._found = list[list[npt.NDArray[np.float64]]]()
        self._rates: list[dict[str, float]] = []

    @property
    def rates(self) -> list[dict[str, float]]:
        """The rates of each run in the last of these steps."""
        self._look_ahead(self.steps)
        return self._rates

    def at(self, number: int) -> StepOptions:
        """Return the hyperparameters of a step, which is counted from 0."""
        return StepOptions(self, number)

    def read(self, number: int) -> list[Vectors]:
        """Return the vectors of each parameter group in a step."""
        self._look_ahead(number + 1)
        groups = self._found[number if self._moves else 0]
        return [dict(zip(self._numbers, values, strict=True)) for values in groups]

    def read_steps(self, group: int, begin: int, count: int) -> Vectors:
        """Return the numbers of a parameter group in some steps, each of shape (steps, runs)."""
        self._look_ahead(begin + count)
        numbers = range(begin, begin + count) if self._moves else [0] * count
        each = np.stack([self._found[number][group] for number in numbers])
        return {name: np.ascontiguousarray(each[:, i]) for i, name in enumerate(self._numbers)}

    def _look_ahead(self, count: int) -> None:
        """Advance the schedules until the numbers of so many steps are known."""
        while len(self._found) < (count if self._moves else 1):
            self._found.append(self._read(self._updates))
            done = len(self._found)
            if done == self.steps or not self._moves:
                self._rates = [update.rates() for update in self._updates]
            for update in self._updates:
                if update.stepping:
                    update.advance(self._begin + done)

    def _read(self, updates: Sequence[Update]) -> list[npt.NDArray[np.float64]]:
        optimizers = [next(iter(update.optimizers.values())) for update in updates]
        found = []
        for i in range(len(optimizers[0].param_groups)):
            each = [[read_option(o.param_groups[i], name) for name in self._numbers] for o in optimizers]
            found.append(np.ascontiguousarray(np.array(each, dtype=np.float64)[self._rows].T))
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
