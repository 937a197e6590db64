"""Runs in a group have the losses that they have alone, and bits that do not depend on the group."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
from tests.learn.fused.conftest import (
    MLP,
    MODELS,
    OPTIONS,
    LeNet,
    Segments,
    bits,
    fuse,
    run,
    source,
    train_alone,
    train_together,
    walk,
)
from torch import nn

from manyfit.data import Order

STEPS = 100


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def nudged(each):
    """The same run, one unit in the last place away."""
    twin = copy.deepcopy(each)
    with torch.no_grad():
        for p in twin.module.parameters():
            p.copy_(torch.nextafter(p, torch.full_like(p, torch.inf)))
    return twin


soak = pytest.mark.soak


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=soak)], ids=["shared", "own"])
@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=soak), 0.3], ids=["plain", "dropout"])
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_each_run_alone(model, rate, shared):
    dtype = torch.float64
    rates = [rate * (i + 1) / 8 for i in range(8)]
    make = lambda: [run(model, i, o, dtype=dtype, rate=rates[i]) for i, o in enumerate(OPTIONS)]  # noqa: E731
    data = source(dtype=np.float64)
    group, alone = fuse(make(), shared, data=data), make()
    together = train_together(group, walk(alone, shared, data=data), STEPS)
    for i, each in enumerate(alone):
        losses = train_alone(each, Order(8, seed=5 if shared else each.seed), STEPS, data)
        assert together[:, i] == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("rate", [0.0, pytest.param(0.3, marks=soak)], ids=["plain", "dropout"])
@pytest.mark.parametrize("model", [MLP, *(pytest.param(model, marks=soak) for model in MODELS[1:])])
def test_in_single_precision_they_agree_as_far_as_rounding_allows(model, rate):
    make = lambda: [run(model, i, o, rate=rate) for i, o in enumerate(OPTIONS)]  # noqa: E731
    group, alone = fuse(make()), make()
    together, stable = train_together(group, walk(alone), STEPS), 0
    for i, each in enumerate(alone):
        twin = nudged(each)
        losses = np.array(train_alone(each, Order(8, seed=5), STEPS))
        assert together[:5, i] == pytest.approx(losses[:5], rel=1e-6)
        near = np.array(train_alone(twin, Order(8, seed=5), STEPS))
        if np.allclose(near, losses, rtol=1e-4, atol=0):
            stable += 1
            assert together[:, i] == pytest.approx(losses, rel=1e-3)
    assert stable, "every run is chaotic: nothing was compared"


@pytest.mark.parametrize("model", MODELS)
def test_bits_do_not_depend_on_the_group(model):
    """Alone in a group, in another slot, among others, with batches of its own, and after others have left."""
    make = lambda n: run(model, n, OPTIONS[n], seed=3, rate=0.2 + 0.01 * n, optimizer=torch.optim.SGD)  # noqa: E731

    def end(numbers, wanted, leave=None, shared=True):
        runs = [make(n) for n in numbers]
        if not shared:
            for each, n in zip(runs, numbers, strict=True):
                each.seed = 5 if n == wanted else 50 + n
        group, batches = fuse(runs, shared), walk(runs, shared)
        group.train(batches, 4)
        group.train(batches, 3)
        if leave is not None:
            group.keep(leave)
            batches.keep(leave)
            numbers = [numbers[i] for i in leave]
        group.train(batches, 6)
        return bits(group)[numbers.index(wanted)]

    whole = end([0, 1, 2, 3, 4, 5, 6], 4)
    for found in (end([4], 4), end([4, 2], 4), end([6, 0, 4], 4), end([0, 1, 2, 3, 4, 5, 6], 4, [4]),
                  end([0, 1, 4, 5], 4, [1, 2]), end([1, 4, 5], 4, shared=False)):  # fmt: skip
        for name, tensor in whole.items():
            assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_nor_with_other_optimizers(optimizer):
    def end(numbers):
        runs = [
            run(MLP, n, {"lr": 0.01 * (n + 1)}, seed=3, optimizer=optimizer, scheduled=False) for n in numbers
        ]
        group = fuse(runs)
        group.train(walk(runs), 11)
        return bits(group)[numbers.index(2)]

    whole = end([0, 1, 2, 3, 4])
    for found in (end([2]), end([4, 2]), end([1, 2, 0])):
        for name, tensor in whole.items():
            assert torch.equal(tensor, found[name]), name


def test_a_run_goes_on_alone_or_in_another_group_from_its_state():
    make = lambda: [run(LeNet, i, o, dtype=torch.float64) for i, o in enumerate(OPTIONS[:4])]  # noqa: E731
    data = source(dtype=np.float64)
    group = fuse(make(), data=data)
    batches = walk(make(), data=data)
    group.train(batches, 15)
    states = copy.deepcopy(group.state())
    group.train(batches, 10)
    alone = make()[2]
    alone.load([states[2]])
    alone.train(data.batches(Order(8, seed=5), 15), 10)
    for name, tensor in group.state()[2].tensors.items():
        torch.testing.assert_close(tensor, alone.state()[0].tensors[name], rtol=1e-8, atol=1e-10)
    others = make()[1:3]
    for each, state in zip(others, states[1:3], strict=True):
        each.load([state])
    resumed = fuse(others, start=15, data=data)
    resumed.train(walk(others, start=15, data=data), 10)
    for one, other in zip(bits(group)[1:3], bits(resumed), strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_state_is_that_of_a_run_alone():
    for optimizer, options in ((torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True}), (torch.optim.SGD, OPTIONS[1]),
                               (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}), (torch.optim.Adagrad, {})):  # fmt: skip
        make = functools.partial(
            run, MLP, options=options, optimizer=optimizer, scheduled=optimizer is torch.optim.SGD
        )
        runs = [make(number=i) for i in range(3)]
        group, twin = fuse(runs), make(number=1)
        group.train(walk(runs), 13)
        train_alone(twin, Order(8, seed=5), 13)
        group.take()
        one, other = group.state()[1], twin.state()[0]
        assert list(one.tensors) == list(other.tensors)
        assert {name: t.dtype for name, t in one.tensors.items()} == {
            n: t.dtype for n, t in other.tensors.items()
        }
        ours = {k: v for k, v in one.values.items() if k not in ("learner", "random")}
        assert ours == {k: v for k, v in other.values.items() if k != "random"}


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_norm": 0.05},
        {"clip_value": 0.003},
        {"clip_norm": 0.1, "clip_value": 0.01},
        {"accumulate": 3},
        {"ema": 0.9},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_settings_of_the_update(settings):
    def make():
        found = []
        for i, options in enumerate(OPTIONS[:3]):
            given = dict(settings)
            if "clip_norm" in given:
                given["clip_norm"] *= i + 1  # each run has its own
            each = run(Segments, i, options, dtype=dtype, **given)
            if "ema" in given:
                rule = torch.optim.swa_utils.get_ema_multi_avg_fn(given["ema"])
                each.average = torch.optim.swa_utils.AveragedModel(
                    each.module, multi_avg_fn=rule, use_buffers=True
                )
            found.append(each)
        return found

    dtype = torch.float32 if "precision" in settings else torch.float64
    near = {"rtol": 0.1, "atol": 0.1} if "precision" in settings else {"rtol": 1e-8, "atol": 1e-9}
    data = source(dtype=np.float32 if "precision" in settings else np.float64)
    group, alone = fuse(make(), data=data), make()
    group.train(walk(alone, data=data), 30)
    for i, each in enumerate(alone):
        train_alone(each, Order(8, seed=5), 30, data)
        for name, tensor in each.state()[0].tensors.items():
            if not name.startswith("sums"):
                torch.testing.assert_close(group.state()[i].tensors[name], tensor, **near)


def test_parameter_groups_and_frozen_parameters():
    def make():
        found = []
        for i in range(3):
            torch.manual_seed(i)
            each = run(Segments, i, {"lr": 0.1}, dtype=torch.float64, scheduled=False)
            module = each.module
            for p in module.down.parameters():
                p.requires_grad_(False)
            optimizer = torch.optim.Adam(
                [{"params": module.up.parameters(), "lr": 0.01 * (i + 1)},
                 {"params": module.head.parameters(), "betas": (0.8, 0.9 + i / 100)}], lr=0.02,
            )  # fmt: skip
            each.update.optimizers = {"": optimizer}
            each.update.__post_init__()
            found.append(each)
        return found

    data = source(dtype=np.float64)
    group, alone = fuse(make(), data=data), make()
    before = group.models[0].down.weight.clone()
    group.train(walk(alone, data=data), 20)
    assert torch.equal(group.models[0].down.weight, before)
    for i, each in enumerate(alone):
        train_alone(each, Order(8, seed=5), 20, data)
        for name, tensor in each.module.named_parameters():
            torch.testing.assert_close(
                dict(group.models[i].named_parameters())[name], tensor, rtol=1e-8, atol=1e-10
            )


def test_validation_in_one_pass_is_that_of_each_run():
    def accuracy(output, target):
        return (output.argmax(1) == target).float()

    def unusual(output, target):
        return torch.tensor([float(value) for value in output[:, 0]])  # has no batching rule

    def confused(output, target):
        return output[:, 0] * (100.0 if torch._C._functorch.is_batchedtensor(output) else 1.0)

    for more in ({}, {"unusual": unusual}, {"confused": confused}):
        metrics = {"accuracy": accuracy, **more}
        runs = [run(LeNet, i, o, metrics=metrics) for i, o in enumerate(OPTIONS[:3])]
        group = fuse(runs)
        group.train(walk(runs), 7)
        batches = lambda: source().batches(Order(20, epochs=1))  # noqa: E731
        from manyfit.data.walk import Walk

        found = group.measure(Walk([batches], [0, 0, 0]))
        for i, each in enumerate(runs):
            own = each.measure(batches())
            assert set(own) == set(found) == {"loss", *metrics}
            for name in own:
                assert float(found[name][i]) == pytest.approx(float(own[name][0]), rel=1e-5)


def test_a_model_that_logs():
    from manyfit.learn.step_log import log

    class Logs(MLP):
        def forward(self, x):
            found = super().forward(x)
            log("size", found.detach().abs().mean())
            return found

    runs, twins = ([run(Logs, i, o) for i, o in enumerate(OPTIONS[:3])] for _ in range(2))
    group = fuse(runs)
    group.train(walk(runs), 9)
    found = group.take()
    for i, twin in enumerate(twins):
        twin.train(source().batches(Order(8, seed=5)), 9)
        assert float(found["train_size"][i]) == pytest.approx(float(twin.take()["train_size"][0]), rel=1e-5)


def test_ties_between_parameters_hold():
    class Tied(nn.Module):
        def __init__(self, rate=0.0):
            super().__init__()
            self.one, self.other, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)
            self.other.weight = self.one.weight

        def forward(self, x):
            return self.head(torch.tanh(self.other(torch.tanh(self.one(x)))))

    runs, twins = (
        [run(Tied, i, o, dtype=torch.float64) for i, o in enumerate(OPTIONS[:3])] for _ in range(2)
    )
    data = source(dtype=np.float64)
    group = fuse(runs, data=data)
    group.train(walk(runs, data=data), 20)
    for i, twin in enumerate(twins):
        assert group.models[i].one.weight is group.models[i].other.weight
        twin.train(data.batches(Order(8, seed=5)), 20)
        torch.testing.assert_close(group.models[i].one.weight, twin.module.one.weight, rtol=1e-8, atol=1e-10)


def test_generators_are_stored_as_alone():
    """In the middle of an epoch, whatever the process has drawn: a run may go on alone, with data that draws."""
    group, alone = (
        fuse([run(MLP, i, OPTIONS[i]) for i in range(3)]),
        [run(MLP, i, OPTIONS[i]) for i in range(3)],
    )
    train_together(group, walk(alone), 3)
    random.random(), np.random.rand()
    before = random.getstate()
    found = bits(group)
    assert random.getstate() == before
    for i, each in enumerate(alone):
        train_alone(each, Order(8, seed=5), 3)
        (own,) = bits(each)
        names = [name for name in own if name.startswith("random/")]
        assert names
        assert all(torch.equal(own[name], found[i][name]) for name in names)
