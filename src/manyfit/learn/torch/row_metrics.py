"""Calls of per-row metrics, with checks of what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data import Batch
from manyfit.data.nested import Nested, is_nested
from manyfit.learn.split_metrics import HeadMetric, find_head, pairs_by_name

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


def measure_batch(
    metrics: Mapping[str, RowMetric], batch: Batch, output: Tensor, target: Nested, every: Nested
) -> dict[str, Tensor]:
    """Return the per-row metrics of a batch; metrics of a head measure its output."""
    if target is None:
        return {}
    rows, pairs = {}, dict[str, tuple[Any, Any]]()
    for name, metric in metrics.items():
        pair = (output, target)
        if isinstance(metric, HeadMetric) or is_nested(target):
            pairs = pairs or pairs_by_name(every, target)
            head = metric.head if isinstance(metric, HeadMetric) else next(iter(pairs))
            pair = find_head(name, head, pairs)
        rows[name] = call_metric(name, metric, *pair)
        check_rows(name, rows[name], batch)
    return rows
