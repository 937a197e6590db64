"""Batches of several runs: one stream for each distinct order, and the rows that each run reads alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.data import ArraySource, Limited, Order
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
