"""Metrics of a split that are updated batch by batch: the same as for all rows at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.learn import streaming_metrics
from manyfit.metrics import F1, Auroc, AveragePrecision, Precision, Recall

torchmetrics = pytest.importorskip("torchmetrics")

REFERENCES = {F1: torchmetrics.F1Score, Precision: torchmetrics.Precision, Recall: torchmetrics.Recall}
CURVES = {Auroc: torchmetrics.AUROC, AveragePrecision: torchmetrics.AveragePrecision}


def update(metric, scores, target, size):
    for begin in range(0, len(scores), size):
        metric.update(scores[begin : begin + size], target[begin : begin + size])
    return float(metric.compute())


@given(st.integers(0, 999), st.integers(2, 6), st.integers(1, 40))
def test_classes(seed, classes, size):
    state = torch.Generator().manual_seed(seed)
    scores, target = torch.randn(60, classes, generator=state), torch.randint(classes, (60,), generator=state)
    for own, reference in {**REFERENCES, **CURVES}.items():
        expected = reference(task="multiclass", num_classes=classes, average="macro")(
            scores.softmax(1), target
        )
        assert update(own(), scores, target, size) == pytest.approx(float(expected), abs=1e-6)


@given(st.integers(0, 999), st.integers(1, 40), st.booleans())
def test_one_score(seed, size, has_column):
    """Logits, of which a batch may lie between 0 and 1: torchmetrics would take that batch as probabilities."""
    state = torch.Generator().manual_seed(seed)
    scores, target = torch.randn(60, generator=state), torch.randint(2, (60,), generator=state)
    given_scores = scores[:, None] if has_column else scores
    for own, reference in {**REFERENCES, **CURVES}.items():
        expected = reference(task="binary")(scores.sigmoid(), target)
        assert update(own(), given_scores, target.float(), size) == pytest.approx(float(expected), abs=1e-6)


def test_labels():
    scores, target = torch.randn(60, 4), torch.randint(2, (60, 4))
    expected = torchmetrics.F1Score(task="multilabel", num_labels=4, average="macro")(
        scores.sigmoid(), target
    )
    assert update(F1(), scores, target, 7) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("shape", [(3000, 5), (3000,)])
def test_many_scores_are_computed_at_thresholds(monkeypatch, shape):
    torch.manual_seed(0)
    scores = torch.randn(*shape)
    target = scores.argmax(1) if len(shape) > 1 else (scores + torch.randn(3000) > 0).long()
    target[::3] = 0
    exact = update(Auroc(), scores, target, 100)
    monkeypatch.setattr(streaming_metrics, "MOST_SCORES", 1000)
    metric = Auroc()
    assert update(metric, scores, target, 100) == pytest.approx(exact, abs=5e-3)
    assert not metric._kept


def test_shapes_that_do_not_fit_are_explained():
    with pytest.raises(ValueError, match="a score per class"):
        F1().update(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="0 or 1"):
        Auroc().update(torch.zeros(4), torch.tensor([0, 1, 2, 0]))
