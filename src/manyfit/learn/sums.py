"""What training adds up between two rows of the log, in an order that no pause and no restart changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyfit.learn.learner import Metrics

FOLD = 256


class Sums:
    """Losses, weighted by rows. They stay on the device; every 256 of them become one number."""

    def __init__(self, device: torch.device) -> None:
        # float64 is what keeps a sum of many losses exact enough, and MPS does not have it.
        self._device = torch.device("cpu") if device.type == "mps" else device
        self.rate = 0.0
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._rows: list[int] = []
        self._by_row = torch.zeros((), dtype=torch.float64, device=self._device)
        self._by_batch = torch.zeros((), dtype=torch.float64, device=self._device)
        self._count = 0

    def add(self, loss: Tensor, rows: int) -> None:
        """Add the loss of one batch."""
        self._losses.append(loss)
        self._rows.append(rows)
        if len(self._losses) == FOLD:
            self._fold()

    def take(self, per_row: bool) -> Metrics:
        """The mean loss since the last call (absent if there was none) and the last rate, of shape (1,)."""
        self._fold()
        found: dict[str, Any] = {"lr": torch.tensor([self.rate], dtype=torch.float64)}
        if self._count:
            found["train_loss"] = ((self._by_row if per_row else self._by_batch) / self._count)[None]
        self._clear()
        return found

    def _fold(self) -> None:
        if not self._losses:
            return
        losses = torch.stack([loss.reshape(()) for loss in self._losses])
        losses = losses.to(self._device).to(torch.float64)
        rows = torch.tensor(self._rows, dtype=torch.float64, device=self._device)
        self._by_row += (losses * rows).sum()
        self._by_batch += losses.sum()
        self._count += sum(self._rows)
        self._losses, self._rows = [], []

    def state(self) -> dict[str, Any]:
        """What was added up so far, without folding: where a checkpoint stands must not change a sum."""
        recent = torch.stack([loss.reshape(()) for loss in self._losses]) if self._losses else None
        return {
            "recent": recent,
            "rows": list(self._rows),
            "by_row": self._by_row.clone(),
            "by_batch": self._by_batch.clone(),
            "count": self._count,
            "rate": float(self.rate),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state."""
        self._clear()
        if state is None:
            return
        if state["recent"] is not None:
            self._losses = list(state["recent"].to(self._device))
        self._rows = list(state["rows"])
        self._by_row.copy_(state["by_row"])
        self._by_batch.copy_(state["by_batch"])
        self._count = state["count"]
        self.rate = state["rate"]
