"""Calls of per-row metrics, with checks of what they return."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data import Batch

RowMetric = Callable[[Tensor, Tensor], Tensor]


def check_rows(name: str, values: Tensor, batch: Batch) -> None:
    """Check that there is one value per row of a batch."""
    if values.shape != (len(batch),):
        raise RunFailed(
            f"the metric {name!r} must return one number for each of {len(batch)} rows, "
            f"but returned shape {tuple(values.shape)}"
        )


def call_metric(name: str, metric: RowMetric, output: Tensor, target: Tensor) -> Tensor:
    """Call a metric; errors name it."""
    try:
        return torch.as_tensor(metric(output, target))
    except Exception as error:
        shapes = f"output {tuple(output.shape)}, target {tuple(target.shape)}"
        raise RunFailed(f"the metric {name!r} failed on {shapes}: {type(error).__name__}: {error}") from error
