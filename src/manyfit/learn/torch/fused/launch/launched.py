"""The losses of steps that were trained, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


class Launched:
    """Losses of consecutive steps, which stay on the device."""

    def __init__(self) -> None:
        self._found: list[tuple[Mapping[str, Tensor], list[int]]] = []

    def add(self, losses: Mapping[str, Tensor], rows: int) -> None:
        """Add the losses of one step, each of shape (runs,), and the rows of its batch."""
        self.extend({name: value[None] for name, value in losses.items()}, [rows])

    def extend(self, losses: Mapping[str, Tensor], rows: Sequence[int]) -> None:
        """Add the losses of several steps, each of shape (steps, runs)."""
        self._found.append((losses, list(rows)))

    @property
    def rows(self) -> list[int]:
        """The rows of each step."""
        return [count for _, rows in self._found for count in rows]

    def parts(self) -> Iterator[tuple[dict[str, Tensor], list[int]]]:
        """Yield the losses, each of shape (steps, runs), and the rows of steps with the same names."""
        begin = 0
        while begin < len(self._found):
            names = tuple(self._found[begin][0])
            end = begin
            while end < len(self._found) and tuple(self._found[end][0]) == names:
                end += 1
            part = self._found[begin:end]
            found = {name: torch.cat([losses[name] for losses, _ in part]) for name in names}
            yield found, [count for _, rows in part for count in rows]
            begin = end

    def by_run(self, runs: int) -> Iterator[tuple[list[dict[str, Tensor]], list[int]]]:
        """Yield the losses of each run, and the rows, of steps with losses of the same names."""
        for found, rows in self.parts():
            columns = {name: value.unbind(1) for name, value in found.items()}
            yield [{name: column[run] for name, column in columns.items()} for run in range(runs)], rows
