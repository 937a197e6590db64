"""Metrics of a whole split that are updated batch by batch, in bounded memory: F1, AUROC and others.

They are metrics of torchmetrics (extra `metrics`) whose task follows from the shapes of the first batch:

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
from manyfit.learn.score_histogram import ScoreHistogram, average_classes, to_odds

MOST_SCORES: Final = 1 << 22
"""The number of scores that are kept to compute a curve exactly; beyond, it is computed from histograms."""
AT_ONCE: Final = 1 << 18
"""The number of scores that are processed at once."""


class StreamingMetric:
    """A metric of torchmetrics, built when the first batch is seen."""

    name: ClassVar[str]
    """The name of the class in torchmetrics."""

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
        import_optional("torchmetrics", "metrics")

    def clone(self) -> Any:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def reset(self) -> None:
        """Forget all batches."""
        self._metric = None
        self._waiting, self._size = [], 0

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
            outputs, targets = zip(*group, strict=True)
            self.add(torch.cat(outputs), torch.cat(targets))

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

    def _build(self, task: str, classes: int, **options: Any) -> Any:
        torchmetrics: Any = import_optional("torchmetrics", "metrics")
        count = {"binary": {}, "multiclass": {"num_classes": classes}, "multilabel": {"num_labels": classes}}
        average = {} if task == "binary" else {"average": self.average}
        return getattr(torchmetrics, self.name)(task=task, **count[task], **average, **options)

    def compute(self) -> Tensor:
        """Return the value for all batches."""
        self.flush()
        if self._metric is None:
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
    """A metric of a curve over all thresholds.

    It is exact up to four million scores. Beyond, scores are counted in bins of log-odds, 1/128 wide.
    """

    def __init__(self, average: Literal["macro", "weighted"] = "macro") -> None:
        super().__init__(average)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._count = 0
        self._task = ("", 0)
        self._is_logit = False
        self._histogram: ScoreHistogram | None = None

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._kept, self._count, self._is_logit, self._histogram = [], 0, False, None

    def to(self, device: Any) -> Any:
        """Move to a device."""
        self._kept = [(scores.to(device), known.to(device)) for scores, known in self._kept]
        if self._histogram is not None:
            self._histogram = self._histogram.to(device)
        return super().to(device)

    def add(self, output: Tensor, target: Tensor) -> None:
        """Add rows to the metric, or to those that are kept."""
        task, classes, scores, known = read_task(output, target)
        self._task = (task, classes)
        scores = to_probabilities(scores.detach()) if task == "multiclass" else scores.detach()
        self._kept.append((scores, known))
        self._count += scores.numel()
        if self._count > MOST_SCORES:
            self._count_kept()

    def _count_kept(self) -> None:
        """Count what is kept in histograms, and forget it."""
        kept, self._kept = self._kept, []
        task, classes = self._task
        if self._histogram is None:
            self._is_logit = task != "multiclass" and any(is_outside(scores) for scores, _ in kept)
            self._histogram = ScoreHistogram(classes, kept[0][0].device)
        for scores, known in kept:
            odds = to_odds(scores, self._is_logit)
            if task == "multiclass":
                odds, known = odds.movedim(1, -1).reshape(-1, classes), known.reshape(-1)
                is_positive = torch.nn.functional.one_hot(known, classes).bool()
            else:
                odds, is_positive = odds.reshape(-1, classes), known.reshape(-1, classes).bool()
            self._histogram.update(odds, is_positive)

    def compute(self) -> Tensor:
        """Return the value for all batches."""
        self.flush()
        if self._histogram is not None:
            self._count_kept()
            return average_classes(*self.measure(self._histogram), self.average)
        if not self._kept:
            return super().compute()
        scores, known = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        metric = self._build(*self._task)
        metric.to(scores.device).update(scores, known)
        found: Tensor = metric.compute()
        return found

    def measure(self, histogram: ScoreHistogram) -> tuple[Tensor, Tensor]:
        """Return the area under the curve and the number of positive rows, by class."""
        raise NotImplementedError


class Auroc(CurveMetric):
    """The area under the ROC curve, averaged over classes."""

    name = "AUROC"

    def measure(self, histogram: ScoreHistogram) -> tuple[Tensor, Tensor]:
        """Return the area under the ROC curve."""
        return histogram.measure_roc()


class AveragePrecision(CurveMetric):
    """The average precision: the area under the precision-recall curve, averaged over classes."""

    name = "AveragePrecision"

    def measure(self, histogram: ScoreHistogram) -> tuple[Tensor, Tensor]:
        """Return the average precision."""
        return histogram.measure_precision()


def read_task(output: Tensor, target: Tensor) -> tuple[str, int, Tensor, Tensor]:
    """Return the task, the number of classes, scores and targets, as torchmetrics expects them."""
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


def is_outside(scores: Tensor) -> bool:
    """Return whether scores cannot be probabilities."""
    return bool(((scores < 0) | (scores > 1)).any())


def to_probabilities(scores: Tensor) -> Tensor:
    """Return class scores as probabilities along dimension 1; probabilities are returned unchanged."""
    total = scores.sum(dim=1)
    if not is_outside(scores) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        return scores
    return scores.softmax(dim=1)
