"""Batches of several runs: one stream for each distinct order, and the rows that each run reads alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.data import ArraySource, DatasetSource, Limited, Order
from manyfit.data import walk as walking
from manyfit.data.walk import walk_together


def make(rows=23):
    return ArraySource(np.arange(rows, dtype=np.float32), np.arange(rows))


class Own(ArraySource):
    """A subclass may draw at random while it reads."""


@given(
    orders=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2)), min_size=1, max_size=5),
    start=st.integers(0, 9),
    segments=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    most=st.sampled_from([1, 50, 1 << 20]),
)
def test_each_run_reads_what_it_reads_alone(orders, start, segments, most):
    source, found = make(), [[] for _ in orders]
    orders = [Order(size, seed) for size, seed in orders]
    walk = walk_together([source] * len(orders), orders, start)
    assert walk.streams == len(set(orders))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walking, "MOST_BYTES", most)
        for steps in segments:
            for count, parts in walk.chunks(steps):
                for run, part in enumerate(parts):
                    found[run] += [next(part).index.tolist() for _ in range(count)]
    for order, rows in zip(orders, found, strict=True):
        alone = source.batches(order, start)
        assert rows == [next(alone).index.tolist() for _ in range(sum(segments))]


def test_runs_that_read_the_same_rows_share_a_stream():
    source, other = make(), make()
    same = Order(4, 1)
    assert walk_together([source, source, source], [same, same, Order(4, 2)]).streams == 2
    assert walk_together([source, other], [same, same]).streams == 2
    assert walk_together([Limited(source, 9, 1), Limited(source, 9, 1)], [same, same]).streams == 1
    assert walk_together([Limited(source, 9, 1), Limited(source, 9, 2)], [same, same]).streams == 2


def test_a_source_that_may_draw_at_random_is_not_shared():
    source = Own(np.arange(8), np.arange(8))
    assert walk_together([source, source], [Order(4, 1)] * 2).streams == 2


def test_shared_batches_are_not_the_same_memory():
    walk = walk_together([make()] * 3, [Order(4, 1)] * 3)
    (_, parts), *_ = walk.chunks(1)
    batches = [next(part) for part in parts]
    batches[0].inputs += 100
    assert np.array_equal(batches[1].inputs, batches[2].inputs)
    assert batches[1].inputs.max() < 100
    assert not np.shares_memory(batches[1].inputs, batches[2].inputs)


def test_runs_that_leave_are_not_read_for():
    walk = walk_together([make()] * 3, [Order(4, 1), Order(4, 2), Order(4, 1)])
    next(walk)
    walk.keep([0, 2])
    assert walk.n == 2
    assert walk.streams == 1
    first, second = next(walk)
    assert first is second


@given(
    orders=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2)), min_size=1, max_size=4),
    start=st.integers(0, 9),
    segments=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.booleans()), min_size=1, max_size=5),
    limit=st.integers(3, 23),
    leaves_at=st.integers(0, 5),
)
def test_row_numbers_are_those_of_the_batches(orders, start, segments, limit, leaves_at):
    source = Limited(make(), limit, 1)
    orders = [Order(size, seed) for size, seed in orders]
    walk, alone = walk_together([source] * len(orders), orders, start), []
    alone = walk_together([source] * len(orders), orders, start)
    columns = walk.columns()
    assert len(columns) == 23
    for number, (by_number, steps, looks_ahead) in enumerate(segments):
        if looks_ahead:
            walk.look_ahead()
        if number == leaves_at:
            for each in (walk, alone):
                each.keep(range(1, each.n) or [0])
        if by_number:
            for index in walk.next_rows(steps):
                expected = next(alone)
                for place, batch in zip(walk.places, expected, strict=True):
                    np.testing.assert_array_equal(index[place], batch.index)
                    np.testing.assert_array_equal(columns.inputs[index[place]], batch.inputs)
        else:
            for _ in range(steps):
                for one, other in zip(next(walk), next(alone), strict=True):
                    np.testing.assert_array_equal(one.index, other.index)
                    np.testing.assert_array_equal(one.target, other.target)


def test_rows_that_end():
    walk = walk_together([make()], [Order(10, epochs=1)])
    assert [len(rows) for (rows,) in walk.next_rows(9)] == [10, 10, 3]
    walk.look_ahead()
    assert walk.next_rows(1) == []
    assert next(walk, None) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (Limited(DatasetSource([(0.0, 1)] * 8), 5, 1), "DatasetSource reads each batch anew"),
        (ArraySource(np.array(["a", "b"])), "inputs has no numbers"),
    ],
)
def test_rows_that_are_not_in_memory(source, reason):
    assert walk_together([source], [Order(2)]).columns() == reason


def test_different_rows_are_not_one():
    assert walk_together([make(), make()], [Order(2)] * 2).columns() == "the runs read different rows"
