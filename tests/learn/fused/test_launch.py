"""Groups whose steps are launched together: on a GPU as a graph, elsewhere one by one from the same memory."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learn.fused.conftest import (
    MLP,
    MODELS,
    OPTIONS,
    LeNet,
    bits,
    fuse,
    run,
    source,
    train_together,
    walk,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from manyfit.data import ArraySource, DatasetSource
from manyfit.learn.torch.fused.launch import launcher, program
from manyfit.learn.torch.fused.launch.compiling import NotCompiled
from manyfit.learn.torch.fused.launch.slots import Slots, flatten_batch
from manyfit.learn.torch.launching import Launching
from manyfit.learn.torch.update import Frozen

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Everywhere(Launching):
    """Launched on the CPU as well."""

    def is_wanted(self, device):
        return self.capture != "off"


LAUNCHED, EAGER = Everywhere(compile="off"), Everywhere(capture="off")


def group(launching=LAUNCHED, model=MLP, options=OPTIONS, shared=True, data=None, **settings):
    runs = [run(model, i, each, device=DEVICE, **settings) for i, each in enumerate(options)]
    for each in runs:
        each.launching = launching
    return fuse(runs, shared, data=data), walk(runs, shared, data=data)


def train(pair, *steps):
    learner, batches = pair
    for count in steps:
        learner.train(batches, count)
    losses = learner.take()["train_loss"]
    return learner, np.array([float(each) for each in losses])


def is_near(one, other, rel=2e-4):
    for a, b in zip(bits(one), bits(other), strict=True):
        assert a.keys() == b.keys()
        for name, tensor in a.items():
            if tensor.is_floating_point():
                torch.testing.assert_close(
                    tensor, b[name], rtol=rel, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
            else:
                assert torch.equal(tensor, b[name]), name


@pytest.fixture
def short(monkeypatch):
    """Launch few steps at once."""
    monkeypatch.setattr(launcher, "STEPS", 4)


@pytest.mark.parametrize("shared", [True, False], ids=["one order", "several orders"])
@pytest.mark.parametrize("rate", [0.0, 0.3], ids=["plain", "dropout"])
@pytest.mark.parametrize("model", MODELS)
def test_launched_steps_are_those_of_single_ones(model, rate, shared, short):
    settings = {"model": model, "rate": rate, "shared": shared}
    one, first = train(group(EAGER, **settings), 25)
    other, second = train(group(**settings), 25)
    assert other._launcher._programs
    assert first == pytest.approx(second, rel=1e-4)
    is_near(one, other)


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8), rate=st.sampled_from([0.0, 0.4]))
def test_pauses_change_no_bit(cuts, rate):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "STEPS", 4)
        whole, losses = train(group(rate=rate, options=OPTIONS[:3]), sum(cuts))
        cut, other = train(group(rate=rate, options=OPTIONS[:3]), *cuts)
    assert losses.tolist() == other.tolist()
    for one, two in zip(bits(whole), bits(cut), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("at", [1, 3, 7, 12])
def test_a_resumed_group_has_the_same_bits(at, short):
    whole, _ = train(group(rate=0.2), 20)
    begun, _ = train(group(rate=0.2), at)
    states = begun.state()
    runs = [run(MLP, i, each, rate=0.2, device=DEVICE) for i, each in enumerate(OPTIONS)]
    for each, state in zip(runs, states, strict=True):
        each.launching = LAUNCHED
        each.load([state])
    resumed, _ = train((fuse(runs, start=at), walk(runs, start=at)), 20 - at)
    for one, two in zip(bits(whole), bits(resumed), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU")
def test_no_memory_is_left_while_steps_are_captured(short, monkeypatch, caplog):
    """They go on operation by operation, and the next group is captured as usual."""
    one, first = train(group(EAGER), 12)
    gather = Slots.gather

    def fill_memory(self, count):
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
        gather(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "gather", fill_memory)
        other, second = train(group(), 12)
    assert "cannot be captured: CUDA out of memory" in caplog.text
    assert not any(program._graphs for program in other._launcher._programs.values())
    assert first == pytest.approx(second, rel=1e-4)
    is_near(one, other)
    third, _ = train(group(), 12)
    assert any(program._graphs for program in third._launcher._programs.values())
    is_near(one, third)


def averaged(**settings):
    """Runs with moving averages."""
    runs = []
    for i, options in enumerate(OPTIONS):
        each = run(LeNet, i, options, device=DEVICE)
        each.average = AveragedModel(each.module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        each.ema = 0.9
        each.launching = settings["launching"]
        runs.append(each)
    return fuse(runs), walk(runs)


def test_averages(short):
    is_near(train(averaged(launching=EAGER), 11)[0], train(averaged(launching=LAUNCHED), 11)[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 3},
        {"clip_norm": 0.5},
        {"clip_value": 0.01},
        {"optimizer": torch.optim.AdamW, "options": [{"lr": 1e-3 * (i + 1)} for i in range(4)]},
        {"optimizer": torch.optim.RMSprop, "options": [{"lr": 1e-3, "momentum": 0.1 * (i + 1)} for i in range(4)]},
        {"optimizer": torch.optim.Adagrad, "options": [{"lr": 1e-2, "lr_decay": 0.1 * i} for i in range(4)],
         "scheduled": False},
        {"optimizer": torch.optim.SGD, "options": [{"lr": 1e-2 * (i + 1)} for i in range(4)], "scheduled": False},
    ],
    ids=["accumulate", "clip_norm", "clip_value", "adamw", "rmsprop", "adagrad", "sgd"],
)  # fmt: skip
def test_settings(settings, short):
    one, first = train(group(EAGER, **settings), 23)
    other, second = train(group(**settings), 23)
    assert first == pytest.approx(second, rel=1e-4)
    is_near(one, other)


def freeze_runs(launching, options=OPTIONS[:3]):
    """Runs whose first layer is trained from step 6 on."""
    runs = []
    for i, each_options in enumerate(options):
        each = run(MLP, i, each_options, device=DEVICE)
        each.update = replace_frozen(each, 6)
        each.launching = launching
        runs.append(each)
    return runs


def frozen(launching):
    runs = freeze_runs(launching)
    return fuse(runs), walk(runs)


def replace_frozen(learner, until):
    first = list(learner.module[0].parameters())
    update = learner.update
    return type(update)(
        update.optimizers, update.schedulers, steps_per_epoch=10, frozen=[Frozen(first, until, [])]
    )


def test_parameters_that_are_thawed(short):
    one, other = train(frozen(EAGER), 15)[0], train(frozen(LAUNCHED), 15)[0]
    assert len(other._launcher._programs) >= 2
    is_near(one, other)


@pytest.fixture
def marked(short, monkeypatch):
    """What is compiled computes something else, by which one sees what is compiled."""

    def compile_step(step, *_):
        def compiled(state, slot):
            found = step(state, slot)
            state[0].mul_(1 + 1e-4)
            return found

        return compiled

    monkeypatch.setattr(program, "compile_step", compile_step)


def plain_runs(launching):
    runs = [run(MLP, i, each, device=DEVICE) for i, each in enumerate(OPTIONS[:3])]
    for each in runs:
        each.launching = launching
    return runs


def plainly_frozen_runs(launching):
    """Their optimizers have no state, which would be missing for what is thawed."""
    return freeze_runs(launching, [{"lr": 0.02}, {"lr": 0.05}])


@pytest.mark.parametrize("make", [plain_runs, freeze_runs, plainly_frozen_runs])
@pytest.mark.parametrize("rows", [77, 80, 13, 5], ids=lambda rows: f"{rows} rows")
def test_the_same_steps_are_compiled_wherever_runs_are_resumed(make, rows, marked):
    """Before the last batch of an epoch, which is short, or before a step at which a layer is thawed."""
    compiled, data = Everywhere(compile="default"), source(rows)
    runs = make(compiled)
    whole, _ = train((fuse(runs, data=data), walk(runs, data=data)), 14)
    for at in range(1, 14):
        runs, again = make(compiled), make(compiled)
        begun, _ = train((fuse(runs, data=data), walk(runs, data=data)), at)
        for each, state in zip(again, begun.state(), strict=True):
            each.load([state])
        rest = fuse(again, start=at, data=data), walk(again, start=at, data=data)
        resumed, _ = train(rest, 14 - at)
        for one, two in zip(bits(whole), bits(resumed), strict=True):
            assert all(torch.equal(one[name], two[name]) for name in one), at
    assert any(each.is_compiled for each in whole._launcher._programs.values())


def test_runs_that_leave(short):
    found = []
    for launching in (EAGER, LAUNCHED):
        learner, batches = group(launching, rate=0.2)
        learner.train(batches, 9)
        learner.keep([1, 4, 5])
        batches.keep([1, 4, 5])
        learner.train(batches, 9)
        found.append(learner)
    is_near(*found)


class Rows:
    """A data set that is read row by row."""

    def __init__(self):
        self.source = source()

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        return self.source.inputs[i], self.source.target[i]


def test_rows_that_are_not_in_memory(short):
    one = train(group(data=source()), 15)[0]
    other = train(group(data=DatasetSource(Rows())), 15)[0]
    for a, b in zip(bits(one), bits(other), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_weights_of_rows_and_named_inputs(short):
    state = np.random.RandomState(0)
    columns = {"x": state.randn(50, 16).astype(np.float32), "y": state.randn(50, 16).astype(np.float32)}
    data = ArraySource(columns, state.randint(0, 5, 50), weight=state.rand(50).astype(np.float32))
    settings = {"model": Two, "data": data}
    one, first = train(group(EAGER, **settings), 12)
    other, second = train(group(**settings), 12)
    assert first == pytest.approx(second, rel=1e-5)
    is_near(one, other)


class Two(MLP):
    """A model with two inputs."""

    def forward(self, x, y):
        return super().forward(x + y)


LAYERS = st.lists(
    st.sampled_from(["linear", "relu", "tanh", "norm", "batch", "dropout", "residual"]),
    min_size=1,
    max_size=5,
)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.sin(self.inner(x))


def build(layers):
    made = {
        "linear": lambda: nn.Linear(16, 16), "relu": nn.ReLU, "tanh": nn.Tanh, "norm": lambda: nn.LayerNorm(16),
        "batch": lambda: nn.BatchNorm1d(16), "dropout": lambda: nn.Dropout(0.2), "residual": Residual,
    }  # fmt: skip
    return lambda rate: nn.Sequential(*[made[each]() for each in layers], nn.Linear(16, 5))


@settings(max_examples=12, deadline=None)
@given(layers=LAYERS)
def test_random_architectures(layers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "STEPS", 4)
        settings = {"model": build(layers), "options": OPTIONS[:3]}
        one, first = train(group(EAGER, **settings), 9)
        other, second = train(group(**settings), 9)
    assert first == pytest.approx(second, rel=1e-4)
    is_near(one, other)


def test_compiled_steps(short):
    compiled = Everywhere(compile="default")
    one, first = train(group(EAGER, rate=0.3), 15)
    other, second = train(group(compiled, rate=0.3), 15)
    assert any(program.is_compiled for program in other._launcher._programs.values())
    assert first == pytest.approx(second, rel=1e-4)
    is_near(one, other)


@pytest.mark.parametrize("full", [8, 0], ids=["known", "not known"])
def test_validation_is_compiled_like_the_steps(short, full):
    """But not its last batch, which is short."""
    from manyfit.data import Order
    from manyfit.data.walk import walk_together

    data, found = source(rows=20), []
    for options in (EAGER, Everywhere(compile="default")):
        learner, _ = train(group(options, metrics={"near": near_zero}), 5)
        once = walk_together([data] * len(OPTIONS), [Order(8, epochs=1)] * len(OPTIONS))
        once.full = full
        found.append(learner.measure(once))
    assert {size: each.is_compiled for (size, *_), each in learner._launcher._measuring.items()} == {
        8: True, 4: False
    }  # fmt: skip
    for name, values in found[0].items():
        assert [float(each) for each in found[1][name]] == pytest.approx([float(v) for v in values], rel=1e-4)


def test_large_batches_are_compiled_too(monkeypatch):
    """There is one slot for them."""
    monkeypatch.setattr(launcher, "MOST_BYTES", 1)
    learner, _ = train(group(Everywhere(compile="default")), 3)
    (program,) = learner._launcher._programs.values()
    assert program.slots.steps == 1 and program.is_compiled


def test_the_losses_of_each_step(short):
    one, other = group(EAGER), group()
    first, second = train_together(*one, 12), train_together(*other, 12)
    assert first == pytest.approx(second, rel=1e-5)
    assert list(itertools.chain.from_iterable(second.tolist()))


def test_sums_in_the_middle_of_an_epoch_are_those_of_a_run_alone(short):
    """They are stored with each run, and divided when runs leave."""
    learner, batches = group(options=OPTIONS[:3])
    learner.train(batches, 7)
    states = learner.state()
    assert all("recent" in state.values["sums"]["dict"][1][0] for state in states)
    learner.keep([2])
    left = learner.take()["train_loss"]
    runs = [run(MLP, i, each, device=DEVICE) for i, each in enumerate(OPTIONS[:3])]
    for each, state in zip(runs, states, strict=True):
        each.load([state])
    assert float(runs[2].take()["train_loss"][0]) == float(left[0])


def test_steps_that_cannot_be_captured_are_computed_one_by_one(short, caplog):
    if DEVICE.type != "cuda":
        pytest.skip("there is no GPU")
    one = train(group(EAGER), 12)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph", _fails)
        other = train(group(), 12)[0]
    assert "as it cannot be captured: no graph" in caplog.text
    is_near(one, other)


def _fails(*args, **kwargs):
    raise RuntimeError("no graph")


class Synchronizes(MLP):
    """A model that waits for the device, which a graph cannot."""

    def forward(self, x):
        return super().forward(x) * (1.0 if float(x.sum()) < 1e9 else 2.0)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU")
def test_a_model_that_waits_for_the_device(short, caplog):
    """Alone, it is computed step by step, and random numbers are drawn as before."""
    settings = {"model": Synchronizes, "options": OPTIONS[:1], "rate": 0.2}
    _, first = train(group(EAGER, **settings), 12)
    _, second = train(group(**settings), 12)
    assert "as it cannot be captured" in caplog.text
    assert first == pytest.approx(second, rel=1e-4)
    torch.rand(3, device=DEVICE)
    F.dropout(torch.ones(8, device=DEVICE))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU")
def test_memory_is_given_back():
    found = []
    for _ in range(3):
        learner = train(group(), 40)[0]
        del learner
        found.append(torch.cuda.memory_allocated())
    assert found[0] == found[-1]


def near_zero(output, target):
    """A metric without a value for some rows."""
    found = (output.argmax(1) == target).float()
    return torch.where(target == 0, torch.nan, found)


@pytest.mark.parametrize("shared", [True, False], ids=["one order", "several orders"])
@pytest.mark.parametrize("model", [MLP, LeNet])
def test_validation_is_that_of_single_batches(model, shared, short):
    from manyfit.data import Order
    from manyfit.data.walk import walk_together

    data, found = source(rows=101), []
    for launching in (EAGER, LAUNCHED):
        learner, _ = train(group(launching, model, shared=shared, metrics={"near": near_zero}), 5)
        means = []
        for _ in range(2):  # the first time, one batch is compared with those of each run alone
            once = walk_together([data] * len(OPTIONS), [Order(8, epochs=1)] * len(OPTIONS))
            means.append(learner.measure(once))
        found.append(means)
        assert learner._measures_together
        assert bool(launching is LAUNCHED and learner._launcher._measuring) == (launching is LAUNCHED)
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys() == {"loss", "near"}
        for name, value in one.items():
            assert [float(each) for each in value] == pytest.approx(
                [float(each) for each in other[name]], rel=1e-4
            )


@pytest.mark.parametrize("data", [source(), DatasetSource(Rows())], ids=["in memory", "row by row"])
def test_all_slots_can_be_computed_before_they_are_filled(data, short):
    """A launch may be timed when only the first slot has been filled; the others must have possible rows."""
    learner, _ = train(group(data=data, shared=True), 9)
    (program,) = [each for each in learner._launcher._programs.values() if each.slots.steps > 1]
    layout, columns = program.slots.layout, program.slots._columns
    slots = type(program.slots)(layout, 4, columns)
    single = type(program.slots)(layout, 1, columns)
    examples = flatten_batch(layout.batch)  # which may be memory of a data set
    for one, example in zip(single.tensors(0)[: len(examples)], examples, strict=True):
        assert torch.equal(one, example) and one.data_ptr() != example.data_ptr()
    slots.gather(4)
    for number in range(4):
        batch, _, _ = layout.read(slots.tensors(number))
        assert torch.isfinite(batch.inputs).all()
        assert ((batch.target >= 0) & (batch.target < 5)).all()
    copied = type(program)("each step", program._compute, [each.clone() for each in program._state], slots)
    before = bits(learner)
    copied.run(1)
    for one, other in zip(before, bits(learner), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def measure_once(learner, data=None):
    from manyfit.data import Order
    from manyfit.data.walk import walk_together

    return learner.measure(
        walk_together([data or source(rows=20)] * learner.n, [Order(8, epochs=1)] * learner.n)
    )


def test_validation_while_everything_is_frozen(short):
    runs = []
    for number, options in enumerate(OPTIONS[:3]):
        each = run(MLP, number, options, device=DEVICE, scheduled=False)
        frozen = [Frozen(list(each.module.parameters()), 6, [])]
        update = each.update
        each.update = type(update)(update.optimizers, update.schedulers, steps_per_epoch=10, frozen=frozen)
        each.launching = Everywhere(compile="default")
        runs.append(each)
    learner = fuse(runs)
    learner.train(walk(runs), 3)
    assert not learner._step.trained and np.isfinite(float(measure_once(learner)["loss"][0]))


def test_nothing_stays_compiled_if_something_cannot_be(short, monkeypatch):
    """The state says that nothing is, so that a run that resumes has the same bits."""
    compiled = []

    def compile_step(step, *_):
        if len(compiled) == 2:
            raise NotCompiled("there is no compiler")
        compiled.append(step)
        return step

    monkeypatch.setattr(program, "compile_step", compile_step)
    runs, data = plainly_frozen_runs(Everywhere(compile="default")), source(80)
    learner, batches = fuse(runs, data=data), walk(runs, data=data)
    learner.train(batches, 4)
    measure_once(learner)
    assert all(each.is_compiled for each in learner._launcher._programs.values()) and len(compiled) == 2
    learner.train(batches, 8)
    measure_once(learner)
    programs = [*learner._launcher._programs.values(), *learner._launcher._measuring.values()]
    assert programs and not any(each.is_compiled for each in programs)
    assert learner.state()[0].values["compiled"] == "off"


def test_splits_with_batches_of_the_same_size_are_told_apart(short):
    learner, _ = train(group(), 5)
    other = source(rows=20)
    other = type(other)(other.inputs * 5, other.target)
    one, two = measure_once(learner), measure_once(learner, other)
    again, _ = train(group(), 5)
    assert float(two["loss"][0]) == float(measure_once(again, other)["loss"][0]) != float(one["loss"][0])
