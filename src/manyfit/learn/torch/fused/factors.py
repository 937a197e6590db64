"""The factors of optimizer steps, computed for several steps ahead and copied to the device at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyfit.learn.torch.fused.optimizers import StackedOptimizer
from manyfit.learn.torch.fused.options import OptionTable, StepOptions, Vectors

Counts = npt.NDArray[np.float64]
"""Steps of an optimizer, by row of a stack."""
AHEAD: Final = 256
"""Steps whose factors are computed at once."""


class Factors(Protocol):
    """The factors of one step."""

    def at(
        self, group: int, rule: StackedOptimizer, name: str, count: Counts, like: Tensor
    ) -> Mapping[str, Tensor]:
        """Return the factors for a stacked parameter of a group, in a shape that broadcasts over it.

        `count` is the number of the step of its optimizer, by row, including this one.
        """
        ...

    def numbers(self, group: int) -> Vectors | None:
        """Return the hyperparameters themselves, if the step is computed by kernels that take numbers."""
        ...


@dataclass(frozen=True)
class StepFactors:
    """The factors of a step that is computed now."""

    table: FactorTable
    options: StepOptions

    def at(
        self, group: int, rule: StackedOptimizer, name: str, count: Counts, like: Tensor
    ) -> Mapping[str, Tensor]:
        """Return the factors for a stacked parameter."""
        return self.table.at(self.options, group, rule, count, like)

    def numbers(self, group: int) -> Vectors | None:
        """Return the hyperparameters."""
        return self.options.groups[group]


class FactorTable:
    """The factors of the steps of one table of hyperparameters."""

    def __init__(self) -> None:
        self._table: OptionTable | None = None
        self._blocks: dict[tuple[object, ...], _Block] = {}
        self._shaped: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
        self._number = -1

    def at(
        self,
        options: StepOptions,
        group: int,
        rule: StackedOptimizer,
        count: Counts,
        like: Tensor,
    ) -> Mapping[str, Tensor]:
        """Return the factors for a stacked tensor of a parameter group, in a shape that broadcasts over it.

        `count` is the number of the step of its optimizer, by run, including this one.
        """
        if options.table is not self._table:
            self._table, self._number, self._blocks = options.table, -1, {}
        if options.number != self._number:
            self._number, self._shaped = options.number, {}
        # Steps are counted together with those of the table, unless a parameter had no gradient for a while.
        begun = count - options.number if rule.counts_steps else count
        key = group, like.dtype, like.device, begun.tobytes()
        shaped = self._shaped.get((*key, like.ndim))
        if shaped is None:
            block = self._blocks.get(key)
            if block is None or not block.has(options.number):
                block = self._blocks[key] = _Block(options, group, rule, count, like)
            shaped = self._shaped[(*key, like.ndim)] = block.at(options.number, like.ndim)
        return shaped


class _Block:
    """Factors of consecutive steps, in one tensor of shape (steps, factors, runs)."""

    def __init__(
        self,
        options: StepOptions,
        group: int,
        rule: StackedOptimizer,
        count: Counts,
        like: Tensor,
    ) -> None:
        rows: list[Mapping[str, npt.NDArray[np.float64]]] = []
        for number, numbers in enumerate(options.ahead(group, AHEAD)):
            found = rule.coefficients(numbers, count + number)
            if rows and found.keys() != rows[0].keys():
                break  # from here on, the rule has other factors
            rows.append(found)
        self._first, self._names = options.number, list(rows[0])
        values = np.stack([np.stack([row[name] for name in self._names]) for row in rows])
        self._values = torch.from_numpy(values).to(like.device, like.dtype)

    def has(self, number: int) -> bool:
        """Return whether it has the factors of a step."""
        return 0 <= number - self._first < len(self._values)

    def at(self, number: int, ndim: int) -> Mapping[str, Tensor]:
        """Return the factors of a step, in a shape that broadcasts over tensors of so many dimensions."""
        values = self._values[number - self._first]
        values = values.view(*values.shape, *[1] * (ndim - 1))
        return dict(zip(self._names, values.unbind(0), strict=True))
