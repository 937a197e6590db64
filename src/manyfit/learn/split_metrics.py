"""Metrics with one value per split, in the interface of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.names import listing
from manyfit.data.nested import Nested, pair_outputs


def is_split_metric(metric: Any) -> bool:
    """Return whether a metric has the interface of torchmetrics: `update`, `compute` and `reset`."""
    metric = metric.metric if isinstance(metric, HeadMetric) else metric
    return hasattr(metric, "update") and hasattr(metric, "compute") and hasattr(metric, "reset")


@dataclass(frozen=True)
class HeadMetric:
    """A metric of one of several outputs, in the interface of torchmetrics or as a per-row function."""

    metric: Any
    head: str

    def __call__(self, output: Any, target: Any) -> Any:
        """Return the per-row values of the metric."""
        return self.metric(output, target)


def find_head(name: str, head: str, pairs: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the output and the target of a head."""
    if head not in pairs:
        raise UsageError(
            f"train.metrics: {name} belongs to the output {head!r}, but there are {listing(list(pairs))}"
        )
    return pairs[head]


def pairs_by_name(outputs: Nested, targets: Nested) -> dict[str, tuple[Any, Any]]:
    """Return every output by name, with its target."""
    return {name: (output, target) for name, output, target in pair_outputs(outputs, targets)}


class SplitMetrics:
    """The metrics of one run over one pass through a split."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._heads = {name: m.head for name, m in metrics.items() if isinstance(m, HeadMetric)}
        """The outputs that metrics belong to, for models with several."""
        plain = {name: m.metric if isinstance(m, HeadMetric) else m for name, m in metrics.items()}
        self._metrics = {name: metric.clone() for name, metric in plain.items()}
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

    def reset(self) -> None:
        """Begin a new pass."""
        self._values = None
        for metric in self._metrics.values():
            metric.reset()

    def update(self, output: Any, target: Any, every: Callable[[], tuple[Nested, Nested]]) -> None:
        """Update every metric with a batch, on the device of the outputs.

        `output` and `target` are the main ones; `every` returns all of them, for metrics of one head.
        """
        if not self._metrics or target is None:
            return
        pairs = pairs_by_name(*every()) if self._heads else {}
        for name, metric in self._metrics.items():
            pair = find_head(name, self._heads[name], pairs) if name in self._heads else (output, target)
            self._update_one(name, metric, *pair)

    def _update_one(self, name: str, metric: Any, output: Any, target: Any) -> None:
        import torch

        output, target = torch.as_tensor(output), torch.as_tensor(target)
        if output.dtype is torch.bfloat16:  # same values as in reports: NumPy has no bfloat16
            output = output.float()
        if output.device != self._device:
            self._device = output.device
            self._metrics = {key: each.to(output.device) for key, each in self._metrics.items()}
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
            try:
                value = metric.compute()
            except ValueError as error:
                raise RunFailed(f"the metric {name!r} failed: {error}") from error
            if getattr(value, "numel", lambda: 1)() != 1:
                raise RunFailed(
                    f"the metric {name!r} must return one number, but returned shape {tuple(value.shape)}; "
                    "choose an average"
                )
            found[name] = float(value)
        self._values = found
        return found
