"""Facts about torch that its signatures do not state. torch itself is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

WARMUP: Final = "manyfit.schedules.warmup"
"""The schedule that is followed by another one; its length is a share of the training by default."""
HORIZONS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "torch.optim.lr_scheduler.CosineAnnealingLR": ("T_max", ("T_max",)),
    "torch.optim.lr_scheduler.OneCycleLR": ("total_steps", ("total_steps", "epochs", "steps_per_epoch")),
    "torch.optim.lr_scheduler.PolynomialLR": ("total_iters", ("total_iters",)),
    "torch.optim.lr_scheduler.LinearLR": ("total_iters", ("total_iters",)),
    "torch.optim.lr_scheduler.ConstantLR": ("total_iters", ("total_iters",)),
    "manyfit.schedules.LogSchedule": ("total_iters", ("total_iters",)),
    "manyfit.schedules.Triangular": ("period", ("period",)),
    WARMUP: ("steps", ("steps",)),
}
"""The parameter that sets the length of a schedule, and the parameters of which one must be given.

If none is given, the length is that of `train.horizon`.
"""


def missing_horizon(path: str, given: Mapping[str, Any]) -> str:
    """Return the parameter of a schedule to be filled in from `train.horizon`; empty if there is none."""
    name, alternatives = HORIZONS.get(path, ("", ()))
    return name if name and not any(other in given for other in alternatives) else ""


RATES: Final[Mapping[str, str]] = {
    "torch.optim.lr_scheduler.OneCycleLR": "max_lr",
    "torch.optim.lr_scheduler.CyclicLR": "max_lr",
}
"""The parameter of a schedule that replaces the learning rate of the optimizer."""


def missing_rate(path: str, given: Mapping[str, Any]) -> str:
    """Return the parameter to be filled in from the optimizer's learning rate; empty if there is none."""
    name = RATES.get(path, "") if path.endswith(".OneCycleLR") else ""
    return name if name not in given else ""


def is_dtype(qualified_name: str) -> bool:
    """Return whether an annotation is torch's dtype."""
    return qualified_name == "torch.dtype"


def takes_dtype(owner: str, parameter: str) -> bool:
    """Return whether a parameter of a torch class is a dtype without being annotated as one."""
    return parameter == "dtype" and owner.startswith("torch.") and "torch" in sys.modules


def dtypes() -> dict[str, Any]:
    """Return all dtypes by name; torch must be loaded."""
    torch = sys.modules["torch"]
    return {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
