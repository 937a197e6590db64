"""Cross-validation: folds of any data, and folds as the replicates of a study."""

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import ConfigError, UsageError
from manyfit.data import ArraySource, DatasetSource
from manyfit.data.folds import make_fold
from manyfit.study.sweep import sweep


def rows_of(source):
    return source.ids(np.arange(len(source)))


class Rows:
    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return np.float32([self.first + row]), (self.first + row) % 3


def arrays(first, count):
    x = np.arange(first, first + count)
    return ArraySource(x[:, None].astype(np.float32), x % 3, [f"r{i}" for i in x])


def datasets(first, count):
    return DatasetSource(Rows(first, count), ids=[f"r{i}" for i in range(first, first + count)])


@pytest.mark.parametrize("make", [arrays, datasets])
@pytest.mark.parametrize("stratify", [None, "target"])
def test_every_row_is_validated_once(make, stratify):
    parts = [make(0, 17), make(17, 6)]
    seen = []
    for fold in range(4):
        train, validation = make_fold(parts, fold, 4, stratify=stratify)
        assert not set(rows_of(train)) & set(rows_of(validation))
        assert len(train) + len(validation) == 23
        seen += rows_of(validation)
        (batch,) = (
            validation.batches(__import__("manyfit").data.Order(64, epochs=1))
            if make is arrays
            else [next(iter(validation.batches(manyfit.data.Order(64, epochs=1))))]
        )
        values = np.asarray(batch.inputs).ravel()
        assert [f"r{int(v)}" for v in values] == rows_of(validation)
        if stratify:
            counts = np.bincount(np.asarray(batch.target), minlength=3)
            assert counts.max() - counts.min() <= 1
    assert sorted(seen) == sorted(f"r{i}" for i in range(23))


def test_ids_that_restart_in_each_split_become_row_numbers():
    parts = [ArraySource(np.zeros((4, 1))), ArraySource(np.ones((4, 1)))]
    train, validation = make_fold(parts, 0, 2)
    assert sorted(rows_of(train) + rows_of(validation)) == [str(i) for i in range(8)]


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"folds": 5}, "data.fold is missing, but must be from 0 to 4"),
        ({"folds": 5, "fold": 5}, "data.fold is 5"),
        ({"fold": 1}, "no effect without data.folds"),
        ({"folds": 5, "fold": 1, "stratify": "targt"}, "did you mean 'target'"),
        ({"folds": 500, "fold": 1}, "128 rows cannot be divided into 500 folds"),
    ],
)
def test_mistakes(project, beside, words):
    with pytest.raises(UsageError, match=words):
        manyfit.train(
            project.changed(data={"class": "points.Blobs", **beside}), folder="runs/b", callbacks=[]
        )


def test_a_fold_is_a_run_of_its_own(project):
    tree = project.changed(data={"class": "points.Blobs", "folds": 4, "fold": 1, "stratify": "target"})
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    report = (result.folder / "reports/validation.csv").read_text().splitlines()
    assert len(report) == 1 + 128 // 4
    other = manyfit.load_config({**tree, "data": {**tree["data"], "fold": 2}})
    assert other.fingerprint != manyfit.load_config(tree).fingerprint


def test_folds_are_the_replicates_of_a_study(project):
    project.write("studies/s/study.yaml", """
        base: ../../runs/a/config.yaml
        objective: {metric: val_loss, mode: min}
        search: {method: grid, seeds: 2, folds: 3}
        space: {model.hidden: [4, 8]}
        execute: {on: inline}
        """)  # fmt: skip
    study = sweep(project.root / "studies/s", progress=False)
    assert all(len(point.trials) == 6 for point in study.points)
    config = manyfit.load_config(next(iter(study.points[0].folders.values())) / "config.resolved.yaml")
    assert config.run.seed == 3
    assert config.run.data.beside == {"folds": 3, "fold": 0}
    seen = []
    for number, folder in study.points[0].folders.items():
        found = manyfit.load_config(folder / "config.resolved.yaml")
        assert (found.run.seed, found.run.data.beside["fold"]) == divmod(number, 3)
        if found.run.seed == 3:
            seen += manyfit.predict(folder, split="validation")["id"]
    assert len(seen) == len(set(seen)) == 128
    again = sweep(project.root / "studies/s", progress=False)
    assert again.best.trials == study.best.trials


def test_a_base_with_a_fold_is_refused(project):
    project.config(project.changed(data={"class": "points.Blobs", "folds": 4, "fold": 1}))
    project.write("studies/s/study.yaml", """
        base: ../../runs/a/config.yaml
        objective: {metric: val_loss, mode: min}
        search: {method: grid, folds: 3}
        space: {model.hidden: [4, 8]}
        """)  # fmt: skip
    with pytest.raises(ConfigError, match="set by the study"):
        sweep(project.root / "studies/s", progress=False)
