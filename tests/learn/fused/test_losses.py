"""Losses whose numbers and class weights differ between the runs of a group."""

import numpy as np
import pytest
import torch
from tests.learn.fused.conftest import MLP, OPTIONS, bits, fuse, run, train_alone, train_together, walk
from torch import nn

from manyfit.data import ArraySource, Order, once
from manyfit.data.walk import Walk
from manyfit.learn.torch.fused.group_key import group_key

COUNT = 8


def weights(i, count=5):
    return torch.arange(1, count + 1, dtype=torch.float64) / (i + 1)


class Scalar(nn.Sequential):
    def __init__(self, p=0.0):
        super().__init__(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0))


def classes(rows=77, weighted=False):
    state = np.random.RandomState(0)
    return ArraySource(
        state.randn(rows, 16), state.randint(0, 5, rows), weight=state.rand(rows) if weighted else None
    )


def numbers(rows=77, weighted=False):
    state = np.random.RandomState(0)
    return ArraySource(state.randn(rows, 16), state.rand(rows), weight=state.rand(rows) if weighted else None)


LOSSES = {
    "label smoothing": (MLP, classes, lambda i: nn.CrossEntropyLoss(label_smoothing=0.1 * (i + 1))),
    "smoothing and weights": (
        MLP, classes, lambda i: nn.CrossEntropyLoss(weights(i), label_smoothing=0.1 * (i + 1), ignore_index=3)
    ),
    "class weights": (MLP, classes, lambda i: nn.CrossEntropyLoss(weights(i))),
    "sums": (MLP, classes, lambda i: nn.CrossEntropyLoss(label_smoothing=0.1 * (i + 1), reduction="sum")),
    "positive weight": (Scalar, numbers, lambda i: nn.BCEWithLogitsLoss(pos_weight=weights(i, 1))),
    "huber": (Scalar, numbers, lambda i: nn.HuberLoss(delta=0.1 * (i + 1))),
    "huber sum": (Scalar, numbers, lambda i: nn.HuberLoss("sum", delta=0.1 * (i + 1))),
    "smooth l1": (Scalar, numbers, lambda i: nn.SmoothL1Loss(beta=0.1 * (i + 1))),
}  # fmt: skip


def make(name, indices=range(COUNT)):
    model, _, loss = LOSSES[name]
    scale = 0.02 if "sum" in name else 1.0
    options = [{**OPTIONS[i], "lr": OPTIONS[i]["lr"] * scale} for i in indices]
    return [
        run(model, i, o, dtype=torch.float64, loss=loss(i)) for i, o in zip(indices, options, strict=True)
    ]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "sample weights"])
@pytest.mark.parametrize("name", LOSSES)
def test_runs_have_the_losses_that_they_have_alone(name, weighted):
    data, alone = LOSSES[name][1](weighted=weighted), make(name)
    assert len({group_key(each) for each in alone}) == 1
    group = fuse(make(name), data=data)
    together = train_together(group, walk(alone, data=data), 50)
    for i, each in enumerate(alone):
        own = train_alone(each, Order(8, seed=5), 50, data)
        np.testing.assert_allclose(together[:, i], own, rtol=1e-9)
    batches = list(once(data, 32))
    measured = group.measure(Walk([lambda: iter(batches)], [0] * COUNT))
    for i, each in enumerate(alone):
        assert float(measured["loss"][i]) == pytest.approx(
            float(each.measure(iter(batches))["loss"][0]), rel=1e-7
        )


@pytest.mark.parametrize("name", LOSSES)
def test_bits_do_not_depend_on_the_group(name):
    data = LOSSES[name][1]()
    every = make(name)
    group = fuse(every, data=data)
    group.train(walk(every, data=data), 10)
    wanted = bits(group)
    for chosen in ([2], [5, 2], [0, 2, 7]):
        few = make(name, chosen)
        small = fuse(few, data=data)
        small.train(walk(few, data=data), 10)
        for own, i in zip(bits(small), chosen, strict=True):
            assert all(torch.equal(tensor, wanted[i][key]) for key, tensor in own.items())


def test_losses_of_other_forms_are_not_grouped():
    """Without label smoothing, the loss of masked classes stays finite."""
    losses = [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(weights(1)),
              nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(ignore_index=1), nn.NLLLoss(),
              nn.MultiMarginLoss(margin=0.5), nn.MultiMarginLoss(margin=0.6)]  # fmt: skip
    keys = {group_key(run(MLP, 0, {"lr": 0.1}, loss=loss)) for loss in losses}
    assert len(keys) == len(losses)


def test_numbers_stay_with_their_runs_when_others_leave():
    data, every, alone = classes(), make("label smoothing"), make("label smoothing")
    group, rows = fuse(every, data=data), walk(every, data=data)
    group.train(rows, 5)
    group.keep([1, 6])
    rows.keep([1, 6])
    group.take()
    together = train_together(group, rows, 20)
    for column, i in enumerate([1, 6]):
        own = train_alone(alone[i], Order(8, seed=5), 25, data)
        np.testing.assert_allclose(together[:, column], own[5:], rtol=1e-9)
