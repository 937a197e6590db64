"""Learning rate schedules that torch does not have: logarithmic, triangular, by epoch, and warm-up.

All are functions of the number of steps, so that a resumed run continues with the same rates. `period` and
`total_iters` are the length of the training by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, LRScheduler, SequentialLR

from manyfit.core.errors import UsageError


class FactorSchedule(LRScheduler):
    """A schedule whose rate is the initial rate times a function of the number of steps."""

    def factor(self, step: int) -> float:
        """Return the factor at a step."""
        raise NotImplementedError

    def get_lr(self) -> list[Any]:
        """Return the rate of each parameter group."""
        return [rate * self.factor(self.last_epoch) for rate in self.base_lrs]


class LogSchedule(FactorSchedule):
    """From the initial rate to `end_factor` times that rate, linear in the logarithm of the rate."""

    def __init__(self, optimizer: Optimizer, total_iters: int, end_factor: float = 1e-3) -> None:
        if end_factor <= 0 or total_iters < 1:
            raise ValueError("end_factor must be positive, and total_iters at least 1")
        self.total_iters = total_iters
        self.end_factor = end_factor
        super().__init__(optimizer)

    def factor(self, step: int) -> float:
        """Return the factor at a step."""
        return float(self.end_factor ** (min(step, self.total_iters) / self.total_iters))


class Triangular(FactorSchedule):
    """A rate that rises and falls in each period, between `low_factor` times the initial rate and that rate.

    `mode` is how the peak changes: `constant`, `halving` in every period, or `exponential` with every step
    (`gamma`). `shape` is the form of a period: linear, or a cosine.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        period: int,
        low_factor: float = 0.1,
        mode: Literal["constant", "halving", "exponential"] = "constant",
        gamma: float = 0.999,
        shape: Literal["linear", "cosine"] = "linear",
    ) -> None:
        if period < 2 or not 0 <= low_factor < 1 or not 0 < gamma <= 1:
            raise ValueError("period must be at least 2, low_factor in 0…1, and gamma in 0…1")
        self.period = period
        self.low_factor = low_factor
        self.mode = mode
        self.gamma = gamma
        self.shape = shape
        super().__init__(optimizer)

    def factor(self, step: int) -> float:
        """Return the factor at a step."""
        cycle, place = divmod(step, self.period)
        height = 1 - abs(2 * place / self.period - 1)
        if self.shape == "cosine":
            height = (1 - math.cos(math.pi * height)) / 2
        scale = {"constant": 1.0, "halving": 0.5**cycle, "exponential": self.gamma**step}[self.mode]
        return self.low_factor + (1 - self.low_factor) * height * scale


class ByEpoch(FactorSchedule):
    """Factors of the initial rate that are set at some epochs, or steps: {0: 1.0, 30: 0.1, 60: 0.01}."""

    def __init__(self, optimizer: Optimizer, factors: Mapping[int, float]) -> None:
        if not factors or min(factors) < 0 or min(factors.values()) < 0:
            raise ValueError("factors must map epochs, from 0, to factors that are not negative")
        self.factors = {int(step): float(factor) for step, factor in sorted(factors.items())}
        super().__init__(optimizer)

    def factor(self, step: int) -> float:
        """Return the factor at a step."""
        return next((f for at, f in reversed(list(self.factors.items())) if at <= step), 1.0)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; JSON has made the keys text."""
        super().load_state_dict(state_dict)
        self.factors = {int(step): float(factor) for step, factor in self.factors.items()}


def warmup(
    optimizer: Optimizer,
    then: LRScheduler | None = None,
    steps: int | None = None,
    share: float = 0.05,
    start_factor: float = 0.01,
) -> LRScheduler:
    """Rise linearly from `start_factor` times the rate, then follow another schedule, or stay constant.

    The rise takes `steps`, or else a `share` of the training.
    """
    if steps is None or steps < 1 or not 0 < start_factor <= 1:
        raise ValueError("steps must be at least 1, and start_factor in 0…1")
    if then is not None and not isinstance(then, LRScheduler):
        raise UsageError("train.scheduler: a plateau schedule cannot follow a warm-up")
    if type(then) is torch.optim.lr_scheduler.ReduceLROnPlateau:
        raise UsageError("train.scheduler: a plateau schedule cannot follow a warm-up")
    rise = LinearLR(optimizer, start_factor, 1.0, steps)
    rest = then if then is not None else ConstantLR(optimizer, 1.0, 1)
    return SequentialLR(optimizer, [rise, rest], [steps])


class MomentumSchedule:
    """A schedule of the momentum, or of the first beta, of an optimizer.

    It follows a learning rate schedule of a stand-in whose rates are the momenta.
    """

    def __init__(self, optimizer: Optimizer, make: Any) -> None:
        """`make` returns a schedule for the optimizer that it is called with."""
        self.optimizer = optimizer
        self.key = next((key for key in ("momentum", "betas") if key in optimizer.param_groups[0]), "")
        if not self.key:
            raise UsageError(
                f"train.momentum_scheduler: {type(optimizer).__name__} has no momentum to schedule"
            )
        groups = [{"params": [torch.zeros(1)], "lr": value} for value in self.read()]
        self.stand_in = torch.optim.SGD(groups, lr=1.0)
        self.schedule = make(self.stand_in)
        self.write()

    def read(self) -> list[float]:
        """Return the momentum of each parameter group."""
        found = [group[self.key] for group in self.optimizer.param_groups]
        return [float(value[0] if self.key == "betas" else value) for value in found]

    def write(self) -> None:
        """Set the momentum of each parameter group to what the schedule says."""
        for group, source in zip(self.optimizer.param_groups, self.stand_in.param_groups, strict=False):
            group[self.key] = (source["lr"], *group["betas"][1:]) if self.key == "betas" else source["lr"]

    def step(self) -> None:
        """Advance the schedule."""
        self.stand_in.step()  # has no gradients; torch warns about schedules of optimizers that never step
        self.schedule.step()
        self.write()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule, and the momenta."""
        rates = [float(group["lr"]) for group in self.stand_in.param_groups]
        return {"schedule": self.schedule.state_dict(), "rates": rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state."""
        self.schedule.load_state_dict(state["schedule"])
        for group, rate in zip(self.stand_in.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        self.write()
