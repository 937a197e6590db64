"""Data sets and iterables as sources, and limited sources."""

import numpy as np
import pytest

from manyfit.core.errors import RunFailed
from manyfit.data import ArraySource, DatasetSource, Limited, Order, once


def test_limits_within_limits():
    source = Limited(Limited(ArraySource(np.arange(20), np.arange(20)), 12), 5)
    assert len(source) == sum(len(batch) for batch in once(source, 4)) == 5
    outer = Limited(Limited(ArraySource(np.arange(20), np.arange(20)), 5), 12)
    assert len(outer) == sum(len(batch) for batch in once(outer, 4)) == 5


class Sometimes:
    ids = ("a", "b", "c", "d")

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if row == 2:
            raise KeyError("nothing here")
        return np.zeros(2), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_fails_is_named(workers):
    source = DatasetSource(Sometimes(), workers)
    assert source.ids(np.array([1, 3])) == ["b", "d"]
    with pytest.raises(RunFailed, match="row 2 of the data could not be made into a batch: KeyError"):
        list(source.batches(Order(1, epochs=1)))
