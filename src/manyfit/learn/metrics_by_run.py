"""Metrics of the runs that a learner trains, and their transfer to the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Metrics: TypeAlias = Mapping[str, Any]
"""Arrays of shape (n,), on the device.

In training, `train_loss` is the mean over rows, `train_<name>` a further loss, `lr` the last learning rate of
the only optimizer, and `lr_<name>` that of each of several optimizers."""


def split_by_run(metrics: Metrics, n: int) -> list[dict[str, float]]:
    """Return the metrics of each run, without those masked for it, in one transfer from the device."""
    columns = fetch_all(metrics)
    masks = {name: np.ma.getmaskarray(value) for name, value in metrics.items() if np.ma.isMaskedArray(value)}
    return [
        {
            name: float(column[i])
            for name, column in columns.items()
            if name not in masks or not masks[name][i]
        }
        for i in range(n)
    ]


def fetch_all(metrics: Metrics) -> dict[str, npt.NDArray[np.float64]]:
    """Copy metrics to the CPU; those of the same device, dtype and shape in one transfer."""
    alike: dict[Any, list[str]] = {}
    for name, value in metrics.items():
        if hasattr(value, "detach") and getattr(value, "is_cuda", False):
            alike.setdefault((value.device, value.dtype, tuple(value.shape)), []).append(name)
    found: dict[str, npt.NDArray[np.float64]] = {}
    for names in alike.values():
        import torch

        stacked = fetch(torch.stack([metrics[name] for name in names]))
        found |= dict(zip(names, stacked, strict=True))
    return {name: found[name] if name in found else fetch(value) for name, value in metrics.items()}


def fetch(value: Any) -> npt.NDArray[np.float64]:
    """Copy a metric of a learner from its device to the CPU."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)
