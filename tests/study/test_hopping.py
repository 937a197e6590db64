"""Trials that hop over shards end as if one process had visited the shards in the same order."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

import numpy as np
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


RATES = {"train.optimizer.lr": [0.001, 0.01, 0.1]}


def train_alone(lab, trial, *changes):
    """Train the config of a trial as a single run."""
    folder = lab.folder / "trials" / trial
    text = (folder / "config.yaml").read_text()
    lab.project.write(f"runs/{trial}/config.yaml", text)
    manyfit.train(lab.root / "runs" / trial, changes, callbacks=[])
    return lab.root / "runs" / trial


def read_visits(lab, trial):
    """The shards that each epoch of a trial has visited, as its last checkpoint knows them."""
    position = RunFolder(lab.folder / "trials" / trial).checkpoints()[-1].note.position
    return position.get("visits", [])


@pytest.mark.parametrize(
    ("on", "workers", "shards"),
    [("inline", 1, 3), pytest.param("processes", 2, 2, marks=pytest.mark.soak), ("processes", 3, 7)],
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


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.soak), 3])
def test_the_free_order_is_recorded_and_can_be_replayed(hopping, workers):
    lab = hopping(4, on="processes", workers=workers, order="free")
    lab.sweep()
    orders = []
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        visits = read_visits(lab, trial)
        recorded = lab.rows(
            "select until, visit, shard from units join unit_trials on unit=number "
            f"where trial='{trial}' and purpose='train' order by number"
        )
        for epoch, path in enumerate(visits):
            assert sorted(path) in ([], [0, 1, 2, 3])  # empty if it is cyclic
            found = [shard for e, _, shard in recorded if e == epoch]
            assert found == path or (not path and found == [(found[0] + i) % 4 for i in range(4)])
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial, f"data.visits={visits}"))
        orders.append(visits)
    assert any(orders)


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


@pytest.mark.soak
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


@pytest.mark.soak
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


@pytest.mark.parametrize("on", ["inline", "processes"])
def test_a_mistake_in_the_base_config_is_shown_where_it_was_written(hopping, cli, on):
    lab = hopping(500, on=on)
    swept = cli("sweep", lab.folder)
    assert swept.code == 2
    assert re.search(r"runs/a/config.yaml:\d+: data.shards: ", swept.err), swept.err
    assert swept.err.count("rows cannot be divided into 500 shards") == 1
    assert "(with {'train.optimizer.lr': " in swept.err
    assert swept.err.endswith("and 2 others)\n")


def test_a_dry_run_says_who_has_which_shard(hopping, cli):
    lab = hopping(3, on="processes", workers=2)
    out = cli("sweep", lab.folder, "--dry-run").out
    assert "3 shards, in cyclic order: worker 0 has 0, 2; worker 1 has 1" in out
    checked = cli("check", lab.folder)
    assert checked.code == 0
    assert "ok     hopping: 3 shards" in checked.out


POPULATION = (Path(__file__).parents[2] / "examples" / "10_population" / "src" / "population.py").read_text()


@pytest.mark.soak
def test_copies_of_models_are_those_without_hops(hopping):
    """A callback stops, adds and copies models; the copied states are written to disk first."""
    lab = hopping(3)
    lab.project.write("src/population.py", POPULATION)
    stop = {"class": "population.Population", "key": "train.optimizer.lr", "every": 1, "share": 0.5}
    tables = []
    for execute in ({"on": "inline"}, {"hop": True, "on": "processes", "workers": 2}):
        lab.write(
            execute=execute, search={"method": "grid", "stop": stop}, set={"train.epochs": 3},
            space={"train.optimizer.lr": [0.001, 0.003, 0.01, 0.03]},
        )  # fmt: skip
        lab.sweep()
        tables.append(lab.table())
        lab.clear()
    assert tables[0] == tables[1]
    assert len(tables[0]) > 4


def kill_worker_code(visit):
    return f"""
import os
from pathlib import Path
from torch import nn

COUNT = Path(__file__).with_name("count")


class Dies(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        if self.training:
            with COUNT.open("ab", buffering=0) as file:
                file.write(b"x")
                number = file.tell()  # of this process, although others write as well
            if number == {visit}:
                os.kill(os.getpid(), 9)
        return self.layers(x)
"""


@pytest.mark.parametrize("order", [pytest.param("cyclic", marks=pytest.mark.soak), "free"])
def test_the_newest_checkpoints_are_damaged_in_the_middle_of_an_epoch(hopping, cli, order):
    """A trial goes on from an older state; each epoch still visits each shard once."""
    lab = hopping(4, on="inline", order=order)
    lab.write(execute={"hop": True, "on": "inline", "order": order}, search__seeds=1, space=RATES)
    lab.sweep()
    expected = {p.name: trained(p)[1] for p in (lab.folder / "trials").iterdir()}
    lab.clear()
    stopped = cli("sweep", lab.folder, "search.steps=18")
    assert stopped.code == 0, stopped.err
    damaged = 0
    for trial in (lab.folder / "trials").iterdir():
        kept = RunFolder(trial).checkpoints()
        if len(kept) > 1:
            next(kept[-1].path.glob("*.safetensors")).write_bytes(b"nothing")
            damaged += 1
    assert damaged
    lab.sweep()
    for trial in sorted((lab.folder / "trials").iterdir()):
        steps = [step for step, _, _ in trained(trial)[1]]
        assert steps == sorted(set(steps))
        if order == "cyclic":
            assert trained(trial)[1] == expected[trial.name]
        else:
            visits = read_visits(lab, trial.name)
            assert all(sorted(path) in ([], [0, 1, 2, 3]) for path in visits)
            assert_same(trial, train_alone(lab, trial.name, f"data.visits={visits}"))


@pytest.mark.soak
def test_a_hopping_study_goes_on_without_hops_in_the_middle_of_an_epoch(hopping):
    lab = hopping(4, on="inline", order="free")
    lab.sweep("search.steps=30")
    unfinished = [row for row in lab.rows("select id, step, epoch from trials") if row[2] % 1]
    assert unfinished
    lab.write(execute={"on": "inline"}, search__seeds=1)
    lab.sweep()
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        visits = read_visits(lab, trial)
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial, f"data.visits={visits}"))


@pytest.mark.soak
def test_other_seeds_and_more_epochs_do_not_move_the_first_shard(hopping):
    lab = hopping(3)
    lab.write(execute={"hop": True}, search={"method": "grid", "seeds": [3, 8]}, space=RATES)
    lab.sweep()
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=4, model__dropout=0.2))
    lab.write(execute={"hop": True}, search={"method": "grid", "seeds": [5, 8, 3]}, space=RATES)
    assert not lab.sweep().failures
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir())[:3]:
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial))


def test_a_worker_dies_in_a_visit(hopping):
    lab = hopping(3, on="processes", workers=2)
    lab.project.write("src/dies.py", kill_worker_code(visit=31))
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=2, model={"class": "dies.Dies"}))
    lab.write(search__seeds=1, execute={"hop": True, "on": "processes", "workers": 2})
    assert not lab.sweep().failures
    outcomes = [row[0] for row in lab.rows("select outcome from unit_trials")]
    assert outcomes.count("infrastructure") == 1
    assert not list(lab.folder.glob("trials/*/failure.json"))
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir())[:2]:
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial))


@pytest.mark.soak
def test_a_full_disk_fails_a_trial_and_loses_nothing(hopping, monkeypatch):
    from manyfit.store import checkpoint

    lab = hopping(3)
    lab.sweep()
    expected = lab.table()
    lab.clear()
    write, written = checkpoint.save_checkpoint, []

    def fail(*args, **kwargs):
        written.append(1)
        if len(written) in (9, 10, 11, 12):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save_checkpoint", fail)
    lab.sweep()
    assert len(written) > 12
    monkeypatch.undo()
    monkeypatch.chdir(lab.root)
    lab.sweep(retry=["failed"])
    assert lab.table() == expected
    for (trial,) in lab.rows("select id from trials"):
        steps = [row["step"] for row in lab.log(trial)]
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("drop", [pytest.param(False, marks=pytest.mark.soak), True])
def test_records_of_files_are_visited_in_ranges(lab, drop):
    """A feeder has a batch size of its own, and may drop incomplete batches of a visit."""
    pytest.importorskip("google_crc32c")
    from manyfit.data.tfrecord.convert import table_of, write_shards

    state = np.random.RandomState(0)
    for split, rows in (("train", 70), ("validation", 30)):
        np.savez(
            lab.root / f"{split}.npz", x=state.normal(size=(rows, 8)).astype("f4"), y=np.arange(rows) % 3
        )
        table = table_of(lab.root / f"{split}.npz", None, None, None, None, lab.root / "records", None, None)
        list(write_shards(table, lab.root / "records", split, 2, "", 1, False))
    feeder = {
        "class": "manyfit.feeders.TFRecordExamplesFeeder", "batch_size": 8, "drop_remainder": drop,
        "features_map": {"x": {"class": "manyfit.feeders.FixedLenFeature", "shape": [8], "dtype": "float32"}},
        "labels_map": {"y": {"class": "manyfit.feeders.FixedLenFeature", "shape": [], "dtype": "int64"}},
    }  # fmt: skip
    tree = lab.project.changed(train__epochs=2)
    tree["data"] = {
        "class": "manyfit.feeders.Feeders", "shards": 3,
        "train": {**feeder, "file_patterns": "records/train-*"},
        "validation": {**feeder, "file_patterns": "records/validation-*"},
    }  # fmt: skip
    tree["model"] = {"class": "torch.nn.Linear", "in_features": 8, "out_features": 3}
    lab.project.config(tree)
    lab.write(
        search__seeds=1, space={"train.optimizer.lr": [0.01, 0.1]},
        execute={"hop": True, "on": "processes", "workers": 2},
    )  # fmt: skip
    assert not lab.sweep().failures
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial))


@pytest.mark.soak
def test_more_trials_than_open_files_hop(hopping, monkeypatch):
    monkeypatch.setattr("manyfit.study.drive.keepers.count_open_runs", lambda: 4)
    lab = hopping(3)
    lab.write(
        execute={"hop": True, "order": "free"}, search__seeds=1,
        space={"train.optimizer.lr": [0.001 * i for i in range(1, 9)]},
    )  # fmt: skip
    assert not lab.sweep().failures
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir())[:2]:
        visits = read_visits(lab, trial)
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial, f"data.visits={visits}"))


def test_values_of_stopped_points_survive_states_that_were_not_on_disk(hopping):
    lab = hopping(3)
    lab.write(execute={"hop": True}, search={"method": "grid", "stop": "halving"}, set={"train.epochs": 3})
    lab.sweep()
    expected = lab.table()
    query = "select trials.id from trials join points on number=point where points.state='stopped'"
    ((stopped,), *_) = lab.rows(query)
    shutil.rmtree(RunFolder(lab.folder / "trials" / stopped).checkpoints()[-1].path)
    lab.sweep()
    assert lab.table() == expected


@pytest.mark.soak
def test_a_lost_ledger_is_rebuilt_from_trials_that_keep_their_first_shard(hopping):
    lab = hopping(3)
    for rates in ([0.001, 0.01], [0.0001, 0.001, 0.01]):
        lab.write(execute={"hop": True}, search__seeds=1, space={"train.optimizer.lr": rates})
        lab.sweep()
    for file in lab.folder.glob("ledger.db*"):
        file.unlink()
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=4, model__dropout=0.2))
    assert not lab.sweep().failures
    for trial in sorted(p.name for p in (lab.folder / "trials").iterdir()):
        assert_same(lab.folder / "trials" / trial, train_alone(lab, trial))


def test_parts_of_a_sharded_study_can_be_trained_elsewhere(hopping, cli):
    lab = hopping(3)
    lab.write(search__seeds=1, space={"train.optimizer.lr": [0.001, 0.01, 0.1]})
    for number in (1, 0):
        assert cli("study", "share", lab.folder, number, 2).code == 0
    assert not lab.sweep().failures


def test_batches_that_are_split_for_lack_of_memory_are_recorded(hopping):
    lab = hopping(3)
    lab.project.write(
        "src/rare.py",
        RARE.replace('raise ValueError("fails here")', 'raise __import__("torch").OutOfMemoryError("no")'),
    )
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=2, model={"class": "rare.Rare"}))
    lab.write(space={"model.fails_at": [7]}, search__seeds=1, execute={"hop": True})
    lab.sweep()
    (trial,) = (lab.folder / "trials").iterdir()
    assert "accumulate: 2" in (trial / "config.resolved.yaml").read_text()
