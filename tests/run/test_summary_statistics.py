"""Metrics of classification in the summary of a report."""

import numpy as np
import pytest

from manyfit.run.evaluation import summary_statistics


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_many_classes_in_few_bits(dtype):
    target = np.arange(20, dtype=dtype)
    assert summary_statistics.usual(target, target, 20)["accuracy"] == 1.0


def test_what_is_no_class_is_left_out():
    target = np.array([0, 1, 255, -100])
    found = summary_statistics.usual(target, np.array([0, 1, 0, 1]), 2)
    assert found["accuracy"] == 1.0
    assert np.array(found["confusion"]).tolist() == [[1, 0], [0, 1]]
    assert summary_statistics.usual(np.array([70_000]), np.array([70_000]), 100_000) == {"accuracy": 1.0}
