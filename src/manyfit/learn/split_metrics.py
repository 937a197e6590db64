"""Metrics with one value per split, in the interface of torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyfit.core.errors import RunFailed


def is_split_metric(metric: Any) -> bool:
    """Return whether a metric has the interface of torchmetrics: `update`, `compute` and `reset`."""
    return hasattr(metric, "update") and hasattr(metric, "compute") and hasattr(metric, "reset")


class SplitMetrics:
    """The metrics of one run over one pass through a split."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = {name: metric.clone() for name, metric in metrics.items()}
        self._device: Any = None
        self._values: dict[str, float] | None = None
        for metric in self._metrics.values():
            metric.reset()

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the device, so that another machine can continue."""
        metrics = {name: metric.cpu() for name, metric in self._metrics.items()}
        return {**self.__dict__, "_metrics": metrics, "_device": None}

    def update(self, output: Any, target: Any) -> None:
        """Update every metric with a batch, on the device of the outputs."""
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
        """Return the value of each metric. They are computed once: computing may draw random numbers."""
        if self._values is not None:
            return self._values
        found = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            if getattr(value, "numel", lambda: 1)() != 1:
                raise RunFailed(
                    f"the metric {name!r} must return one number, but returned shape {tuple(value.shape)}; "
                    "choose an average"
                )
            found[name] = float(value)
        self._values = found
        return found
