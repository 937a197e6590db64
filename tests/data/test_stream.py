"""Streams in shards, with workers and a shuffle buffer: the same batches, whoever reads them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.cut import resumes
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import manyfit
from manyfit.core.errors import RunFailed, UsageError
from manyfit.data import IterableSource, Order, Splits, as_source, once
from manyfit.testing import SourceContract


class Sharded(IterableDataset):
    """Rows `first` to `end`, of which a shard reads every n-th, with noise."""

    def __init__(self, end=23, noise=0.1):
        self.end, self.noise = end, noise

    def __iter__(self):
        info = get_worker_info()
        shard, shards = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(shard, self.end, shards):
            yield torch.tensor([row + self.noise * random.random()]), row


def uneven(shard, shards):
    """Shards of which the first has almost all rows."""
    return iter([(np.float32(100 * shard + i), i) for i in range(19 if shard == 0 else shard)])


def read(source, order, start=0, steps=None):
    found = itertools.islice(source.batches(order, start), steps)
    return [(np.asarray(b.inputs).tolist(), np.asarray(b.target).tolist(), b.index.tolist()) for b in found]


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(0, 12), st.integers(0, 30),
    st.booleans(),
)  # fmt: skip
def test_an_epoch_holds_every_row_once_and_any_step_is_found_again(rows, size, shards, buffer, start, drop):
    source = IterableSource(Sharded(rows), count=rows, shards=shards, shuffle_buffer=buffer, drop_last=drop)
    order = Order(size, seed=3, epochs=2)
    whole, steps = read(source, order), source.steps(order)
    assert len(whole) == 2 * steps
    for epoch in (whole[:steps], whole[steps:]):
        targets = [row for _, target, _ in epoch for row in target]
        used = rows // size * size if drop else rows
        assert len(targets) == len(set(targets)) == used
        assert [row for _, _, index in epoch for row in index] == list(range(used))
        assert all(len(target) == size for _, target, _ in epoch[:-1])
    assert read(source, order, start) == whole[start:]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("rows", "buffer", "start"), [(23, 0, 0), (23, 5, 4), (24, 100, 7)])
def test_the_number_of_workers_changes_nothing(workers, rows, buffer, start):
    for shards in (1, 2, 5):
        found = [
            read(
                IterableSource(Sharded(rows), rows, workers=count, shards=shards, shuffle_buffer=buffer),
                Order(3, seed=1, epochs=2),
                start,
            )
            for count in (0, workers)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_shards_end_when_they_end(workers):
    source = IterableSource(uneven, count=19 + 1 + 2, workers=workers, shards=3)
    found = read(source, Order(4, seed=0, epochs=2))
    assert [len(index) for _, _, index in found] == [4, 4, 4, 4, 4, 2] * 2
    values = [value for inputs, _, _ in found[:6] for value in inputs]
    assert sorted(values) == [*range(19), 100, 200, 201]
    assert read(source, Order(4, seed=0, epochs=2), 5) == found[5:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_longer_stream_is_cut_and_a_shorter_one_is_an_error(workers):
    source = IterableSource(Sharded(100), count=10, workers=workers, shards=2)
    assert [len(index) for _, _, index in read(source, Order(4, seed=0, epochs=2))] == [4, 4, 2] * 2
    with pytest.raises(UsageError, match="should have 30 rows, but ended after 23"):
        read(IterableSource(Sharded(23), count=30, workers=workers, shards=2), Order(4, seed=0, epochs=1))
    source = IterableSource(Sharded(13), count=40, workers=workers)
    batches = source.batches(Order(8, seed=0, epochs=1))
    assert len(next(batches)) == 8
    with pytest.raises(UsageError, match="ended after 13"):
        next(batches)


def test_a_stream_of_one_shard_is_not_read_further_than_needed():
    def rows():
        yield from ((np.float32(i), i) for i in range(10))
        raise AssertionError("read too far")

    assert len(read(IterableSource(rows, count=10), Order(4, seed=0, epochs=3))) == 9


def test_a_buffer_shuffles_and_every_epoch_differs():
    source = IterableSource(Sharded(40, noise=0), count=40, shuffle_buffer=10)
    found = read(source, Order(40, seed=0, epochs=2))
    first, second = (target for _, target, _ in found)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(40)) != first
    assert all(row <= place + 10 for place, row in enumerate(first))  # not before it could be in the buffer
    assert next(once(source, 40)).target.tolist() == list(range(40))  # evaluation reads in order


def test_shards_that_are_equal_are_refused():
    class Everything(IterableDataset):
        def __iter__(self):
            return iter([(np.float32(i), i) for i in range(8)])

    with pytest.raises(UsageError, match="shards 0 and 1 of the stream begin with the same rows"):
        read(IterableSource(Everything(), 8, shards=2), Order(2, seed=0))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_stream_arrives(workers):
    def rows():
        yield np.float32(0), 0
        raise KeyError("nothing here")

    with pytest.raises((RunFailed, KeyError), match="nothing here"):
        read(IterableSource(rows, count=4, workers=workers), Order(2, seed=0))


def test_a_collate_function_sees_the_same_rows_and_randomness():
    def join(rows):
        return torch.stack([x for x, _ in rows]) + random.random(), torch.tensor([y for _, y in rows])

    found = [
        read(as_source(DataLoader(Sharded(), batch_size=4, num_workers=w, collate_fn=join)), Order(4, seed=1, epochs=1))
        for w in (0, 1)
    ]  # fmt: skip
    assert found[0] == found[1]
    assert len(found[0]) == 6


def test_settings_of_streams_are_refused_elsewhere():
    with pytest.raises(UsageError, match="apply to streams only"):
        Splits([(1.0, 2.0)], shuffle_buffer=3).source("train")
    with pytest.raises(UsageError, match="this is a stream"):
        Splits(Sharded(), shuffle=False).source("train")
    source = Splits(Sharded(), count=20, stream_shards=2, shuffle_buffer=4, drop_last=True).source("train")
    assert (len(source), source.steps(Order(6, seed=0)), source.steps(Order(6))) == (20, 3, 4)


class TestStream(SourceContract):
    def make(self):
        return IterableSource(Sharded(7), 7, shards=2, shuffle_buffer=3, ids=list("abcdefg"))


STREAMED = """
import random
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from points import Blobs


class Rows(IterableDataset):
    def __iter__(self):
        source, info = Blobs().source("train"), get_worker_info()
        shard, shards = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(shard, len(source), shards):
            yield torch.from_numpy(source.inputs[row]) + 0.1 * random.random(), int(source.target[row])
"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.soak), 3])
def test_a_stream_with_a_buffer_is_killed_and_resumed_exactly(project, workers):
    project.write("src/streamed.py", STREAMED)
    data = {"class": "manyfit.data.Splits", "train": {"class": "streamed.Rows"}, "batch_size": 8,
            "count": 60, "stream_shards": 3, "shuffle_buffer": 10, "workers": workers}  # fmt: skip
    resumes(project, {**project.changed(), "data": data}, 11)


def test_nothing_is_counted_if_the_length_is_given(project, caplog):
    project.write("src/streamed.py", STREAMED)
    data = {"class": "manyfit.data.Splits", "train": {"class": "streamed.Rows"}, "batch_size": 8}
    tree = {**project.changed(), "data": data}
    manyfit.train({**tree, "data": {**data, "count": 32}}, folder="runs/b", callbacks=[])
    manyfit.train(tree, ["train.steps=4"], folder="runs/c", callbacks=[])
    assert "count its rows" not in caplog.text


def test_shards_of_a_run_and_of_a_stream_are_two_things(project):
    """`data.shards` divides rows that can be read in any order; a stream has `stream_shards`."""
    project.write("src/streamed.py", STREAMED)
    project.write("src/maps.py", "from points import Blobs\n\n\nclass Rows:\n    def __init__(self, split: str):\n"
                  "        self.found = Blobs().source(split)\n\n    def __len__(self):\n        return len(self.found)\n\n"
                  "    def __getitem__(self, row):\n        return self.found.inputs[row], self.found.target[row]\n")  # fmt: skip
    data = {
        "class": "manyfit.data.Splits",
        "train": {"class": "maps.Rows", "split": "train"},
        "batch_size": 8,
        "shards": 3,
    }
    resumes(project, {**project.changed(), "data": data}, 5)
    stream = {"class": "manyfit.data.Splits", "train": {"class": "streamed.Rows"}, "count": 32, "shards": 2}
    with pytest.raises(UsageError, match=r"data\.shards"):
        manyfit.train({**project.changed(), "data": stream}, folder="runs/s", callbacks=[])


def test_no_data_class_takes_a_key_of_the_run():
    """Those that are known take folds themselves, to fit statistics on the rows of a fold."""
    import inspect

    from manyfit import data
    from manyfit.config.typed.roles import DATA

    for name in data.__all__:
        target = getattr(data, name)
        if inspect.isclass(target) and hasattr(target, "source") and name != "Data":
            taken = set(inspect.signature(target).parameters) & set(DATA.beside)
            assert taken <= {"folds", "fold", "stratify", "fold_seed"}, (name, taken)
