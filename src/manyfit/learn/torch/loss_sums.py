"""Running sums of training losses between two log entries; pauses and restarts do not change their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyfit.learn.learner import Metrics

FOLD = 256


class Sums:
    """Losses weighted by rows. They stay on the device; every 256 of them are folded into one number."""

    def __init__(self, device: torch.device) -> None:
        # A sum of many losses needs the precision of float64, which MPS does not support.
        self._device = torch.device("cpu") if device.type == "mps" else device
        self.rates: Mapping[str, float] = {"lr": 0.0}
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._rows: list[int] = []
        self._by_row: Tensor | None = None
        self._by_batch: Tensor | None = None
        self._count = 0
        self._named: dict[str, Sums] = {}

    def add_named(self, losses: Mapping[str, Tensor], rows: int) -> None:
        """Add further named losses of one batch."""
        for name, loss in losses.items():
            if name not in self._named:
                self._named[name] = Sums(self._device)
            self._named[name].add(loss, rows)

    def add(self, loss: Tensor, rows: int) -> None:
        """Add the loss of one batch."""
        self._losses.append(loss)
        self._rows.append(rows)
        if len(self._losses) == FOLD:
            self._fold()

    def take(self, per_row: bool) -> Metrics:
        """Return mean losses since the last call (absent if none) and the last rates, of shape (1,)."""
        found: dict[str, Any] = {
            name: np.array([rate], dtype=np.float64) for name, rate in self.rates.items()
        }
        if (mean := self._mean(per_row)) is not None:
            found["train_loss"] = mean
        for name, each in self._named.items():
            found[f"train_{name}"] = each._mean(per_row)
        self._clear()
        return found

    def _mean(self, per_row: bool) -> Tensor | None:
        self._fold()
        total = self._by_row if per_row else self._by_batch
        return None if total is None else (total / self._count)[None]

    def _fold(self) -> None:
        if not self._losses:
            return
        losses = torch.stack([loss if not loss.ndim else loss.reshape(()) for loss in self._losses])
        losses = losses.to(self._device)
        losses = losses.to(torch.float64)  # only now, since MPS does not support it
        rows = torch.tensor(self._rows, dtype=torch.float64, device=self._device)
        by_row, by_batch = (losses * rows).sum(), losses.sum()
        self._by_row = by_row if self._by_row is None else self._by_row + by_row
        self._by_batch = by_batch if self._by_batch is None else self._by_batch + by_batch
        self._count += sum(self._rows)
        self._losses, self._rows = [], []

    def state(self) -> dict[str, Any]:
        """Return the sums without folding: the position of a checkpoint must not change a sum."""
        rates = {"rate": float(self.rates["lr"])}
        if len(self.rates) > 1:
            rates["rates"] = dict(self.rates)  # type: ignore[assignment]
        if not self._count and not self._losses and not self._named:
            return rates
        recent = torch.stack([loss.reshape(()) for loss in self._losses]) if self._losses else None
        return {
            "recent": recent,
            "rows": list(self._rows),
            "by_row": self._by_row,
            "by_batch": self._by_batch,
            "count": self._count,
            **rates,
            **({"named": {name: each.state() for name, each in self._named.items()}} if self._named else {}),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Load a state."""
        self._clear()
        if state is None:
            return
        self.rates = state.get("rates", {"lr": state["rate"]})
        if "count" not in state:
            return
        if state["recent"] is not None:
            self._losses = list(state["recent"].to(self._device))
        self._rows = list(state["rows"])
        self._count = state["count"]
        for name, part in state.get("named", {}).items():
            self._named[name] = Sums(self._device)
            self._named[name].load(part)
        if self._count:
            self._by_row, self._by_batch = (state[name].to(self._device) for name in ("by_row", "by_batch"))


class RowSums:
    """The mean of a per-row value. Sums stay on the device until the mean is fetched."""

    def __init__(self, device: torch.device, skips_undefined: bool) -> None:
        self._device = torch.device("cpu") if device.type == "mps" else device  # MPS does not support float64
        self._skips_undefined = skips_undefined
        self._sums: list[Tensor] = []
        self._counts: list[Any] = []

    def add(self, values: Tensor) -> None:
        """Add the values of a batch."""
        values = values.detach().to(self._device, torch.float64)
        if self._skips_undefined:
            undefined = values.isnan()
            self._counts.append(len(values) - undefined.sum())
            values = values.masked_fill(undefined, 0.0)
        else:
            self._counts.append(len(values))
        self._sums.append(values.sum())

    def mean(self) -> Tensor:
        """Return the mean, of shape (1,); NaN if no row has a value."""
        total: Tensor = torch.stack(self._sums).sum() / sum(self._counts)
        return total[None]
