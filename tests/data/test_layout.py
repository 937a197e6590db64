"""Shards: every row is in one of them, and an epoch visits each of them once."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, DatasetSource, Order
from manyfit.data.layout import Layout


@given(rows=st.integers(1, 200), shards=st.integers(1, 9), is_scattered=st.booleans())
def test_every_row_is_in_exactly_one_shard(rows, shards, is_scattered):
    if shards > rows:
        with pytest.raises(UsageError, match="cannot be divided into"):
            Layout.divide(rows, shards, is_scattered)
        return
    layout = Layout.divide(rows, shards, is_scattered)
    found = [layout.rows(shard) for shard in range(shards)]
    assert sorted(np.concatenate(found).tolist()) == list(range(rows))
    assert [len(each) for each in found] == list(layout.sizes)
    assert max(layout.sizes) - min(layout.sizes) <= 1


def test_rows_sorted_by_class_are_spread_over_the_shards():
    layout = Layout.divide(1000, 4)
    assert all(200 < np.sum(layout.rows(shard) < 500) * 2 < 300 for shard in range(4))


@st.composite
def orders(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=7))
    layout = Layout(tuple(np.cumsum([0, *sizes]).tolist()), draw(st.booleans()))
    known = draw(st.permutations(range(len(sizes))))[: draw(st.integers(0, len(sizes)))]
    return Order(
        draw(st.integers(1, 5)), draw(st.none() | st.integers(0, 3)), epochs=3, layout=layout,
        first_shard=draw(st.integers(0, len(sizes) - 1)), visits=((), tuple(known)),
    )  # fmt: skip


@given(order=orders(), start=st.integers(0, 40))
def test_an_epoch_visits_each_shard_once_and_can_be_joined_anywhere(order, start):
    rows, layout = order.layout.bounds[-1], order.layout
    whole = [index.tolist() for index in order.walk(rows)]
    assert [index.tolist() for index in order.walk(rows, start)] == whole[start:]
    per_epoch = order.steps(rows)
    shard_of = {row: shard for shard in range(layout.shards) for row in layout.rows(shard).tolist()}
    for epoch in range(3):
        batches = whole[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for batch in batches for row in batch) == list(range(rows))
        assert all(len({shard_of[row] for row in batch}) == 1 for batch in batches)
        visited = [shard_of[batch[0]] for batch in batches]
        assert list(dict.fromkeys(visited)) == order.path(epoch)
        assert [visited.count(shard) for shard in order.path(epoch)] == order.steps_of_visits(epoch)


@given(order=orders(), start=st.integers(0, 20), until=st.integers(0, 40))
def test_nothing_is_read_beyond_the_end(order, start, until):
    rows = order.layout.bounds[-1]
    whole = [index.tolist() for index in order.walk(rows)]
    assert [i.tolist() for i in replace(order, until=until).walk(rows, start)] == whole[start:until]


@given(order=orders())
def test_rows_of_a_shard_do_not_depend_on_when_it_is_visited(order):
    rows, other = order.layout.bounds[-1], Order(order.batch_size, order.seed, 3, layout=order.layout)
    assert sorted(i.tolist() for i in order.walk(rows)) == sorted(i.tolist() for i in other.walk(rows))


def test_sources_read_shards():
    inputs, target = np.arange(20.0).reshape(10, 2), np.arange(10)
    order = Order(3, 5, layout=Layout.divide(10, 3))
    arrays = ArraySource(inputs, target)
    rows = DatasetSource([(inputs[i], target[i]) for i in range(10)])
    for ours, theirs in islice(zip(arrays.batches(order), rows.batches(order), strict=False), 12):
        assert ours.index.tolist() == list(theirs.index)
        assert np.array_equal(np.asarray(ours.target), np.asarray(theirs.target))
