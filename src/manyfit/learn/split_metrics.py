"""Metrics that see a whole split and give one number for it: those of torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyfit.core.errors import RunFailed


def is_split_metric(metric: Any) -> bool:
    """Whether a metric is one of torchmetrics: it sees all rows and then gives one number."""
    return hasattr(metric, "update") and hasattr(metric, "compute") and hasattr(metric, "reset")


class SplitMetrics:
    """The metrics of one run and one pass over a split."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = {name: metric.clone() for name, metric in metrics.items()}
        self._device: Any = None
        for metric in self._metrics.values():
            metric.reset()

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def update(self, output: Any, target: Any) -> None:
        """Show a batch to every metric; on the device, if it is there."""
        if not self._metrics or target is None:
            return
        import torch

        output, target = torch.as_tensor(output), torch.as_tensor(target)
        if output.device != self._device:
            self._device = output.device
            self._metrics = {name: metric.to(output.device) for name, metric in self._metrics.items()}
        for name, metric in self._metrics.items():
            try:
                metric.update(output, target)
            except Exception as error:
                shapes = f"output {tuple(output.shape)}, target {tuple(target.shape)}"
                raise RunFailed(
                    f"the metric {name!r} failed on {shapes}: {type(error).__name__}: {error}"
                ) from error

    def values(self) -> dict[str, float]:
        """Return one number for each metric."""
        found = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            if getattr(value, "numel", lambda: 1)() != 1:
                raise RunFailed(
                    f"the metric {name!r} must give one number, but gave shape {tuple(value.shape)}; "
                    "choose an average"
                )
            found[name] = float(value)
        return found
