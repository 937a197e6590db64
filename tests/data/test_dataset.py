"""Data sets and iterables as sources, and limited sources."""

import csv

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import RunFailed, UsageError
from manyfit.data import ArraySource, DatasetSource, IterableSource, Limited, Order, once
from manyfit.run.resume_proof import difference
from manyfit.store.folder import RunFolder
from manyfit.testing import SourceContract


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


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(forms, workers):
    splits = {
        split: {"class": "sets.Rows", "split": split, "noise": 0.2}
        for split in ("train", "validation", "test")
    }
    runs = []
    for count in (0, workers):
        tree = forms.changed(
            data={"class": "manyfit.data.Splits", "batch_size": 16, "workers": count, **splits}
        )
        runs.append(RunFolder(manyfit.train(tree, folder=f"runs/w{count}", callbacks=[]).folder))
        (forms.root / f"runs/w{count}.trace").write_text("[0, []]\n")
    assert difference(*runs) == ""
    with (runs[1].reports / "test.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(i) for i in range(64)]


def test_an_iterable_that_is_shorter_than_it_says(project):
    source = IterableSource(lambda: iter([(np.zeros(2), 0)] * 5), count=7)
    with pytest.raises(UsageError, match="ended after 5"):
        list(once(source, 2))
    with pytest.raises(UsageError, match="only once"):
        IterableSource(iter([1, 2]))
    assert len(IterableSource(lambda: iter([(np.zeros(2), 0)] * 5))) == 5


def test_an_iterable_says_that_it_is_read_from_the_beginning(caplog):
    source = IterableSource([(np.full(2, i), i) for i in range(8)])
    (batch,) = [next(iter(source.batches(Order(2, seed=1), 3)))]
    assert batch.index.tolist() == [6, 7]
    assert "discarding 3 batches" in caplog.text


class Squares:
    def __len__(self):
        return 7

    def __getitem__(self, row):
        return {"x": np.float32(row), "target": row**2, "weight": 1.0}


class TestDataset(SourceContract):
    def make(self):
        return DatasetSource(Squares(), ids=list("abcdefg"))


class TestDatasetWithWorkers(SourceContract):
    def make(self):
        return DatasetSource(Squares(), workers=1)


class TestLimited(SourceContract):
    def make(self):
        return Limited(ArraySource(np.arange(20), np.arange(20)), 7)
