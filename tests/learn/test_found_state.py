"""The state of an object is found, whatever it is made of: a fresh object that loads it is the same."""

import copy
import random
from collections import deque
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from manyfit.core.state import State
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.found_state.values import NotPlain, decode_value, encode_value, is_same
from manyfit.learn.packing import pack, unpack

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=5)
)
ARRAYS = st.sampled_from(
    [
        np.arange(3),
        np.float32([[1.5, np.nan]]),
        np.zeros((0, 2)),
        np.array("text"),
        np.uint16([7]),
        np.bool_([True]),
    ]
)
TENSORS = st.sampled_from(
    [torch.arange(3), torch.tensor([1.0, float("nan")]), torch.zeros(0), torch.tensor(2.0)]
)
KEYS = (
    st.text(max_size=3)
    | st.integers(-3, 3)
    | st.booleans()
    | st.tuples(st.integers(0, 2), st.text(max_size=1))
)
VALUES = st.recursive(
    SCALARS | ARRAYS | TENSORS | st.binary(max_size=4) | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4))
        | st.sets(st.integers(0, 5), max_size=3)
        | st.frozensets(st.text(max_size=2), max_size=3)
    ),
    max_leaves=8,
)


def through_a_file(parts):
    """What a checkpoint holds, and nothing else."""
    state = pack(parts)
    values = __import__("json").loads(__import__("json").dumps(state.values))
    return unpack(State({name: tensor.clone() for name, tensor in state.tensors.items()}, values))


@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    found = decode_value(through_a_file({"value": encode_value(value)})["value"])
    assert type(found) is type(value)
    assert is_same(encode_value(found), encode_value(value))


def make(values):
    made = SimpleNamespace(inner=SimpleNamespace(), held=[SimpleNamespace()])
    for i, (before, _, place) in enumerate(values):
        holder = [made, made.inner, made.held[0]][place]
        setattr(holder, f"value_{i}", copy.deepcopy(before))
    return made


@given(st.lists(st.tuples(VALUES, VALUES, st.integers(0, 2)), max_size=4), st.booleans())
def test_what_has_changed_is_kept_and_the_rest_goes_back(values, again):
    """Attributes of an object, of an object in it, and of one in a list; loaded into a fresh or a used one."""
    first, second = make(values), make(values)
    found, other = FoundState(first), FoundState(second)
    for i, (_, after, place) in enumerate(values):
        setattr([first, first.inner, first.held[0]][place], f"value_{i}", copy.deepcopy(after))
    first.born = 3
    if again:  # the other has trained, too
        second.born = second.other = 1
        second.inner.gone = [1]
        for i, _ in enumerate(values):
            setattr(second, f"value_{i}", "something")
    other.load(through_a_file({"found": found.read()}).get("found", {}))
    left, right = (encode_all(each) for each in (first, second))
    assert left.keys() == right.keys()
    assert all(is_same(left[name], right[name]) for name in left)


def encode_all(made):
    holders = {"": made, "inner.": made.inner, "held.": made.held[0]}
    return {
        f"{at}{name}": encode_value(value)
        for at, holder in holders.items()
        for name, value in vars(holder).items()
        if name not in ("inner", "held")
    }


GENERATORS = [
    lambda: torch.Generator().manual_seed(3),
    lambda: random.Random(3),
    lambda: np.random.default_rng(3),
    lambda: np.random.RandomState(3),
    lambda: np.random.Generator(np.random.MT19937(3)),
    lambda: np.random.Generator(np.random.Philox(3)),
]


@pytest.mark.parametrize("make_one", GENERATORS)
def test_generators_go_on_where_they_were(make_one):
    def draw(generator):
        if isinstance(generator, torch.Generator):
            return float(torch.rand((), generator=generator))
        return float(generator.random() if hasattr(generator, "random") else generator.rand())

    left, right = (SimpleNamespace(parts={"mine": [make_one()]}) for _ in range(2))
    found, other = FoundState(left), FoundState(right)
    draw(left.parts["mine"][0])
    other.load(through_a_file({"found": found.read()})["found"])
    assert [draw(left.parts["mine"][0]) for _ in range(3)] == [draw(right.parts["mine"][0]) for _ in range(3)]


class Nets:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.same = self.net
        self.weight = self.net[0].weight
        self.free = torch.zeros(2, requires_grad=True)
        self.moves = {
            "net": torch.optim.Adam(self.net.parameters()),
            "free": torch.optim.SGD([self.free], 0.1),
        }
        self.plans = [torch.optim.lr_scheduler.StepLR(move, 1) for move in self.moves.values()]
        self.net.register_buffer("unsaved", torch.zeros(1), persistent=False)
        self.shared = self.other = torch.zeros(2)

    def step(self):
        loss = self.net(torch.randn(4, 2)).sum() + (self.free**2 - self.free).sum()
        loss.backward()
        for move, plan in zip(self.moves.values(), self.plans, strict=True):
            move.step()
            plan.step()
        self.net.unsaved += 1
        self.other = self.other + 1


def test_networks_optimizers_and_what_refers_to_them():
    left, right = Nets(), Nets()
    found, other = (FoundState(each, modes=True) for each in (left, right))
    left.net[0].weight.requires_grad_(False)
    left.net[1].eval()
    left.step()
    other.load(through_a_file({"found": found.read()})["found"])
    assert right.weight is right.net[0].weight
    assert right.moves["free"].param_groups[0]["params"][0] is right.free
    assert not right.weight.requires_grad
    assert not right.net[1].training
    assert right.shared is not right.other
    for each in (left, right):
        torch.manual_seed(1)
        each.step()
    again = found.read(), other.read()
    assert repr(again[0]["values"]) == repr(again[1]["values"])
    assert torch.equal(left.free, right.free)
    assert torch.equal(left.net[0].bias, right.net[0].bias)


def test_each_is_found_once_and_cycles_end():
    made = SimpleNamespace(net=nn.Linear(1, 1))
    made.self, made.list = made, [made.net]
    made.list.append(made.list)
    assert list(FoundState(made).read()["objects"]) == ["net"]


def test_a_value_of_the_config_wins_over_a_checkpoint():
    """It changed while training; then the config was changed."""
    first = SimpleNamespace(rate=1.0, best=9.0)
    found = FoundState(first)
    first.rate, first.best = 0.5, 3.0
    saved = through_a_file({"found": found.read()})["found"]
    same, other = SimpleNamespace(rate=1.0, best=9.0), SimpleNamespace(rate=2.0, best=8.0)
    FoundState(same).load(saved)
    FoundState(other).load(saved, is_changed=True)
    assert (same.rate, other.rate) == (0.5, 2.0)
    assert (same.best, other.best) == (3.0, 8.0)


RNG = torch.Generator()


def closing(rng):
    return lambda: torch.rand((), generator=rng)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (iter([1]), "list_iterator"),
        (closing(torch.Generator()), "'rng', a Generator"),
        ((number for number in [1]), "generator"),
        (nn.Linear, ""),
        (print, ""),
        (lambda x: x, ""),
        (__import__("pathlib").Path("x"), ""),
        (torch.float32, ""),
        (torch.utils.data.TensorDataset(torch.zeros(1)), ""),
        (range(3), ""),
    ],
)
def test_what_is_not_kept_is_named(value, says):
    found = FoundState(SimpleNamespace(value=value)).lost
    assert (says in found["value"]) if says else not found


def test_a_closure_over_something_that_is_kept_is_fine():
    made = SimpleNamespace(rng=torch.Generator())
    made.draw = closing(made.rng)
    assert not FoundState(made).lost


def test_a_counter_in_a_closure_is_noticed():
    def counting():
        count, width = 0, 3

        def step():
            nonlocal count
            count += width

        return step

    made = SimpleNamespace(step=counting())
    found = FoundState(made, modes=True)
    assert not found.notice()
    made.step()
    assert list(found.notice()) == ["step.count"]


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_tensors_in_containers_come_back_where_they_were(place):
    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    left, right = SimpleNamespace(seen=[]), SimpleNamespace(seen=[])
    found, other = FoundState(left), FoundState(right)
    left.seen.append((torch.ones(2, device=place), {"here": torch.zeros(1)}))
    other.load(through_a_file({"found": found.read()})["found"])
    ((there, here),) = right.seen
    assert there.device.type == place
    assert here["here"].device.type == "cpu"
    assert torch.equal(there, left.seen[0][0])


def test_a_tensor_of_a_gpu_is_read_without_one():
    coded = {"tensor": torch.ones(2), "on": "mps" if torch.cuda.is_available() else "cuda"}
    assert decode_value(coded).device.type == "cpu"


def test_containers_that_contain_themselves_are_not_plain():
    value = []
    value.append(value)
    with pytest.raises(NotPlain):
        encode_value(value)


def test_what_a_loop_creates_later_is_loaded_then():
    left, right = SimpleNamespace(), SimpleNamespace()
    found, other = FoundState(left), FoundState(right)
    left.net = nn.Linear(1, 1)
    other.load(through_a_file({"found": found.read()})["found"])
    assert other.complete() == ["net"]
    right.net = nn.Linear(1, 1)
    assert other.complete() == []
    assert torch.equal(left.net.weight, right.net.weight)


def test_what_training_changes_elsewhere_is_noticed():
    """A function that is replaced, an object that is created, a list of objects that grows."""
    made = SimpleNamespace(act=torch.relu, stages=[nn.Linear(1, 1)], late=None)
    found = FoundState(made, modes=True)
    assert not found.notice()
    made.act, made.late = torch.tanh, torch.optim.SGD(made.stages[0].parameters(), 0.1)
    made.stages.append(nn.Linear(1, 1))
    assert set(found.notice()) == {"act", "late", "stages", "stages.1"}


def test_values_that_share_memory_are_named():
    shared, buffer = [1], torch.zeros(3)
    made = SimpleNamespace(
        one=shared, two={"inner": shared}, buffer=buffer, view=buffer[1:], pair=(1, 2), same=(1, 2)
    )
    assert set(FoundState(made).lost) == {"two", "view"}


def test_references_that_switch_and_attributes_that_go():
    def make():
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        return SimpleNamespace(
            first=first, second=second, now=first, warm=True, by={1: torch.ones(1), "net": first}
        )

    left, right = make(), make()
    found, other = FoundState(left), FoundState(right)
    left.now, left.by[2] = left.second, 5
    del left.warm
    other.load(through_a_file({"found": found.read()})["found"])
    assert right.now is right.second
    assert not hasattr(right, "warm")
    assert right.by[2] == 5
