"""Trials that hop over shards end as if one process had visited the shards in the same order."""

from __future__ import annotations

import pytest
import torch

import manyfit
from manyfit.store.folder import RunFolder


def trained(path):
    run = RunFolder(path)
    return run.checkpoints()[-1].load(), [(e.step, e.epoch, dict(e.values)) for e in run.events()]


def assert_same(one, other):
    (state, events), (state_, events_) = trained(one), trained(other)
    assert events == events_
    assert state.tensors.keys() == state_.tensors.keys()
    assert all(torch.equal(tensor, state_.tensors[name]) for name, tensor in state.tensors.items())
    assert state.values == state_.values


@pytest.fixture
def hopping(lab):
    """A study that hops over the shards of its data."""

    def write(shards=3, **execute):
        tree = lab.project.changed(data__shards=shards, train__epochs=3, model__dropout=0.2)
        lab.project.config(tree)
        lab.write(execute={"hop": True, "on": "inline", **execute}, search__seeds=1)
        return lab

    return write


def train_alone(lab, trial):
    """Train the config of a trial as a single run."""
    folder = lab.folder / "trials" / trial
    text = (folder / "config.yaml").read_text()
    lab.project.write(f"runs/{trial}/config.yaml", text)
    manyfit.train(lab.root / "runs" / trial, callbacks=[])
    return lab.root / "runs" / trial


@pytest.mark.parametrize(
    ("on", "workers", "shards"), [("inline", 1, 3), ("processes", 2, 2), ("processes", 3, 7)]
)
def test_hopping_is_the_same_as_one_process(hopping, on, workers, shards):
    lab = hopping(shards, on=on, workers=workers)
    study = lab.sweep()
    assert study.best is not None
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial))
    units = lab.rows(
        "select shard, place, steps from units join unit_trials on unit=number where purpose='train'"
    )
    assert len(units) == 6 * 3 * shards
    assert {shard for shard, _, _ in units} == set(range(shards))
