"""Trials that hop over shards end as if one process had visited the shards in the same order."""

from __future__ import annotations

import re

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


def train_alone(lab, trial, *changes):
    """Train the config of a trial as a single run."""
    folder = lab.folder / "trials" / trial
    text = (folder / "config.yaml").read_text()
    lab.project.write(f"runs/{trial}/config.yaml", text)
    manyfit.train(lab.root / "runs" / trial, changes, callbacks=[])
    return lab.root / "runs" / trial


def read_visits(lab, trial):
    """The shards that each epoch of a trial has visited, as its last checkpoint knows them."""
    return RunFolder(lab.folder / "trials" / trial).checkpoints()[-1].note.position["visits"]


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


@pytest.mark.parametrize("workers", [2, 3])
def test_the_free_order_is_recorded_and_can_be_replayed(hopping, workers):
    lab = hopping(4, on="processes", workers=workers, order="free")
    lab.sweep()
    orders = []
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        visits = read_visits(lab, trial)
        assert [sorted(shards) for shards in visits] == [[0, 1, 2, 3]] * 3
        recorded = lab.rows(
            "select until, visit, shard from units join unit_trials on unit=number "
            f"where trial='{trial}' and purpose='train' order by number"
        )
        assert recorded == [(e, v + 1, s) for e, path in enumerate(visits) for v, s in enumerate(path)]
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial, f"data.visits={visits}"))
        orders.append(visits)
    assert any(visits != orders[0] for visits in orders)


def test_a_trial_that_fails_does_not_end_the_others(hopping):
    lab = hopping(3, on="processes", workers=2)
    lab.project.write("src/rare.py", RARE)
    tree = lab.project.changed(data__shards=3, train__epochs=2, model={"class": "rare.Rare"})
    lab.project.config(tree)
    lab.write(space={"model.fails_at": [0, 7, 9]}, search__seeds=1, execute={"hop": True, "workers": 2})
    lab.sweep()
    states = dict(lab.rows('select "values", trials.state from trials join points on points.number=point'))
    assert states == {
        '{"model.fails_at": 0}': "finished",
        '{"model.fails_at": 7}': "failed",
        '{"model.fails_at": 9}': "failed",
    }
    (failed,) = lab.rows("select id, step from trials where failure like '%7%' and state='failed' limit 1")
    run = RunFolder(lab.folder / "trials" / failed[0])
    assert "fails here" in run.failure_file.read_text()
    assert run.checkpoints()[-1].step == failed[1] > 0


RARE = """
from torch import nn


class Rare(nn.Module):
    def __init__(self, fails_at: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.fails_at = fails_at
        self.register_buffer("count", __import__("torch").zeros((), dtype=int))

    def forward(self, x):
        if self.training:
            self.count += 1
            if self.count == self.fails_at:
                raise ValueError("fails here")
        return self.layer(x)
"""


def test_stoppers_and_early_stopping_decide_as_without_hops(hopping):
    lab = hopping(3, on="processes", workers=2)
    tree = lab.project.changed(data__shards=3, train__epochs=6)
    tree["train"]["stop"] = {"metric": "val_loss", "patience": "2ep", "min_delta": 0.05}
    lab.project.config(tree)
    tables = []
    for hop in (False, True):
        lab.write(search={"method": "grid", "stop": "halving"}, execute={"hop": hop, "workers": 2})
        lab.sweep()
        tables.append(lab.table())
        lab.clear()
    assert tables[0] == tables[1]
    assert any(row[9] == "stopped" for row in tables[0])


def test_a_folder_that_cannot_be_used_is_one_failed_trial(hopping):
    lab = hopping(3)
    lab.sweep()
    trial = lab.rows("select id from trials")[0][0]
    for path in (lab.folder / "trials" / trial / "checkpoints").rglob("*.safetensors"):
        path.write_bytes(b"nothing")
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=4, model__dropout=0.2))
    lab.sweep()
    states = dict(lab.rows("select id, state from trials"))
    assert states.pop(trial) == "failed"
    assert set(states.values()) == {"finished"}


EPOCHS = """
from manyfit.trainers import Trainer


class Whole(Trainer):
    def train_epoch(self):
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            self.loss(self.model(batch[0]), batch[1]).backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data__shards": None}, "the training rows are not divided into shards"),
        ({"model": {"class": "torch.nn.Linear", "in_features": 3, "out_features": 10}}, "mat1 and mat2"),
        ({"trainer": {"class": "epochs.Whole"}}, "the model trains 6 steps at once"),
        ({"data__visits": [[1, 0, 2]]}, "the order of visits is fixed"),
    ],
)
def test_mistakes_of_a_hopping_study_are_found_before_the_first_step(hopping, cli, change, message):
    lab = hopping(3)
    lab.project.write("src/epochs.py", EPOCHS)
    tree = lab.project.changed(data__shards=3, train__epochs=2)
    for key, value in change.items():
        *parents, last = key.split("__")
        place = tree
        for parent in parents:
            place = place[parent]
        place.pop(last, None) if value is None else place.update({last: value})
    lab.project.config(tree)
    lab.write(search__seeds=1, execute={"hop": True}, space={"train.optimizer.lr": [0.001, 0.01]})
    checked = cli("check", lab.folder)
    assert checked.code in (1, 2)
    assert re.search(message, checked.out + checked.err), checked.out + checked.err
    swept = cli("sweep", lab.folder)
    assert swept.code in (1, 2)
    assert "Traceback" not in swept.err
    assert not list(lab.folder.glob("trials/*/checkpoints/*"))


def test_a_dry_run_says_who_has_which_shard(hopping, cli):
    lab = hopping(3, on="processes", workers=2)
    out = cli("sweep", lab.folder, "--dry-run").out
    assert "3 shards, in cyclic order: worker 0 has 0, 2; worker 1 has 1" in out
    checked = cli("check", lab.folder)
    assert checked.code == 0
    assert "ok     hopping: 3 shards" in checked.out
