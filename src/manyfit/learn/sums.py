"""What training adds up between two rows of the log, in an order that no pause and no restart changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
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
        self._by_row: Tensor | None = None
        self._by_batch: Tensor | None = None
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
        found: dict[str, Any] = {"lr": np.array([self.rate], dtype=np.float64)}
        total = self._by_row if per_row else self._by_batch
        if total is not None:
            found["train_loss"] = (total / self._count)[None]
        self._clear()
        return found

    def _fold(self) -> None:
        if not self._losses:
            return
        losses = torch.stack([loss.reshape(()) for loss in self._losses]).to(self._device)
        losses = losses.to(torch.float64)  # only now: MPS does not have it
        rows = torch.tensor(self._rows, dtype=torch.float64, device=self._device)
        by_row, by_batch = (losses * rows).sum(), losses.sum()
        self._by_row = by_row if self._by_row is None else self._by_row + by_row
        self._by_batch = by_batch if self._by_batch is None else self._by_batch + by_batch
        self._count += sum(self._rows)
        self._losses, self._rows = [], []

    def state(self) -> dict[str, Any]:
        """What was added up so far, without folding: where a checkpoint stands must not change a sum."""
        if not self._count and not self._losses:
            return {"rate": float(self.rate)}
        recent = torch.stack([loss.reshape(()) for loss in self._losses]) if self._losses else None
        return {
            "recent": recent,
            "rows": list(self._rows),
            "by_row": self._by_row,
            "by_batch": self._by_batch,
            "count": self._count,
            "rate": float(self.rate),
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state."""
        self._clear()
        if state is None:
            return
        self.rate = state["rate"]
        if "count" not in state:
            return
        if state["recent"] is not None:
            self._losses = list(state["recent"].to(self._device))
        self._rows = list(state["rows"])
        self._count = state["count"]
        if self._count:
            self._by_row, self._by_batch = (state[name].to(self._device) for name in ("by_row", "by_batch"))
