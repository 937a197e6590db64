"""Metrics of a split that are updated batch by batch: the same as for all rows at once."""

import subprocess
import sys

import numpy as np
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


SHAPES = {"classes": (3000, 5), "one": (3000,), "labels": (3000, 4), "pixels": (100, 5, 6, 5)}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("own", CURVES)
@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.filterwarnings("ignore:No positive")
def test_many_scores_are_counted_in_bins(monkeypatch, kind, own, average):
    torch.manual_seed(0)
    scores = torch.randn(SHAPES[kind])
    noisy = scores + torch.randn_like(scores)
    target = (noisy > 0).long() if kind in ("one", "labels") else noisy.argmax(1)
    target[::3] = 0
    if kind == "classes":
        target[target == 3] = 1  # one that does not occur
    for known in (scores, scores.sigmoid() if kind in ("one", "labels") else scores.softmax(1)):
        exact = update(own(average), known, target, 100)
        monkeypatch.setattr(streaming_metrics, "MOST_SCORES", 1000)
        monkeypatch.setattr(streaming_metrics, "AT_ONCE", 500)
        metric = own(average)
        assert update(metric, known, target, 100) == pytest.approx(exact, abs=1e-3)
        assert metric._histogram is not None and not metric._kept
        monkeypatch.undo()


@pytest.mark.parametrize("own", CURVES)
@pytest.mark.parametrize("most", [1 << 22, 1000])
@pytest.mark.parametrize("scale", [(1, 0), (1e-3, 0), (30, 100), (1e4, -1e6)])
def test_scores_of_any_size_are_told_apart(monkeypatch, own, most, scale):
    """The values depend on the order of the scores alone."""
    torch.manual_seed(1)
    target = (torch.rand(20_000) < 0.02).long()
    scores = (torch.randn(20_000) + 2 * target).double()
    exact = CURVES[own](task="binary")(scores.sigmoid(), target)
    monkeypatch.setattr(streaming_metrics, "MOST_SCORES", most)
    monkeypatch.setattr(streaming_metrics, "AT_ONCE", 500)
    for shape in ((-1,), (-1, 1)):
        given = (scores * scale[0] + scale[1]).float()
        assert update(own(), given.view(shape), target.view(shape), 700) == pytest.approx(
            float(exact), abs=1e-3
        )


def test_labels_of_sequences_and_numbers_of_any_type(monkeypatch):
    """Labels (n, labels, length) are not mixed; targets of bytes and half precision are read."""
    target = torch.randint(2, (40, 3, 5))
    scores = target * 0.5 + torch.tensor([0.0, 2.0, 4.0])[:, None]
    for most in (1 << 22, 100):
        monkeypatch.setattr(streaming_metrics, "MOST_SCORES", most)
        assert update(Auroc(), scores, target, 7) == 1
        assert update(Auroc(), scores.half(), target, 7) == 1
        few = torch.randint(3, (60,), dtype=torch.uint8)
        assert update(Auroc(), torch.nn.functional.one_hot(few.long(), 3).float(), few, 7) == 1


def test_what_is_undefined_is_nan_and_left_out():
    scores, target = torch.randn(60, 4), torch.randint(3, (60,))
    for own in (*REFERENCES, *CURVES):
        wrong = scores.clone()
        wrong[50, 2] = float("nan")
        assert np.isnan(update(own(), wrong, target, 7))
    present = [
        float(torchmetrics.AUROC(task="binary")(scores.softmax(1)[:, i], (target == i).long()))
        for i in range(3)
    ]
    assert update(Auroc(), scores, target, 7) == pytest.approx(sum(present) / 3, abs=1e-6)
    assert np.isnan(update(Auroc(), torch.randn(9), torch.ones(9), 3))


BOUNDED = """
import threading, torch, torchmetrics
from torchmetrics.functional import classification as functional
from manyfit.metrics import F1, Auroc, AveragePrecision


def used():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6


def batches(rows):
    dice = torch.Generator().manual_seed(1)
    for _ in range(rows // 250):
        target = torch.randint(1000, (250,), generator=dice)
        yield torch.randn(250, 1000, generator=dice) + 2 * torch.nn.functional.one_hot(target, 1000), target


rows = {rows}
whole = [torch.cat(part) for part in zip(*batches(rows))]
names = {{F1: "F1Score", Auroc: "binary_auroc", AveragePrecision: "binary_average_precision"}}
for own, name in names.items():
    before, seen, done = used(), [0.0], threading.Event()

    def watch():
        while not done.wait(0.005):
            seen[0] = max(seen[0], used() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    metric = own()
    for scores, target in batches(rows):
        metric.update(scores, target)
    value = float(metric.compute())
    done.set()
    watcher.join()
    if own is F1:
        expected = float(torchmetrics.F1Score(task="multiclass", num_classes=1000, average="macro")(*whole))
    else:
        likely, reference = whole[0].softmax(1).T.contiguous(), getattr(functional, name)
        found = [float(reference(likely[i], (whole[1] == i).long())) for i in range(1000)]
        expected = sum(found) / len(found)
    assert abs(value - expected) < (1e-6 if own is F1 else 1e-3), (name, value, expected)
    assert seen[0] <= 200, (name, seen)
"""


@pytest.mark.soak
@pytest.mark.parametrize("rows", [10_000, 100_000])
def test_a_thousand_classes_in_bounded_memory(rows):
    """The same as computed at once, in at most 200 MB."""
    subprocess.run([sys.executable, "-c", BOUNDED.format(rows=rows)], check=True)


def test_shapes_that_do_not_fit_are_explained():
    with pytest.raises(ValueError, match="a score per class"):
        F1().update(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="0 or 1"):
        Auroc().update(torch.zeros(4), torch.tensor([0, 1, 2, 0]))
