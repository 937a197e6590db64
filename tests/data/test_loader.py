"""PyTorch loaders are taken apart: the order of rows is a function of the seed, whatever sampler they have."""

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from manyfit.core.errors import UsageError
from manyfit.data import Order, once
from manyfit.data.loader import take_apart

ROWS = TensorDataset(torch.arange(10, dtype=torch.float32), torch.arange(10))


class Augmented(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, row):
        return row + np.random.rand() + float(torch.rand(())), row


class Tens(BatchSampler):
    """Batches of its own making, different in every epoch."""

    def __init__(self):
        self.calls = 0

    def __iter__(self):
        self.calls += 1
        order = torch.randperm(10).tolist()
        return iter([order[:3], order[3:6], order[6:]])

    def __len__(self):
        return 3


class Drawing(Sampler):
    """Draws from a generator of its own, under a name of its own."""

    def __init__(self):
        self.draws = {"rows": torch.Generator().manual_seed(0)}

    def __iter__(self):
        return iter(torch.randperm(10, generator=self.draws["rows"]).tolist())

    def __len__(self):
        return 10


class Counting(Drawing):
    """Counts its epochs, and shifts its rows by that."""

    def __init__(self):
        super().__init__()
        self.epoch, self.seen = 0, []

    def __iter__(self):
        rows = list(super().__iter__())
        self.epoch += 1
        self.seen.append(rows[0])
        return iter([(row + self.epoch + sum(self.seen)) % 10 for row in rows])


class Pairs(Tens):
    """Batches of what a sampler of one's own returns."""

    def __init__(self):
        super().__init__()
        self.inner = Counting()

    def __iter__(self):
        rows = list(self.inner)
        return iter([rows[:3], rows[3:7], rows[5:]])


class Slotted:
    """Has no attributes but slots, and draws from a generator in another object."""

    __slots__ = ("epoch", "held")

    def __init__(self):
        self.epoch, self.held = 0, SimpleNamespace(deep={"one": [Drawer()]})

    def __iter__(self):
        self.epoch += 1
        rows = self.held.deep["one"][0].rng.permutation(10)
        return iter([(int(row) + self.epoch) % 10 for row in rows])

    def __len__(self):
        return 10


class Drawer:
    def __init__(self):
        self.rng = np.random.default_rng()


LOADERS = {
    "slotted": lambda: DataLoader(ROWS, batch_size=4, sampler=Slotted()),
    "drawing": lambda: DataLoader(ROWS, batch_size=4, sampler=Drawing()),
    "counting": lambda: DataLoader(ROWS, batch_size=4, sampler=Counting()),
    "counted batches": lambda: DataLoader(ROWS, batch_sampler=Pairs()),
    "shuffled": lambda: DataLoader(ROWS, batch_size=4, shuffle=True),
    "in order": lambda: DataLoader(ROWS, batch_size=4),
    "dropped": lambda: DataLoader(ROWS, batch_size=4, shuffle=True, drop_last=True),
    "weighted": lambda: DataLoader(
        ROWS, batch_size=4, sampler=WeightedRandomSampler([1.0] * 5 + [9.0] * 5, 10)
    ),
    "subset": lambda: DataLoader(ROWS, batch_size=4, sampler=SubsetRandomSampler(range(6))),
    "with a generator": lambda: DataLoader(
        ROWS, batch_size=4, sampler=SubsetRandomSampler(range(6), torch.Generator())
    ),
    "replaced": lambda: DataLoader(
        ROWS, batch_size=4, sampler=RandomSampler(ROWS, replacement=True, num_samples=7)
    ),
    "batches": lambda: DataLoader(ROWS, batch_sampler=Tens()),
    "augmented": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True),
    "collated": lambda: DataLoader(
        ROWS,
        batch_size=4,
        shuffle=True,
        collate_fn=lambda rows: {
            "x": torch.stack([r[0] for r in rows]),
            "target": torch.stack([r[1] for r in rows]),
        },
    ),
}


def values(batches, count):
    found = []
    for batch in itertools.islice(batches, count):
        inputs = batch.inputs["x"] if isinstance(batch.inputs, dict) else batch.inputs
        found.append((np.asarray(inputs).tolist(), np.asarray(batch.target).tolist()))
    return found


@pytest.mark.parametrize("name", LOADERS)
def test_the_order_is_a_function_of_the_seed_and_the_step(name):
    """The same from a fresh loader, from any step, whatever the global generators are."""
    first, size = take_apart(LOADERS[name]())
    order = Order(size, seed=7)
    whole = values(first.batches(order), 9)
    for start in (0, 1, first.steps(order), 5):
        torch.manual_seed(start)
        np.random.seed(start)
        again, _ = take_apart(LOADERS[name]())
        assert values(again.batches(order, start), 9 - start) == whole[start:]
    per_epoch = first.steps(order)
    other = values(first.batches(Order(size, seed=8)), per_epoch)
    assert (other == whole[:per_epoch]) == (name == "in order")
    assert (whole[:per_epoch] == whole[per_epoch : 2 * per_epoch]) == (name == "in order")


@pytest.mark.parametrize("name", LOADERS)
def test_evaluation_reads_every_row_once_in_order(name):
    source, _ = take_apart(LOADERS[name]())
    rows = [int(row) for batch in once(source, 3) for row in batch.index]
    assert rows == sorted(set(rows))
    assert len(rows) == len(source)
    assert len(source.ids(np.asarray(rows))) == len(rows)
    assert rows == list(range(6)) if "subset" in name or "generator" in name else True


class Own(DataLoader):
    def __iter__(self):
        return iter([])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1), 0)] * 5)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (lambda: Own(ROWS), "Own defines its own __iter__"),
        (lambda: DataLoader(ROWS, batch_size=None), "batch_size is None"),
        (lambda: DataLoader(Stream(), batch_size=None), "batch_size is None"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_by_name(loader, says):
    with pytest.raises(UsageError, match=says):
        take_apart(loader())


def test_a_sampler_that_cannot_be_copied_is_named(caplog):
    sampler = Drawing()
    sampler.lock = threading.Lock()
    source, size = take_apart(DataLoader(ROWS, batch_size=4, sampler=sampler))
    assert len(values(source.batches(Order(size, seed=7)), 6)) == 6
    assert "the sampler Drawing cannot be copied" in caplog.text


def test_a_sampler_may_be_changed_from_outside(caplog):
    sampler = Counting()
    source, size = take_apart(DataLoader(ROWS, batch_size=10, sampler=sampler))
    batches = source.batches(Order(size, seed=7))
    plain = values(source.batches(Order(size, seed=7)), 2)
    assert values(batches, 1) == plain[:1]
    assert "changed between two epochs" not in caplog.text
    sampler.epoch += 1
    assert values(batches, 1) != plain[1:]
    assert "the sampler Counting was changed between two epochs" in caplog.text


class Guided(Sampler):
    """Reads a tensor that others change, and holds a module and two generators."""

    def __init__(self, shared, module):
        self.shared, self.module = shared, module
        self.one, self.two = torch.Generator(), torch.Generator()

    def __iter__(self):
        first, second = (torch.randperm(10, generator=each) for each in (self.one, self.two))
        self.are_equal = bool((first == second).all())
        return iter((first + int(self.shared)).remainder(10).tolist())

    def __len__(self):
        return 10


def test_what_a_sampler_shares_stays_shared(caplog):
    shared, module = torch.zeros((), dtype=torch.bfloat16), torch.nn.Linear(1, 1)
    sampler = Guided(shared, module)
    source, size = take_apart(DataLoader(ROWS, batch_size=10, sampler=sampler))
    batches, plain = source.batches(Order(size, seed=7)), values(source.batches(Order(size, seed=7)), 2)
    assert values(batches, 1) == plain[:1]
    assert not sampler.are_equal
    shared += 1
    assert values(batches, 1) != plain[1:]
    assert sampler.shared is shared
    assert sampler.module is module
    assert "the sampler Guided was changed between two epochs" in caplog.text


def test_streams_and_sizes():
    source, size = take_apart(DataLoader(Stream(), batch_size=2))
    assert (len(source), size) == (5, 2)
    assert (
        take_apart(DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 3, drop_last=False)))[
            1
        ]
        == 3
    )
