"""What has to be known about torch that its signatures do not say. torch itself is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

HORIZONS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "torch.optim.lr_scheduler.CosineAnnealingLR": ("T_max", ("T_max",)),
    "torch.optim.lr_scheduler.OneCycleLR": ("total_steps", ("total_steps", "epochs", "steps_per_epoch")),
    "torch.optim.lr_scheduler.PolynomialLR": ("total_iters", ("total_iters",)),
    "torch.optim.lr_scheduler.LinearLR": ("total_iters", ("total_iters",)),
    "torch.optim.lr_scheduler.ConstantLR": ("total_iters", ("total_iters",)),
}
"""The parameter that says how long a schedule lasts, and the parameters of which one must be given.

Where none of them is, the length follows from `train.horizon`.
"""


def missing_horizon(path: str, given: Mapping[str, Any]) -> str:
    """The parameter of a schedule that `train.horizon` has to fill in; empty if there is none."""
    name, alternatives = HORIZONS.get(path, ("", ()))
    return name if name and not any(other in given for other in alternatives) else ""


RATES: Final[Mapping[str, str]] = {
    "torch.optim.lr_scheduler.OneCycleLR": "max_lr",
    "torch.optim.lr_scheduler.CyclicLR": "max_lr",
}
"""The parameter of a schedule that takes the place of the optimiser's rate."""


def missing_rate(path: str, given: Mapping[str, Any]) -> str:
    """The parameter of a schedule that the optimiser's rate has to fill in; empty if there is none."""
    name = RATES.get(path, "") if path.endswith(".OneCycleLR") else ""
    return name if name not in given else ""


def is_dtype(qualified_name: str) -> bool:
    """Whether an annotation is torch's dtype."""
    return qualified_name == "torch.dtype"


def takes_dtype(owner: str, parameter: str) -> bool:
    """Whether a parameter of a torch class is a dtype, although no annotation says so."""
    return parameter == "dtype" and owner.startswith("torch.") and "torch" in sys.modules


def dtypes() -> dict[str, Any]:
    """Every dtype by its name, once torch is loaded."""
    torch = sys.modules["torch"]
    return {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
