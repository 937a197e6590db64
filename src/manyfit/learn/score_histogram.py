"""Areas under curves from histograms of scores, in memory that does not depend on the number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 32.0
"""The largest log-odds that are told apart."""
PER_UNIT: Final = 128
"""The number of bins per unit of log-odds: probabilities that differ by 0.8% are told apart."""
BINS: Final = int(2 * LARGEST * PER_UNIT) + 1


class ScoreHistogram:
    """The number of positive rows and of all rows of each class, by score in log-odds."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self._counts = torch.zeros(2, classes * BINS, dtype=torch.int32, device=device)
        self._classes = classes

    def to(self, device: torch.device) -> ScoreHistogram:
        """Move to a device."""
        self._counts = self._counts.to(device)
        return self

    def update(self, odds: Tensor, is_positive: Tensor) -> None:
        """Add rows: log-odds and truth, of the shape (rows, classes)."""
        bins = ((odds.float().clamp(-LARGEST, LARGEST) + LARGEST) * PER_UNIT).round_().to(torch.int64)
        bins += torch.arange(self._classes, device=odds.device) * BINS
        for counts, rows in zip(self._counts, (bins[is_positive], bins.view(-1)), strict=True):
            counts.index_add_(0, rows, counts.new_ones(1).expand(len(rows)))

    def measure_roc(self) -> tuple[Tensor, Tensor]:
        """Return the area under the ROC curve and the number of positive rows, by class."""
        return self._measure(_measure_roc)

    def measure_precision(self) -> tuple[Tensor, Tensor]:
        """Return the average precision and the number of positive rows, by class."""
        return self._measure(_measure_precision)

    def _measure(self, measure: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        positive, rows = self._counts.view(2, self._classes, BINS)
        values = [measure(ones, each - ones) for ones, each in zip(positive, rows, strict=True)]
        return torch.stack(values), positive.sum(1)


def _measure_roc(positive: Tensor, negative: Tensor) -> Tensor:
    below = negative.cumsum(0) - negative / 2
    pairs = positive.sum(dtype=torch.double) * negative.sum()
    return (positive * below).sum(dtype=torch.double) / pairs.clamp(min=1)


def _measure_precision(positive: Tensor, negative: Tensor) -> Tensor:
    """Rows of a bin are taken to be in random order: of p positive ones, (p + 1) / 2 are above the middle."""
    positive, negative = positive.flip(0).double(), negative.flip(0).double()
    true = positive.cumsum(0) - (positive - 1) / 2
    false = negative.cumsum(0) - negative / 2
    precision = true / (true + false).clamp(min=1e-9)
    return (precision * positive).sum() / positive.sum()


def to_odds(scores: Tensor, is_logit: bool) -> Tensor:
    """Return scores as log-odds: probabilities are converted, logits are log-odds."""
    return scores if is_logit else torch.logit(scores.double(), eps=0.0).float()


def average_classes(values: Tensor, rows: Tensor, average: str) -> Tensor:
    """Return the mean over classes, equal or weighted by their positive rows; undefined ones are left out."""
    is_known = ~values.isnan()
    weight = rows[is_known] if average == "weighted" else torch.ones_like(rows[is_known])
    return ((values[is_known] * weight).sum() / weight.sum()).float()
