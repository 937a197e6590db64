"""Running sums of training losses between two log entries; pauses and restarts do not change their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyfit.learn.metrics_by_run import Metrics

FOLD = 256


@dataclass
class _Recent:
    """Losses of the same names that are not summed yet, batch after batch, with the rows of each batch."""

    values: list[Tensor] = field(default_factory=list)
    """Single losses, or several in one tensor of shape (batches, names) or (batches, names, runs)."""
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Total:
    """What was summed of one loss, weighted by rows and by batches, and over how many rows."""

    by_row: Tensor
    by_batch: Tensor
    count: int


class Sums:
    """Losses by name, weighted by rows. They stay on the device; those of 256 batches are summed at once."""

    def __init__(self, device: torch.device, runs: int | None = None) -> None:
        """With `runs`, each loss has a value for each of several runs."""
        self._runs = runs
        # A sum of many losses needs the precision of float64, which MPS does not support.
        self._device = torch.device("cpu") if device.type == "mps" else device
        self.rates: Mapping[str, float] = {"lr": 0.0}
        self.clear()

    def clear(self) -> None:
        """Begin new sums."""
        self._recent: dict[tuple[str, ...], _Recent] = {}
        self._totals: dict[str, _Total] = {}

    def add(self, losses: Mapping[str, Tensor], rows: int) -> None:
        """Add the losses of one batch."""
        names = tuple(losses)
        recent = self._recent.get(names)
        if recent is None:
            recent = self._recent[names] = _Recent()
        recent.values.extend(losses.values())
        recent.rows.append(rows)
        if len(recent.rows) == FOLD:
            self._fold(names)

    def extend(self, losses: Mapping[str, Tensor], rows: Sequence[int]) -> None:
        """Add the losses of several batches as if they were added one by one.

        Each has the shape (batches,) or (batches, runs).
        """
        names, each = tuple(losses), torch.stack(list(losses.values()), dim=1)
        begin = 0
        while begin < len(rows):
            recent = self._recent.setdefault(names, _Recent())
            end = min(len(rows), begin + FOLD - len(recent.rows))
            recent.values.append(each[begin:end])
            recent.rows.extend(rows[begin:end])
            if len(recent.rows) == FOLD:
                self._fold(names)
            begin = end

    def has_same_batches(self, other: Sums) -> bool:
        """Return whether two sums that end with the same batch also begin with the same one."""
        return self._count_batches() == other._count_batches()

    def _count_batches(self) -> tuple[dict[tuple[str, ...], int], dict[str, int]]:
        waiting = {names: len(each.rows) for names, each in self._recent.items()}
        return waiting, {name: total.count for name, total in self._totals.items()}

    def take(self, per_row: bool) -> Metrics:
        """Return mean losses since the last call (absent if none) and the last rates, of shape (1,)."""
        found: dict[str, Any] = {
            name: np.array([rate], dtype=np.float64) for name, rate in self.rates.items()
        }
        for names in list(self._recent):
            self._fold(names)
        for name, total in sorted(self._totals.items(), key=lambda item: item[0] != "loss"):
            summed = total.by_row if per_row else total.by_batch
            found[f"train_{name}"] = (summed / total.count).reshape(-1)
        self.clear()
        return found

    def _fold(self, names: tuple[str, ...]) -> None:
        recent = self._recent.pop(names)
        losses = self._stack(recent.values).to(self._device)
        losses = losses.to(torch.float64).view(-1, len(names), *self._tail)  # now: MPS does not support it
        rows = torch.tensor(recent.rows, dtype=torch.float64, device=self._device)
        rows = rows.view(-1, *[1] * (losses.ndim - 1))
        sums = zip((losses * rows).sum(0), losses.sum(0), strict=True)
        for name, (by_row, by_batch) in zip(names, sums, strict=True):
            if name in self._totals:
                before = self._totals[name]
                total = _Total(before.by_row + by_row, before.by_batch + by_batch, before.count)
            else:
                total = _Total(by_row, by_batch, 0)
            self._totals[name] = replace(total, count=total.count + sum(recent.rows))

    @property
    def _tail(self) -> list[int]:
        return [] if self._runs is None else [self._runs]

    @staticmethod
    def join(each: Sequence[Sums]) -> Sums:
        """Return sums of several runs with the same batches as one."""
        first = each[0]
        found = Sums(first._device, len(each))
        for names, recent in first._recent.items():
            columns = [own._stack(own._recent[names].values).view(-1, len(names)) for own in each]
            found._recent[names] = _Recent([torch.stack(columns, dim=-1)], list(recent.rows))
        for name, total in first._totals.items():
            by_row = torch.stack([own._totals[name].by_row for own in each])
            by_batch = torch.stack([own._totals[name].by_batch for own in each])
            found._totals[name] = _Total(by_row, by_batch, total.count)
        found.rates = {}
        return found

    def divide(self, each: Sequence[Sums]) -> None:
        """Copy the sums of several runs to their own."""
        stacks = {
            names: self._stack(recent.values).view(-1, len(names), *self._tail)
            for names, recent in self._recent.items()
        }
        for run, own in enumerate(each):
            own.clear()
            for names, stack in stacks.items():
                own._recent[names] = _Recent([stack[..., run]], list(self._recent[names].rows))
            for name, total in self._totals.items():
                own._totals[name] = _Total(total.by_row[run], total.by_batch[run], total.count)

    def _stack(self, values: Sequence[Tensor]) -> Tensor:
        if len({(value.dtype, value.device) for value in values}) > 1:
            values = [value.to(self._device).to(torch.float64) for value in values]
        if all(not value.ndim for value in values):
            return torch.stack(list(values))
        return torch.cat([value.reshape(-1) for value in values])

    def state(self) -> dict[str, Any]:
        """Return the sums without folding: the position of a checkpoint must not change a sum."""
        recent = [
            {"names": list(names), "values": self._stack(each.values), "rows": list(each.rows)}
            for names, each in self._recent.items()
        ]
        totals = {
            name: {"by_row": each.by_row, "by_batch": each.by_batch, "count": each.count}
            for name, each in self._totals.items()
        }
        return {
            "rates": dict(self.rates),
            **({"recent": recent} if recent else {}),
            **({"totals": totals} if totals else {}),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load a state."""
        self.clear()
        if state is None:
            return
        if "rate" in state:
            state = _translate_former(state)
        self.rates = state["rates"]
        for each in state.get("recent", ()):
            values = each["values"].to(self._device)
            names, rows = tuple(each["names"]), list(each["rows"])
            self._recent[names] = _Recent([values.view(len(rows), len(names))], rows)
        for name, each in state.get("totals", {}).items():
            by_row, by_batch = (each[key].to(self._device) for key in ("by_row", "by_batch"))
            self._totals[name] = _Total(by_row, by_batch, each["count"])


class EpochSums(Sums):
    """The losses of an epoch, which may have been summed for the log already."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.known: tuple[int, Metrics] | None = None
        """The step and the means of an epoch, if a row of the log covers exactly this epoch."""

    def take_at(self, step: int, rates: Mapping[str, float], per_row: bool) -> Metrics:
        """Return the means of the epoch that ends at a step, and the last rates; begin new sums."""
        known, self.known, self.rates = self.known, None, rates
        if known is not None and known[0] == step:
            self.clear()
            return known[1]
        return self.take(per_row)


def _translate_former(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a state written by an earlier version, which kept every loss by itself."""
    recent, totals = [], {}
    for name, each in {"loss": state, **state.get("named", {})}.items():
        if each.get("recent") is not None:
            recent.append({"names": [name], "values": each["recent"], "rows": each["rows"]})
        if each.get("count"):
            totals[name] = {key: each[key] for key in ("by_row", "by_batch", "count")}
    return {"rates": state.get("rates", {"lr": state["rate"]}), "recent": recent, "totals": totals}


class RowSums:
    """The mean of a per-row value. Sums stay on the device until the mean is fetched."""

    def __init__(self, device: torch.device, skips_undefined: bool) -> None:
        self._device = torch.device("cpu") if device.type == "mps" else device  # MPS does not support float64
        self._skips_undefined = skips_undefined
        self._sums: list[Tensor] = []
        self._counts: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave the device, so that another machine can continue."""
        counts = [count if isinstance(count, int) else count.cpu() for count in self._counts]
        sums = [each.cpu() for each in self._sums]
        return {**self.__dict__, "_device": torch.device("cpu"), "_sums": sums, "_counts": counts}

    def move_to(self, device: torch.device) -> None:
        """Continue on a device."""
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._sums = [each.to(self._device) for each in self._sums]

    def add(self, values: Tensor) -> None:
        """Add the values of a batch: one per row, or of several runs as (runs, rows)."""
        self.add_batches(values[None])

    def add_batches(self, values: Tensor) -> None:
        """Add the values of several batches of the same size, along the first dimension."""
        values = values.detach().to(self._device, torch.float64)
        if self._skips_undefined:
            undefined = values.isnan()
            self._counts.extend((values.shape[-1] - undefined.sum(-1)).unbind(0))
            values = values.masked_fill(undefined, 0.0)
        else:
            self._counts += [values.shape[-1]] * len(values)
        self._sums.extend(values.sum(-1).unbind(0))

    def mean(self) -> Tensor:
        """Return the mean of each run, of shape (runs,); NaN if no row has a value."""
        total: Tensor = torch.stack(self._sums).sum(0) / sum(self._counts)
        return total.reshape(-1)
