"""Sources keep the contract; so do the digits."""

import numpy as np
import pytest
import torch

from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, Order
from manyfit.datasets import Digits
from manyfit.testing import SourceContract


class TestArrays(SourceContract):
    def make(self):
        return ArraySource(np.arange(22.0).reshape(11, 2), np.arange(11), [f"r{i}" for i in range(11)])


class TestDictOfArrays(SourceContract):
    def make(self):
        return ArraySource({"x": np.arange(7.0), "mask": np.arange(7) % 2})


class TestTupleOfArrays(SourceContract):
    def make(self):
        return ArraySource((np.arange(5.0), np.arange(5)), np.arange(5))


class TestDigits(SourceContract):
    def make(self):
        return Digits(test=0.1).source("test")


def test_the_order_stays_the_same_for_ever():
    """Pinned: a change would make every old run impossible to continue."""
    assert Order(4, seed=7).epoch(8, 0).tolist() == [6, 7, 2, 3, 4, 5, 0, 1]
    assert Order(4, seed=7).epoch(8, 1).tolist() == [0, 3, 1, 4, 5, 6, 2, 7]


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    real = load_digits()
    seen = {}
    for split in ("train", "validation", "test"):
        source = Digits().source(split)
        ids = source.ids(np.arange(len(source)))
        assert source.inputs.shape == (len(source), 1, 8, 8)
        for id_, pixels, label in zip(ids, source.inputs, source.target, strict=True):
            assert id_ not in seen
            row = int(id_.removeprefix("digit-"))
            seen[id_] = row
            assert np.array_equal(pixels[0] * 16, real.images[row])
            assert label == real.target[row]
    assert sorted(seen.values()) == list(range(1797))


def test_the_split_follows_its_own_seed():
    first, other = Digits().source("test"), Digits(split_seed=1).source("test")
    rows = np.arange(len(first))
    assert first.ids(rows) == Digits(batch_size=3).source("test").ids(rows)
    assert first.ids(rows) != other.ids(rows)


def test_fingerprints_differ_with_content():
    base = ArraySource(np.zeros((3, 2)), np.zeros(3))
    others = [ArraySource(np.ones((3, 2)), np.zeros(3)), ArraySource(np.zeros((3, 2), np.float32), np.zeros(3)),
              ArraySource(np.zeros((3, 2))), ArraySource(np.zeros((3, 2)), np.zeros(3), ["a", "b", "c"]),
              ArraySource({"x": np.zeros((3, 2))}, np.zeros(3))]  # fmt: skip
    assert len({source.fingerprint() for source in [base, *others]}) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), np.zeros(4)), "inputs.0 has 3, target has 4"),
        ((np.zeros(2), None, ["a", "a"]), "unique"),
    ],
)
def test_arrays_that_do_not_fit(arguments, message):
    with pytest.raises(UsageError, match=message):
        ArraySource(*arguments)


def test_a_split_that_leaves_nothing():
    with pytest.raises(UsageError, match="to leave rows for training"):
        Digits(validation=0.5, test=0.5)


def test_what_can_be_read_as_an_array_is_one():
    import torch

    source = ArraySource(torch.ones(3, 2), [0, 1, 2], ids=range(3))
    batch = next(source.batches(Order(3)))
    assert isinstance(batch.inputs, np.ndarray)
    assert source.ids(batch.index) == ["0", "1", "2"]
    assert len(source.fingerprint()) == 64


def test_memory_mapped_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = ArraySource(mapped, np.arange(20))
    batch = next(iter(source.batches(Order(4, seed=1))))
    assert np.array_equal(batch.inputs, np.asarray(mapped)[batch.index])
    assert torch.from_numpy(batch.inputs).shape == (4, 2)
    assert source.fingerprint() == ArraySource(np.array(mapped), np.arange(20)).fingerprint()
