"""Areas under curves: exactly from all scores, or from histograms whose size does not depend on the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

BUDGET: Final = 1 << 23
"""The number of bins of all classes together."""
FEWEST, MOST = 512, 8192
"""The number of bins of a class."""
HUGE: Final = 1e30
"""The largest score that is told apart from infinity."""

Measure = Callable[[Tensor, Tensor, bool], Tensor]
"""A function of the numbers of positive and negative rows by ascending score; whether scores are exact."""


class ScoreHistogram:
    """The number of positive rows and of all rows of each class, by score.

    Half of the bins are quantiles of scores that are already known, of negative and of positive rows, finer
    towards the top. The others cover all numbers, so that any further scores are told apart, too.
    """

    def __init__(self, known: Sequence[tuple[Tensor, Tensor]], are_odds: bool) -> None:
        """`known` are scores and truth of some rows, of the shape (rows, classes)."""
        classes, device = known[0][0].shape[1], known[0][0].device
        count = max(FEWEST, min(MOST, BUDGET // classes))
        edges = torch.empty(classes, count, dtype=torch.float32, device=device)
        grid = (make_even_grid if are_odds else make_uneven_grid)(count // 2).to(device)
        for number in range(classes):
            scores = torch.cat([each[:, number] for each, _ in known])
            is_positive = torch.cat([each[:, number] for _, each in known])
            edges[number] = choose_edges(scores, is_positive, count, grid)
        self._edges = edges
        self._counts = torch.zeros(2, classes * (count + 1), dtype=torch.int32, device=device)
        for scores, is_positive in known:
            self.update(scores, is_positive)

    def to(self, device: torch.device) -> ScoreHistogram:
        """Move to a device."""
        self._counts, self._edges = self._counts.to(device), self._edges.to(device)
        return self

    def update(self, scores: Tensor, is_positive: Tensor) -> None:
        """Add rows: scores and truth, of the shape (rows, classes)."""
        classes, count = self._edges.shape
        bins = torch.searchsorted(self._edges, scores.float().T.contiguous())
        bins += torch.arange(classes, device=scores.device)[:, None] * (count + 1)
        for counts, rows in zip(self._counts, (bins[is_positive.T], bins.view(-1)), strict=True):
            counts.index_add_(0, rows, counts.new_ones(1).expand(len(rows)))

    def measure(self, measure: Measure) -> tuple[Tensor, Tensor]:
        """Return the area under a curve and the number of positive rows, by class."""
        positive, rows = self._counts.view(2, len(self._edges), -1)
        values = [measure(ones, each - ones, False) for ones, each in zip(positive, rows, strict=True)]
        return torch.stack(values), positive.sum(1)


def choose_edges(scores: Tensor, is_positive: Tensor, count: int, grid: Tensor) -> Tensor:
    """Return sorted edges of bins: those of a grid, and quantiles of negative and of positive rows."""
    found, left = [grid], count - len(grid)
    for rows, share in ((~is_positive, left // 2), (is_positive, left - left // 2)):
        chosen = scores[rows] if bool(rows.any()) else scores
        chosen = chosen.clamp(-HUGE, HUGE).sort(descending=True).values
        places = torch.linspace(0, 1, share, dtype=torch.float64, device=scores.device) ** 3 * (
            len(chosen) - 1
        )
        below = chosen[places.ceil().long()]
        found.append(torch.lerp(chosen[places.long()], below, (places % 1).to(chosen.dtype)))
    return torch.cat([each.float() for each in found]).sort().values


def make_even_grid(count: int) -> Tensor:
    """Return numbers from -32 to 32, which are the log-odds that occur."""
    return torch.linspace(-32, 32, count)


def make_uneven_grid(count: int) -> Tensor:
    """Return numbers of both signs whose distances grow with their size."""
    half = torch.logspace(-8, 8, count // 2)
    return torch.cat([-half.flip(0), half, half.new_zeros(count - 2 * len(half))])


def measure_exactly(scores: Tensor, is_positive: Tensor, measure: Measure) -> tuple[Tensor, Tensor]:
    """Return the area under a curve and the number of positive rows, by class, from all scores."""
    values = []
    for each, ones in zip(scores.T, is_positive.T, strict=True):
        distinct, which = torch.unique(each, return_inverse=True)
        positive = torch.bincount(which[ones], minlength=len(distinct))
        values.append(measure(positive, torch.bincount(which, minlength=len(distinct)) - positive, True))
    return torch.stack(values), is_positive.sum(0)


def measure_roc(positive: Tensor, negative: Tensor, is_exact: bool) -> Tensor:
    """Return the area under the ROC curve; NaN without positive or without negative rows."""
    below = negative.cumsum(0) - negative / 2
    pairs = positive.sum(dtype=torch.double) * negative.sum()
    return (positive * below).sum(dtype=torch.double) / pairs


def measure_precision(positive: Tensor, negative: Tensor, is_exact: bool) -> Tensor:
    """Return the average precision; NaN without positive rows.

    Rows of a bin are taken to be in random order: of p positive ones, (p + 1) / 2 are above the middle.
    """
    positive, negative = positive.flip(0).double(), negative.flip(0).double()
    true, false = positive.cumsum(0), negative.cumsum(0)
    if not is_exact:
        true, false = true - (positive - 1) / 2, false - negative / 2
    precision = true / (true + false).clamp(min=1e-9)
    return (precision * positive).sum() / positive.sum()


def to_odds(scores: Tensor) -> Tensor:
    """Return class scores as log-odds of each class; scores are logits or probabilities along dimension 1."""
    wide = scores.double()
    total = wide.sum(dim=1)
    if not bool(((wide < 0) | (wide > 1)).any()) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        return wide.logit()
    likely = wide.log_softmax(dim=1)
    return likely - (-torch.expm1(likely)).log()


def average_classes(values: Tensor, rows: Tensor, average: str) -> Tensor:
    """Return the mean over classes, equal or weighted by their positive rows; undefined ones are left out."""
    is_known = ~values.isnan()
    weight = rows[is_known] if average == "weighted" else torch.ones_like(rows[is_known])
    return ((values[is_known] * weight).sum() / weight.sum()).float()


def split_classes(scores: Tensor, known: Tensor, classes: int, has_numbers: bool) -> Iterator[Tensor]:
    """Yield scores and truth of the shape (rows, classes); `known` may hold the numbers of the classes."""
    if scores.device.type == "mps":  # which does not support float64
        scores, known = scores.cpu(), known.cpu()
    flat = (scores.movedim(1, -1) if scores.ndim > 1 else scores).reshape(-1, classes)
    if has_numbers:
        yield to_odds(flat)
        yield torch.nn.functional.one_hot(known.reshape(-1).long(), classes).bool()
    else:
        yield flat.float() if flat.dtype != torch.float64 else flat
        yield (known.movedim(1, -1) if known.ndim > 1 else known).reshape(-1, classes).bool()
