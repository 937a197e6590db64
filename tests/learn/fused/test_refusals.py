"""What cannot be fused is refused with a reason, or trained as alone: never a wrong answer."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learn.fused.conftest import MLP, fuse, run, source, walk
from torch import nn

from manyfit.data import Order
from manyfit.learn.fusing import Key, NotFusable, Refusal
from manyfit.learn.torch.fused.group_key import group_key

SGD = {"lr": 0.05}


def refused(model, **options):
    """Why two runs of a model are not fused: by their keys, or by the comparison with each alone."""
    runs = [run(model, i, {"lr": 0.05 * (i + 1)}, scheduled=False, **options) for i in range(2)]
    keys = [group_key(each) for each in runs]
    for key in keys:
        if isinstance(key, Refusal):
            return key.reason
    if keys[0] != keys[1]:
        return "other keys"
    try:
        fuse(runs)
    except NotFusable as error:
        return str(error)
    return ""


def model(forward, make=lambda self: None):
    """A class of modules with a linear layer and this forward pass."""

    class Model(nn.Module):
        def __init__(self, rate=0.0):
            super().__init__()
            self.layer = nn.Linear(16, 5)
            make(self)

        def forward(self, x):
            return forward(self, x)

    return Model


def branching(self, x):
    return self.layer(x if float(x.sum()) > 0 else -x)


def counting(self, x):
    self.calls += 1
    return self.layer(x) / self.calls


def lstm(self, x):
    return self.layer(x) + self.cell(x[:, None])[0][:, 0]


def in_place(self, x):
    x.mul_(2)
    return self.layer(x)


def reassigning(self, x):
    found = self.layer(x - self.mean)
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return found


def clamping(self, x):
    self.layer.weight.data.clamp_(-0.1, 0.1)
    return self.layer(x)


REFUSED = {
    "replaces a buffer": (model(reassigning, lambda self: self.register_buffer("mean", torch.zeros(16))), "mean"),
    "changes a weight": (model(clamping), ""),
    "decides by values": (model(branching), "values of tensors"),
    "draws from torch": (model(lambda self, x: self.layer(x + torch.randn_like(x))), "random numbers"),
    "draws from numpy": (model(lambda self, x: self.layer(x) * np.random.rand()), "random numbers"),
    "draws from python": (model(lambda self, x: self.layer(x) * random.random()), "random numbers"),
    "alpha dropout": (model(lambda self, x: F.alpha_dropout(self.layer(x), 0.5, self.training)), "random numbers"),
    "counts": (model(counting, lambda self: setattr(self, "calls", 0)), "changes an attribute"),
    "changes inputs": (model(in_place), "in place"),
    "lstm": (model(lstm, lambda self: setattr(self, "cell", nn.LSTM(16, 5, batch_first=True))), ""),
    "weight norm": (model(lambda self, x: self.normed(x), lambda self: setattr(
        self, "normed", nn.utils.parametrizations.weight_norm(nn.Linear(16, 5)))), "parametrized"),
    "closure": (model(lambda self, x: self.act(self.layer(x)), lambda self: setattr(
        self, "act", (lambda k: lambda x: x * k)(2.0))), "closure"),
    "object": (model(lambda self, x: self.layer(x), lambda self: setattr(self, "rng", random.Random(1))), "neither a parameter nor a buffer"),
    "hook": (model(lambda self, x: self.layer(x), lambda self: self.layer.register_forward_hook(
        lambda m, i, o: o * 2)), "hooks"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stacked_is_refused_with_a_reason(name):
    cls, reason = REFUSED[name]
    found = refused(cls)
    assert found
    assert reason in found


def test_a_buffer_that_is_changed_in_place_is_that_of_each_run_alone():
    def moving(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.layer(x - self.mean)

    cls = model(moving, lambda self: self.register_buffer("mean", torch.zeros(16)))
    runs, twins = ([run(cls, i, SGD, scheduled=False) for i in range(3)] for _ in range(2))
    group = fuse(runs)
    group.train(walk(runs), 12)
    for one, twin in zip(group.models, twins, strict=True):
        twin.train(source().batches(Order(8, seed=5)), 12)
        assert one.mean.abs().sum() > 0
        torch.testing.assert_close(one.mean, twin.module.mean)
        torch.testing.assert_close(one.layer.weight, twin.module.layer.weight)


def test_what_can_be_stacked_is_not_refused():
    assert refused(MLP) == ""
    assert (
        refused(model(lambda self, x: self.act(self.layer(x)), lambda self: setattr(self, "act", F.relu)))
        == ""
    )


@pytest.mark.parametrize("optimizer", [torch.optim.Rprop, torch.optim.LBFGS, torch.optim.NAdam])
def test_an_optimizer_without_a_stacked_form(optimizer):
    assert optimizer.__name__ in refused(MLP, optimizer=optimizer)


def test_a_subclass_of_an_optimizer_may_step_in_another_way():
    class Mine(torch.optim.SGD):
        pass

    assert "Mine has no stacked form" in refused(MLP, optimizer=Mine)


def test_a_plain_attribute_that_differs_splits_the_group():
    """It would silently take the value of the first run."""

    class Sloped(MLP):
        def __init__(self, rate=0.0):
            super().__init__()
            self.slope = rate

        def forward(self, x):
            return super().forward(x) * self.slope

    keys = [
        group_key(run(Sloped, i, SGD, scheduled=False, rate=rate)) for i, rate in enumerate((0.1, 0.1, 0.2))
    ]
    assert isinstance(keys[0], Key)
    assert keys[0] == keys[1] != keys[2]


def test_numbers_and_seeds_do_not_split_it_but_switches_do():
    base = group_key(run(MLP, 0, {"lr": 0.1, "momentum": 0.9}, scheduled=False))
    assert base == group_key(
        run(MLP, 3, {"lr": 0.2, "momentum": 0.5, "weight_decay": 1.0}, scheduled=True, rate=0.4)
    )
    assert base != group_key(run(MLP, 0, {"lr": 0.1}, scheduled=False))
    assert base != group_key(run(MLP, 0, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, scheduled=False))
    assert base != group_key(run(MLP, 0, {"lr": 0.1, "momentum": 0.9}, scheduled=False, clip_norm=1.0))
    assert base != group_key(run(MLP, 0, {"lr": 0.1, "momentum": 0.9}, scheduled=False, accumulate=2))


def test_the_comparison_finds_a_wrong_group(monkeypatch):
    """If stacking computed something else, the group is refused, and the tensor is named."""
    from manyfit.learn.torch.fused import self_check

    right = self_check.compute_losses

    def wrong(learner, tensors, *args):
        found, logged = right(learner, tensors, *args)
        extra = tensors["3.weight"].flatten(1).sum(1)
        return found + extra - extra.detach(), logged

    monkeypatch.setattr(self_check, "compute_losses", wrong)
    with pytest.raises(NotFusable, match=r"gradient of run 0 differs by .* mostly in 3\.weight"):
        fuse([run(MLP, i, SGD) for i in range(3)])


def test_a_difference_in_the_second_batch_is_found(monkeypatch):
    from manyfit.learn.torch.fused import self_check

    right, batches = self_check.compute_losses, []

    def wrong(learner, tensors, batch, *args):
        found, logged = right(learner, tensors, batch, *args)
        if not any(batch is each for each in batches):
            batches.append(batch)
        return found * (1.1 if len(batches) > 1 else 1.0), logged

    monkeypatch.setattr(self_check, "compute_losses", wrong)
    fuse([run(MLP, i, SGD) for i in range(3)])
    with pytest.raises(NotFusable, match=r"the loss of run [02] is"):
        fuse([run(MLP, i, SGD) for i in range(3)], steps=2)


def test_the_comparison_changes_nothing():
    runs, twins = ([run(MLP, i, SGD, rate=0.3) for i in range(3)] for _ in range(2))
    before = torch.get_rng_state()
    fuse(runs)
    assert torch.equal(before, torch.get_rng_state())
    for one, other in zip(runs, twins, strict=True):
        for name, tensor in other.state()[0].tensors.items():
            assert torch.equal(one.state()[0].tensors[name], tensor)


LAYERS = st.sampled_from(
    ["relu", "tanh", "gelu", "linear", "norm", "batch norm", "dropout", "softmax", "residual", "prelu", "random",
     "branch", "scale"]
)  # fmt: skip


class Drawn(nn.Module):
    """A small network of drawn layers, of which some cannot be stacked."""

    def __init__(self, layers, width):
        super().__init__()
        self.names, self.scale = list(layers), 1.5
        made = {"linear": lambda: nn.Linear(width, width), "residual": lambda: nn.Linear(width, width),
                "norm": lambda: nn.LayerNorm(width), "batch norm": lambda: nn.BatchNorm1d(width), "prelu": nn.PReLU}  # fmt: skip
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 5)
        self.parts = nn.ModuleList([made.get(name, nn.Identity)() for name in layers])

    def forward(self, x):
        x = self.first(x)
        for name, part in zip(self.names, self.parts, strict=True):
            if name in ("relu", "tanh", "gelu"):
                x = getattr(F, name)(x)
            elif name == "dropout":
                x = F.dropout(x, 0.2, self.training)
            elif name == "softmax":
                x = x.softmax(1)
            elif name == "residual":
                x = x + part(x)
            elif name == "random":
                x = x + 0.1 * torch.rand_like(x)
            elif name == "branch":
                x = x if x.max() > 1 else 2 * x
            elif name == "scale":
                x = x * self.scale
            else:
                x = part(x)
        return self.last(x)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(LAYERS, max_size=4),
    st.integers(2, 9),
    st.integers(2, 5),
    st.sampled_from([torch.optim.SGD, torch.optim.AdamW]),
)
def test_a_random_architecture_is_the_same_as_alone_or_refused(layers, width, count, optimizer):
    from tests.learn.fused.conftest import train_alone, train_together

    cls, data = (lambda rate: Drawn(layers, width)), source(dtype=np.float64)
    make = lambda: [  # noqa: E731
        run(cls, i, {"lr": 0.01 * (i + 1)}, dtype=torch.float64, optimizer=optimizer, scheduled=False)
        for i in range(count)
    ]
    runs = make()
    try:
        assert len({group_key(each) for each in runs}) == 1
        group = fuse(runs, data=data)
    except NotFusable as error:
        assert {"random", "branch"} & set(layers), error
        return
    assert "random" not in layers
    together = train_together(group, walk(runs, data=data), 12)
    for i, each in enumerate(make()):
        alone = train_alone(each, Order(8, seed=5), 12, data)
        assert together[:, i] == pytest.approx(alone, rel=1e-7)
