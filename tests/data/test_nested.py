"""Arrays that may be several, in any structure."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manyfit.data import Batch
from manyfit.data.nested import concatenate, count_rows, map_arrays, named_arrays, pair_outputs

ROWS = 7


def structures(leaf):
    names = st.sampled_from(["a", "b", "c"])
    return st.recursive(
        leaf,
        lambda inner: (
            st.dictionaries(names, inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3)
            | st.lists(inner, min_size=1, max_size=3).map(tuple)
        ),
        max_leaves=5,
    )


ARRAYS = structures(st.integers(0, 99).map(lambda n: n * 100 + np.arange(ROWS)))


def same(left, right):
    one, two = list(named_arrays(left)), list(named_arrays(right))
    return [name for name, _ in one] == [name for name, _ in two] and all(
        np.array_equal(a, b) for (_, a), (_, b) in zip(one, two, strict=True)
    )


@given(ARRAYS, st.lists(st.integers(1, ROWS - 1), unique=True, max_size=3).map(sorted))
def test_parts_come_together_again(value, cuts):
    bounds = [0, *cuts, ROWS]
    batch = Batch(value, value, np.arange(ROWS))
    parts = [batch.part(a, b) for a, b in itertools.pairwise(bounds)]
    assert [count_rows(part.inputs) for part in parts] == [b - a for a, b in itertools.pairwise(bounds)]
    assert same(concatenate([part.inputs for part in parts]), value)
    assert type(concatenate([part.target for part in parts])) is type(value)
    assert same(map_arrays(lambda array: array, value), value)


@given(ARRAYS, ARRAYS)
def test_every_output_is_there_once_and_no_target_twice(output, target):
    pairs = pair_outputs(output, target)
    assert sorted(name for name, _, _ in pairs) == sorted(name for name, _ in named_arrays(output))
    named, known = dict(named_arrays(output)), dict(named_arrays(target))
    assert all(value is named[name] for name, value, _ in pairs)
    assert pairs[0][2] is not None  # the first stands for all
    if isinstance(output, dict) and isinstance(target, dict) and set(named) & set(known):
        assert all(found is known.get(name) for name, _, found in pairs)
    given = [id(found) for _, _, found in pairs if found is not None]
    assert len(given) == len(set(given)) or len(set(map(id, known.values()))) < len(known)
