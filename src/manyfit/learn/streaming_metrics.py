"""Metrics of a whole split that are updated batch by batch, in bounded memory: F1, AUROC and others.

F1, precision and recall are those of torchmetrics (extra `metrics`); areas under curves are computed here.
The task follows from the shapes of the first batch:

| output | target | task |
|---|---|---|
| a score per class | a class index | multiclass |
| one score | 0 or 1 | binary |
| a score per label | 0 or 1 per label | multilabel |
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor

from manyfit.core.lazy import import_optional
from manyfit.learn.score_histogram import (
    Measure,
    ScoreHistogram,
    average_classes,
    measure_exactly,
    measure_precision,
    measure_roc,
    split_classes,
)

MOST_SCORES: Final = 1 << 22
"""The number of scores that are kept to compute a curve exactly; beyond, it is computed from histograms."""
AT_ONCE: Final = 1 << 18
"""The number of scores that are processed at once."""


class StreamingMetric:
    """A metric of torchmetrics, built when the first batch is seen."""

    name: ClassVar[str] = ""
    """The name of the class in torchmetrics; empty if it is not used."""

    def __init__(
        self, average: Literal["macro", "micro", "weighted"] = "macro", threshold: float = 0.0
    ) -> None:
        """`threshold` separates the two classes of a single score: 0 for logits, 0.5 for probabilities."""
        self.average = average
        self.threshold = threshold
        self._metric: Any = None
        self._device: Any = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._size = 0
        self._has_nan = False
        if self.name:
            import_optional("torchmetrics", "metrics")

    def clone(self) -> Any:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def reset(self) -> None:
        """Forget all batches."""
        self._metric = None
        self._waiting, self._size, self._has_nan = [], 0, False

    def to(self, device: Any) -> Any:
        """Move to a device."""
        self._device = device
        self._waiting = [(output.to(device), target.to(device)) for output, target in self._waiting]
        if self._metric is not None:
            self._metric = self._metric.to(device)
        return self

    def cpu(self) -> Any:
        """Move to the CPU."""
        return self.to(torch.device("cpu"))

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add a batch. Several are processed together, since each call of a metric takes its time."""
        if not self._waiting:
            read_task(output, target)  # raises an error for shapes that fit no task
        self._waiting.append((output.detach(), target.detach()))
        self._size += output.numel()
        if self._size >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Process the batches that wait; those of the same shape at once."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        for _, group in itertools.groupby(waiting, lambda pair: (pair[0].shape[1:], pair[1].shape[1:])):
            outputs, targets = (torch.cat(parts) for parts in zip(*group, strict=True))
            if bool(outputs.isnan().any()):
                self._has_nan = True  # the metric is undefined
            else:
                self.add(outputs, targets)

    def add(self, output: Tensor, target: Tensor) -> None:
        """Add rows to the metric."""
        task, classes, scores, known = read_task(output, target)
        if task == "multiclass":
            self._update(task, classes, scores.argmax(1), known)
        else:
            self._update(task, classes, (scores > self.threshold).to(torch.int64), known)

    def _update(self, task: str, classes: int, found: Tensor, known: Tensor) -> None:
        if self._metric is None:
            self._metric = self._build(task, classes).to(found.device)
        self._metric.update(found, known)

    def _build(self, task: str, classes: int) -> Any:
        torchmetrics: Any = import_optional("torchmetrics", "metrics")
        count = {"binary": {}, "multiclass": {"num_classes": classes}, "multilabel": {"num_labels": classes}}
        average = {} if task == "binary" else {"average": self.average}
        return getattr(torchmetrics, self.name)(task=task, **count[task], **average)

    def compute(self) -> Tensor:
        """Return the value for all batches."""
        self.flush()
        if self._metric is None or self._has_nan:
            return torch.tensor(float("nan"))
        found: Tensor = self._metric.compute()
        return found


class F1(StreamingMetric):
    """The F1 score: the harmonic mean of precision and recall, averaged over classes."""

    name = "F1Score"


class Precision(StreamingMetric):
    """The precision, averaged over classes."""

    name = "Precision"


class Recall(StreamingMetric):
    """The recall, averaged over classes."""

    name = "Recall"


class CurveMetric(StreamingMetric):
    """A metric of a curve over all thresholds. Classes for which it is undefined are left out of the mean.

    It is exact up to four million scores. Beyond, scores are counted in bins, at most 8,192 per class.
    """

    curve: ClassVar[Any]

    def __init__(self, average: Literal["macro", "weighted"] = "macro") -> None:
        super().__init__(average)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._count = 0
        self._histogram: ScoreHistogram | None = None

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._kept, self._count, self._histogram = [], 0, None

    def to(self, device: Any) -> Any:
        """Move to a device."""
        self._kept = [(scores.to(device), known.to(device)) for scores, known in self._kept]
        if self._histogram is not None:
            self._histogram = self._histogram.to(device)
        return super().to(device)

    def add(self, output: Tensor, target: Tensor) -> None:
        """Add rows to those that are kept, or to the histogram."""
        task, classes, scores, known = read_task(output, target)
        found, truth = split_classes(scores, known, classes, task == "multiclass")
        if self._histogram is not None:
            self._histogram.update(found, truth)
            return
        self._kept.append((found, truth))
        self._count += found.numel()
        if self._count > MOST_SCORES:
            self._histogram, self._kept = ScoreHistogram(self._kept, task == "multiclass"), []

    def compute(self) -> Tensor:
        """Return the value for all batches."""
        self.flush()
        measure: Measure = type(self).curve
        if self._has_nan or (self._histogram is None and not self._kept):
            return torch.tensor(float("nan"))
        if self._histogram is not None:
            return average_classes(*self._histogram.measure(measure), self.average)
        scores, truth = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        return average_classes(*measure_exactly(scores, truth, measure), self.average)


class Auroc(CurveMetric):
    """The area under the ROC curve, averaged over classes."""

    curve = staticmethod(measure_roc)


class AveragePrecision(CurveMetric):
    """The average precision: the area under the precision-recall curve, averaged over classes."""

    curve = staticmethod(measure_precision)


def read_task(output: Tensor, target: Tensor) -> tuple[str, int, Tensor, Tensor]:
    """Return the task, the number of classes, scores and targets, as torchmetrics expects them."""
    if target.ndim > 1 and target.shape[-1] == 1 and target.ndim == output.ndim:
        target = target.squeeze(-1)
    if output.ndim == target.ndim + 1 and output.shape[1] > 1 and not target.is_floating_point():
        return "multiclass", output.shape[1], output, target
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    if target.ndim == output.ndim + 1 and target.shape[-1] == 1:
        target = target.squeeze(-1)
    if output.shape != target.shape:
        raise ValueError(
            "expected a score per class and class indices, or one score and a target of 0 or 1; but the "
            f"output has the shape {tuple(output.shape)} and the target {tuple(target.shape)}"
        )
    if not bool(((target == 0) | (target == 1)).all()):
        raise ValueError("the targets of a single score must be 0 or 1")
    known = target.to(torch.int64)
    if output.ndim == 1:
        return "binary", 1, output, known
    return "multilabel", output.shape[1], output, known
