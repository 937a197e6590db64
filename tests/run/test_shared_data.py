"""Data that trials of one process share."""

from __future__ import annotations

import os
import sys

import pytest

import manyfit
from manyfit import load_config
from manyfit.run.build.builder import build
from manyfit.run.build.shared_data import MOST, SEEDS, SharedData

COUNTED = '''
import os
import numpy as np
import torch
from manyfit.data import ArraySource

BUILT = []


class Hashed(ArraySource):
    is_constant = True

    def fingerprint(self):
        BUILT.append("hash")
        return super().fingerprint()


class Plain:
    def __init__(self, batch_size: int = 16, rows: int = 40) -> None:
        BUILT.append("build")
        self.batch_size, self.rows = batch_size, rows

    def source(self, split):
        state = np.random.RandomState(len(split))
        return Hashed(state.normal(size=(self.rows, 64)).astype("float32"), np.arange(self.rows) % 10)


class Drawing(Plain):
    def source(self, split):
        return Hashed(np.random.normal(size=(self.rows, 64)).astype("float32"), np.arange(self.rows) % 10)


class Forked(Plain):
    """Follows from the seed, though the global generators stand where they stood."""

    def source(self, split):
        with torch.random.fork_rng():
            inputs = torch.randn(self.rows, 64).numpy()
        return Hashed(inputs, np.arange(self.rows) % 10)


class Noise(Hashed):
    """A subclass whose base promises what it does not keep."""


class Changing(Plain):
    def source(self, split):
        found = super().source(split)
        return Noise(found.inputs, found.target)


class Marking(Plain):
    """Leaves something behind in its class."""

    mark = 40

    def source(self, split):
        Marking.mark = self.rows
        return super().source(split)


class Exporting(Plain):
    """Leaves something behind in the process."""

    def source(self, split):
        os.environ["MANYFIT_TEST_ROWS"] = str(self.rows)
        return super().source(split)
'''


@pytest.fixture
def data(project, monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # whose random state cannot be asked for
    project.write("src/counted.py", COUNTED)

    def config(cls="Plain", **changes):
        tree = project.changed(
            data={"class": f"counted.{cls}", "batch_size": 16, "allow_overlap": True}, **changes
        )
        return load_config(project.config(tree).parent)

    config()
    import counted

    counted.BUILT.clear()
    config.built = counted.BUILT
    return config


def test_the_same_data_is_built_and_hashed_once(data):
    shared = SharedData()
    first, second = (build(data(model__hidden=h), shared=shared) for h in (4, 8))
    assert first.train is second.train
    assert first.fingerprints() == second.fingerprints() == build(data()).fingerprints()
    assert data.built == [
        "build",
        "hash",
        "hash",
        "hash",
        "build",
        "hash",
        "hash",
        "hash",
    ]  # once shared, once not


def test_a_part_is_not_hashed_again(data):
    shared, limit = SharedData(), {"train__limit": {"train": 1}}
    tree = data(**limit)
    first, second = (build(tree, shared=shared).fingerprints() for _ in range(2))
    assert first == second == build(tree).fingerprints()
    assert data.built.count("hash") == 6


def test_other_data_is_other_data(data):
    shared = SharedData()
    ones = [build(data(data__rows=rows), shared=shared) for rows in (40, 24, 40)]
    assert [len(one.train) for one in ones] == [40, 24, 40]
    assert data.built.count("build") == 2
    for rows in range(1, MOST + 2):
        build(data(data__rows=50 + rows), shared=shared)
    assert data.built.count("build") == 2 + MOST + 1
    build(data(data__rows=40), shared=shared)
    assert data.built.count("build") == 2 + MOST + 2, "what was not asked for lately is forgotten"


@pytest.mark.parametrize(
    ("cls", "builds", "copies"), [("Plain", 2, 1), ("Drawing", 2, 2), ("Forked", 2, 2), ("Changing", 3, 3)]
)
def test_data_is_that_of_its_seed_and_equal_data_is_kept_once(data, cls, builds, copies):
    shared = SharedData()
    found = [build(data(cls, seed=seed), shared=shared) for seed in (1, 2, 1)]
    assert data.built.count("build") == builds
    assert len({id(one.train) for one in found}) == copies
    for one, seed in zip(found, (1, 2, 1), strict=True):
        assert one.fingerprints() == build(data(cls, seed=seed)).fingerprints()


@pytest.mark.parametrize(("cls", "builds"), [("Plain", SEEDS), ("Forked", 6), ("Drawing", 6)])
def test_data_that_was_the_same_for_three_seeds_is_shared_with_others(data, cls, builds):
    shared = SharedData()
    found = [build(data(cls, seed=seed), shared=shared).fingerprints() for seed in range(6)]
    assert data.built.count("build") == builds
    for seed, each in enumerate(found):
        assert each == build(data(cls, seed=seed)).fingerprints()


@pytest.mark.parametrize("cls", ["Marking", "Exporting"])
def test_data_that_leaves_something_behind_is_not_shared(data, cls, monkeypatch):
    """Also not what was built before that was seen: whoever asks for it again finds the state of another."""
    import counted

    monkeypatch.setenv("MANYFIT_TEST_ROWS", "40")
    shared = SharedData()
    for rows in (40, 24, 40, 24):
        build(data(cls, data__rows=rows), shared=shared)
        left = counted.Marking.mark if cls == "Marking" else int(os.environ["MANYFIT_TEST_ROWS"])
        assert left == rows
    monkeypatch.setattr(counted.Marking, "mark", 40)


def test_a_study_builds_its_data_once(project, data):
    project.write(
        "studies/s/study.yaml",
        """
        base: ../../runs/a/config.yaml
        objective: {metric: val_loss, mode: min}
        search: {method: grid, seeds: 2}
        space: {model.hidden: [4, 8, 12]}
        execute: {on: inline, evaluate: all}
        """,
    )
    found = manyfit.sweep("studies/s", progress=False)
    assert {point.state for point in found.points} == {"finished"}
    assert data.built.count("build") == 2, "once for each seed"
    assert data.built.count("hash") == 6


@pytest.mark.parametrize("cls", ["Plain", "Drawing", "Forked", "Changing"])
def test_a_study_finds_the_same_with_and_without_sharing(project, data, monkeypatch, cls):
    data(cls)
    text = """
        base: ../../runs/a/config.yaml
        objective: {metric: val_loss, mode: min}
        search: {method: grid, seeds: 3, stop: halving}
        space: {model.hidden: [4, 8], data.batch_size: [16, 20]}
        execute: {on: inline}
        """
    for name in ("one", "two"):
        project.write(f"studies/{name}/study.yaml", text)
    shared = manyfit.sweep("studies/one", progress=False)
    monkeypatch.setattr(SharedData, "get", lambda self, config: None)
    own = manyfit.sweep("studies/two", progress=False)
    assert [(p.state, p.value) for p in shared.points] == [(p.state, p.value) for p in own.points]


def test_a_run_of_its_own_reads_its_data_again(project, data):
    for hidden in (4, 8):
        data(model__hidden=hidden)
        manyfit.train(project.run, folder=project.root / "runs" / str(hidden), callbacks=[])
    assert data.built.count("build") == 2
