"""Groups on a GPU, where there is one."""

import numpy as np
import pytest
import torch
from tests.learn.fused.conftest import (
    MLP,
    MODELS,
    OPTIONS,
    LeNet,
    fuse,
    run,
    source,
    train_alone,
    train_together,
    walk,
)
from torch import nn

from manyfit.data import Order
from manyfit.learn.fusing import NotFusable

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture
def deterministic():
    before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.backends.cudnn.allow_tf32 = before[0]
    torch.use_deterministic_algorithms(before[1])


@cuda
@pytest.mark.parametrize("rate", [0.0, 0.3], ids=["plain", "dropout"])
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_each_run_alone(model, rate, deterministic):
    device, dtype, data = torch.device("cuda"), torch.float64, source(dtype=np.float64)
    make = lambda: [run(model, i, o, dtype=dtype, rate=rate, device=device) for i, o in enumerate(OPTIONS)]  # noqa: E731
    group, alone = fuse(make(), data=data), make()
    together = train_together(group, walk(alone, data=data), 100)
    for i, each in enumerate(alone):
        assert together[:, i] == pytest.approx(train_alone(each, Order(8, seed=5), 100, data), rel=1e-9)


@cuda
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_other_optimizers(optimizer, deterministic):
    device, data = torch.device("cuda"), source(dtype=np.float64)
    make = lambda: [  # noqa: E731
        run(
            LeNet,
            i,
            {"lr": 1e-3 * (i + 1)},
            dtype=torch.float64,
            optimizer=optimizer,
            scheduled=False,
            device=device,
        )
        for i in range(8)
    ]
    group, alone = fuse(make(), data=data), make()
    together = train_together(group, walk(alone, data=data), 20)
    for i, each in enumerate(alone):
        assert together[:, i] == pytest.approx(train_alone(each, Order(8, seed=5), 20, data), rel=1e-6)


class Noisy(nn.Module):
    """Its noise is smaller than the tolerance of the comparison with each run alone."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.layers = MLP(rate)

    def forward(self, x):
        return self.layers(x + 1e-9 * torch.randn_like(x))


@cuda
def test_random_numbers_of_the_device_are_noticed():
    runs = [run(Noisy, i, {"lr": 1e-3}, device=torch.device("cuda")) for i in range(2)]
    before = torch.cuda.get_rng_state()
    with pytest.raises(NotFusable, match="draws random numbers other than dropout"):
        fuse(runs)
    assert torch.equal(before, torch.cuda.get_rng_state())


class Noise(nn.Module):
    def __init__(self, rate=0.0):
        super().__init__()
        self.layers = MLP(rate)

    def forward(self, x):
        return self.layers(x + torch.randn_like(x))


@cuda
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_draws_random_numbers_on_the_device_is_launched_step_by_step(accumulate):
    """It has the numbers that it draws when it is trained operation by operation, wherever it is resumed."""
    found, states = [], []
    for capture, cuts in (("off", [20]), ("auto", [20]), ("auto", [3, 1, 9, 7])):
        device = torch.device("cuda")
        runs = [run(Noise, 3, {"lr": 1e-3}, device=device, accumulate=accumulate)]
        if capture == "off":
            learner, batches = runs[0], source().batches(Order(8, seed=5), 0)
        else:
            learner, batches = fuse(runs), walk(runs)
        for steps in cuts:
            learner.train(batches, steps)
        states.append(learner.state()[0].tensors)
        if capture == "auto":
            programs = learner._launcher._programs.values()
            assert learner.checked.draws and any(each._graphs for each in programs)
            assert all(each._graphs.keys() <= {1} for each in programs)
        found.append(learner.take()["train_loss"][0])
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-5)
    for name, tensor in states[1].items():
        torch.testing.assert_close(tensor, states[0][name], rtol=1e-3, atol=1e-5)
        assert torch.equal(tensor, states[2][name])
