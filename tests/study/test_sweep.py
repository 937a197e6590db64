"""A study from its file to its leaderboard: the same result however it is executed, cut short or extended."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.examples import quick
from tests.study.points import points

import manyfit
from manyfit.core.errors import ConfigError, FolderError, ManyfitError, RunConflict, UsageError
from manyfit.study.drive.driver import StudyStopped
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.ledger.reader import read_only
from manyfit.study.mirrors import mirror
from manyfit.study.result import read_study
from manyfit.study.status import status

RANDOM = {
    "search": {"method": "random", "trials": 5, "seeds": 1, "seed": 4},
    "space": {"train.optimizer.lr": {"log": [1e-4, 1e-1]}, "model.hidden": {"int": [2, 9]}},
}
HALVING = {
    "search": {"method": "grid", "seeds": 2, "stop": {"class": "halving", "factor": 2}},
    "set": {"train.epochs": 4},
}


@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.soak), pytest.param(RANDOM, marks=pytest.mark.soak), HALVING],
    ids=["grid", "random", "halving"],
)
def test_the_result_does_not_depend_on_the_executor(lab, changes):
    lab.write(**changes)
    lab.sweep()
    expected = lab.table()
    assert len(expected) in (5, 12)
    files = {
        path.relative_to(lab.folder): path.read_bytes()
        for pattern in ("checkpoints/*/*.safetensors", "config.yaml", "config.resolved.yaml")
        for path in lab.folder.glob(f"trials/*/{pattern}")
    }
    assert len(files) >= 3 * len(expected)
    for workers in (1, 2, 4):
        lab.clear()
        lab.sweep("execute.on=processes", f"execute.workers={workers}")
        assert lab.table() == expected, f"{workers} workers"
        for path, data in files.items():
            assert (lab.folder / path).read_bytes() == data


DICE = """
import random

import numpy as np
import optuna
import torch
from manyfit.study.search.decisions import Go, Stop


def thrown():
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


class Dice(optuna.samplers.BaseSampler):
    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        low, high = distribution.low, distribution.high
        return type(low)(low + (high - low) * thrown() / 3)


class Lottery:
    def pauses(self, epochs):
        return [1]

    def decide(self, board):
        waiting = [point for point in board.points if point.state == "waiting"]
        return [Stop(p.number, "unlucky") if thrown() < 1.4 else Go(p.number, None) for p in waiting]
"""


@pytest.mark.soak
def test_what_samplers_and_stoppers_draw_at_random_follows_from_the_seed_of_the_study(lab):
    lab.project.write("src/dice.py", DICE)
    lab.write(
        search={"method": "dice.Dice", "trials": 6, "seeds": 1, "stop": "dice.Lottery"},
        space=RANDOM["space"],
        set={"train.epochs": 2},
    )
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    lab.sweep()
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    expected = lab.table()
    assert len({row[11] for row in expected}) == 6  # values
    assert {row[9] for row in expected} == {"finished", "stopped"}
    lab.clear()
    lab.sweep("execute.on=processes", "execute.workers=1")
    assert lab.table() == expected
    lab.clear()
    lab.sweep("search.trials=3")
    lab.sweep()
    assert lab.table() == expected
    lab.clear()
    lab.sweep("search.seed=1")
    assert lab.table() != expected


@pytest.mark.parametrize(
    "stop", ["asha", *(pytest.param(name, marks=pytest.mark.soak) for name in ("median", "patience"))]
)
def test_a_search_that_learns_is_the_same_with_one_worker(lab, stop):
    lab.write(
        search={"method": "tpe", "trials": 5, "seeds": 1, "stop": stop},
        space=RANDOM["space"],
        set={"train.epochs": 3},
    )
    lab.sweep()
    expected = lab.table()
    lab.clear()
    lab.sweep("execute.on=processes", "execute.workers=1")
    assert lab.table() == expected


def test_a_trial_is_an_ordinary_run(lab, cli):
    found = lab.sweep()
    trial = found.best.folders[3]
    assert cli("show", trial).code == 0
    assert "finished" in cli("list", lab.folder / "trials").out
    assert cli("evaluate", trial).code == 0
    assert cli("train", trial).code == 0  # finished: nothing is trained
    alone = manyfit.train(
        lab.root / "runs/a",
        {"train.optimizer.lr": 0.1, "model.hidden": 8, "train.threads": 1},
        folder="runs/alone",
        callbacks=[],
    )
    same = next(p for p in found.points if p.values == {"train.optimizer.lr": 0.1, "model.hidden": 8})
    assert alone.metrics["val_loss"] == same.trials[3]


def test_the_best_is_exported_and_evaluated(lab, cli):
    found = lab.sweep()
    best = lab.folder / "best"
    assert json.loads((best / "best.json").read_text())["values"] == dict(found.best.values)
    assert (best / "reports" / "test.csv").exists() and (best / "exported" / "model.safetensors").exists()
    assert found.load_model() is not None
    assert manyfit.load_model(best / "exported") is not None
    assert cli("evaluate", best).code == 0
    assert "finished" in cli("list", lab.folder).out
    others = [p for p in (lab.folder / "trials").iterdir() if (p / "reports" / "test.csv").exists()]
    assert len(others) == 1  # only the chosen one


def test_all_trials_are_evaluated_if_that_is_asked_for(lab):
    lab.write(search__seeds=1)
    lab.sweep("execute.evaluate=all")
    assert all((p / "reports" / "test.csv").exists() for p in (lab.folder / "trials").iterdir())


def test_the_same_command_does_nothing_twice(lab):
    lab.sweep()
    before, steps = lab.table(), lab.steps()
    stamp = (lab.folder / "best" / "best.json").stat().st_mtime_ns
    lab.sweep()
    assert (lab.table(), lab.steps()) == (before, steps)
    assert (lab.folder / "best" / "best.json").stat().st_mtime_ns == stamp


def test_an_extension_trains_exactly_what_is_missing(lab):
    """Three values and 4 epochs become five and 8; then seeds; then the whole is as if it had been so at once."""
    lab.write(space={"train.optimizer.lr": [0.001, 0.01, 0.1]}, set={"train.epochs": 4}, search__seeds=1)
    lab.sweep()
    per_epoch = lab.rows("select step / epoch from trials limit 1")[0][0]
    assert lab.steps() == 3 * 4 * per_epoch
    lab.write(
        space={"train.optimizer.lr": [0.001, 0.003, 0.01, 0.03, 0.1]},
        set={"train.epochs": 8},
        search__seeds=1,
    )
    lab.sweep()
    assert lab.steps() == 5 * 8 * per_epoch  # nothing was trained twice
    lab.write(
        space={"train.optimizer.lr": [0.001, 0.003, 0.01, 0.03, 0.1]},
        set={"train.epochs": 8},
        search__seeds=2,
    )
    lab.sweep()
    assert lab.steps() == 10 * 8 * per_epoch
    extended = {row[0]: row[6:8] for row in lab.table()}
    lab.clear()
    lab.sweep()
    assert {row[0]: row[6:8] for row in lab.table()} == extended


def test_more_trials_of_a_random_search_keep_the_first_ones(lab):
    lab.write(**RANDOM)
    lab.sweep()
    first = lab.rows("select id, value from trials order by point")
    lab.sweep("search.trials=8")
    assert lab.rows("select id, value from trials order by point")[:5] == first
    assert len(lab.rows()) == 8


def test_a_value_that_is_removed_does_not_count_and_comes_back(lab):
    lab.sweep()
    lab.write(space={"train.optimizer.lr": [0.1], "model.hidden": [4, 8]})
    assert len(lab.sweep().points) == 2
    steps = lab.steps()
    lab.write()
    assert len(lab.sweep().points) == 6
    assert lab.steps() == steps


def test_a_changed_base_is_refused_and_nothing_is_lost(lab):
    lab.sweep()
    before = lab.table()
    lab.project.config(lab.project.changed(data__batch_size=8))
    with pytest.raises(RunConflict, match=r"data.batch_size: 16 → 8"):
        lab.sweep()
    assert lab.table() == before
    assert len(lab.sweep(allow_change=["base"]).points) == 6  # new ones, beside the old ones
    assert len(lab.rows()) == 24


@pytest.mark.parametrize(("key", "value", "other"), [
    ("freeze", [{"match": "^layers.1", "epochs": 1}], [{"match": "^layers.1", "epochs": 2}]),
    ("groups", [{"match": "bias$", "options": {"weight_decay": 0.0}}], []),
    ("scheduler", {"class": "sequential", "schedulers": [{"class": "constant", "total_iters": 2}, {"class": "constant"}],
                   "milestones": [4]}, None),
], ids=["freeze", "groups", "scheduler"])  # fmt: skip
def test_a_base_with_lists_of_mappings_resumes(lab, key, value, other):
    lab.project.config(lab.project.changed(**{f"train__{key}": value}))
    lab.sweep()
    before = lab.table()
    assert before
    lab.sweep()
    assert lab.table() == before
    lab.project.config(lab.project.changed(**{f"train__{key}": other}))
    with pytest.raises(RunConflict, match=f"train.{key}"):
        lab.sweep()


def test_two_drivers_have_one_owner(lab):
    code = "import sys, time; from manyfit.store.lock import hold_lock; from pathlib import Path\nwith hold_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lab.folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunConflict, match="in use by another process"):
            lab.sweep()
    finally:
        holder.kill()
        holder.wait()
    assert not (lab.folder / "trials").exists()


@pytest.mark.soak
def test_clocks_and_file_times_change_nothing(lab, monkeypatch):
    lab.write(**HALVING)
    lab.sweep()
    expected = lab.table()
    lab.clear()
    lab.sweep("search.stop=null", "set={train.epochs: 1}")
    past = iter(range(10**9, 0, -997))
    monkeypatch.setattr(time, "time", lambda: float(next(past)))
    monkeypatch.setattr(time, "time_ns", lambda: next(past) * 10**9)
    for i, path in enumerate(sorted(lab.folder.rglob("*"))):
        import os

        os.utime(path, (i * 7919 % 1000, i * 104729 % 10**6))
    lab.write(**HALVING)
    lab.sweep()
    assert lab.table() == expected


def test_budgets(lab):
    lab.write(search={"method": "grid", "seeds": 1, "steps": 20})
    found = lab.sweep()
    assert 20 <= lab.rows("select sum(step) from trials")[0][0] < 40
    assert found.unfinished
    lab.write(search={"method": "grid", "seeds": 1, "time": "0.001s"})
    assert lab.sweep().unfinished == found.unfinished
    lab.write(search={"method": "grid", "seeds": 1})
    assert lab.sweep().unfinished == 0


def test_only_some_points(lab):
    found = lab.sweep(only=["1", "4"])
    assert {p.number for p in found.points if p.state == "finished"} == {1, 4}
    with pytest.raises(UsageError, match="not a point of this study"):
        lab.sweep(only=["77"])
    assert all(p.state == "finished" for p in lab.sweep().points)


def test_disk_is_kept_for_the_best_only(lab):
    found = lab.sweep("execute.keep=1")
    kept = [p.name for p in (lab.folder / "trials").iterdir() if (p / "checkpoints").is_dir()]
    assert sorted(kept) == sorted(path.name for path in found.best.folders.values())
    assert all((p / "metrics.jsonl").exists() for p in (lab.folder / "trials").iterdir())
    before = lab.steps()
    lab.sweep("execute.keep=1")
    assert lab.steps() == before


def test_python_gets_a_typed_study(lab):
    found = lab.sweep()
    frame = found.trials
    assert len(frame) == 12 and set(frame["state"]) == {"finished"}
    assert found.best.value == pytest.approx(frame.groupby("point")["value"].mean().min())
    assert found.ranked[0] == found.best
    assert read_study(lab.folder).best == found.best
    made = manyfit.sweep(
        {
            "base": "runs/a/config.yaml",
            "objective": {"metric": "val_accuracy", "mode": "max"},
            "search": {"method": "grid"},
            "space": {"model.hidden": [2, 4]},
            "execute": {"on": "inline"},
        },
        folder="studies/made",
        progress=False,
    )
    assert made.best.value == max(p.value for p in made.points)
    assert manyfit.sweep("studies/made", progress=False).best == made.best


def test_status_before_during_and_after(lab, cli):
    said = cli("status", lab.folder)
    assert said.code == 2 and "was never started" in said.err
    lab.sweep(only=["0"])
    facts = json.loads(cli("status", lab.folder, "--json").out)
    assert facts["state"] == "unfinished" and facts["trials"] == {"finished": 2, "waiting": 10}
    lab.sweep()
    facts = json.loads(cli("status", lab.folder, "--json").out)
    assert facts["state"] == "finished" and len(facts["table"]) == 12 and len(facts["leaderboard"]) == 6
    for form, mark in {"md": "| rank |", "csv": "rank,point", "latex": "\\begin{tabular}"}.items():
        assert mark in cli("status", lab.folder, "--format", form).out


def test_exit_codes(lab, cli):
    assert cli("sweep", lab.folder).code == 0
    assert cli("sweep", lab.folder, "search.nope=1").code == 2
    assert cli("sweep", "studies/nope").code == 2


FAILS = """
import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, hidden: int = 8, wrong: str = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.wrong = wrong
        self.count = 0

    def forward(self, x):
        self.count += 1
        if self.count > 8:
            if self.wrong == "raises":
                raise ZeroDivisionError("as it was told")
            if self.wrong == "memory":
                raise MemoryError
            if self.wrong == "nan":
                return self.layers(x) * float("nan")
        return self.layers(x)
"""


@pytest.fixture
def failing(lab):
    lab.project.write("src/failing.py", FAILS)
    lab.project.config(lab.project.changed(model={"class": "failing.MLP"}, train__epochs=3))
    return lab


def test_a_mistake_in_the_first_trial_stops_the_study_and_is_tried_again(failing, cli):
    failing.write(space={"model.wrong": ["raises", ""]}, search__seeds=1)
    said = cli("sweep", failing.folder)
    assert said.code == 1
    assert (
        "the first trial failed" in said.err and "as it was told" in said.err and "Traceback" not in said.err
    )
    assert {row[0] for row in failing.rows("select state from trials")} == {"waiting"}
    failing.project.write(
        "src/failing.py", FAILS.replace('raise ZeroDivisionError("as it was told")', "pass")
    )
    done = quick.run(f"manyfit sweep {failing.folder} --allow-change code", failing.root)
    assert done.returncode == 0, done.stderr


def test_failures_are_typed_grouped_and_tried_again_on_demand(failing, cli):
    failing.write(
        space={"model.wrong": ["", "raises", "nan", "memory"], "model.hidden": [4, 8]}, search__seeds=1
    )
    said = cli("sweep", failing.folder)
    assert said.code == 1
    assert (
        "2 × user error, points 2, 3" in said.out
        and "2 × not a number" in said.out
        and "2 × out of memory" in said.out
    )
    facts = status(failing.folder)
    assert facts["trials"] == {"finished": 2, "failed": 4, "infeasible": 2}
    assert {f["kind"]: f["count"] for f in facts["failures"]} == {
        "user error": 2,
        "not a number": 2,
        "out of memory": 2,
    }
    decisions = [row[2:] for row in read_only(failing.folder / "ledger.db")[2]]
    assert any("half of each batch" in reason for _, reason in decisions)
    assert failing.sweep().failures == {
        "user error": 2,
        "not a number": 2,
        "out of memory": 2,
    }  # not by itself
    attempts = len(failing.rows("select unit from unit_trials"))
    failing.sweep(retry=["nan", "oom"])
    assert len(failing.rows("select unit from unit_trials")) == attempts + 2 + 2  # batches stay halved
    with pytest.raises(UsageError, match="no kind of failure 'ohm'"):
        failing.sweep(retry=["ohm"])


def test_fail_fast(failing):
    failing.write(space={"model.wrong": ["", "raises", "nan"]}, search__seeds=1)
    with pytest.raises(StudyStopped, match="a trial failed"):
        failing.sweep(fail_fast=True)
    assert {r[0] for r in failing.rows("select state from trials")} == {"finished", "failed", "waiting"}


def test_what_cannot_be_built_is_said_before_anything_is_trained(lab):
    lab.project.write(
        "src/odd.py",
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, hidden: int = 8):\n        super().__init__()\n        self.a = nn.Linear(64, hidden)\n        self.b = nn.Linear(8, 10)\n    def forward(self, x): return self.b(self.a(x.flatten(1)))\n",
    )
    lab.project.config(lab.project.changed(model={"class": "odd.Net"}))
    lab.write(space={"model.hidden": [8, 9, 10]})
    with pytest.raises(
        ManyfitError, match=r"(?s)2 of 3 structures cannot be trained; nothing was started:.*odd.py:7"
    ):
        lab.sweep()
    assert not (lab.folder / "trials").exists()


def test_a_mistake_in_a_late_trial_is_found_first(lab, cli):
    lab.write(
        space={"train.optimizer.lr": {"linear": [0.1, 1.0], "points": 50}, "model.hidden": [4, 8, "eight"]}
    )
    said = cli("sweep", lab.folder, "--dry-run")
    assert (
        said.code == 2
        and "studies/s/study.yaml" in said.err
        and "eight" in said.err
        and said.err.count("eight") < 4
    )
    assert not (lab.folder / "ledger.db").exists()


def test_a_dry_run_trains_nothing_and_says_what_it_costs(lab, cli):
    lab.write(space={"train.optimizer.lr": [0.1, 1e-1, 0.2], "model.hidden": [4, 8]}, search__seeds=3)
    said = cli("sweep", lab.folder, "--dry-run", "--json")
    facts = json.loads(said.out)
    assert (facts["points"], facts["trials"], facts["duplicates"], facts["structures"]) == (4, 12, 2, 3)
    assert facts["seconds"] > 0 and facts["bytes"] > 0
    assert sorted(path.name for path in lab.folder.iterdir()) == ["study.yaml"]


def test_a_damaged_ledger_is_rebuilt_from_the_run_folders(lab):
    lab.sweep()
    before, steps = {row[0]: row[6:8] for row in lab.table()}, lab.steps()
    (lab.folder / "ledger.db").write_bytes(b"garbage" * 100)
    with pytest.raises(FolderError, match="move it away"):
        lab.sweep()
    (lab.folder / "ledger.db").unlink()
    lab.sweep()
    assert {row[0]: row[6:8] for row in lab.table()} == before
    assert lab.steps() == 0 and steps > 0  # nothing was trained again


def test_a_folder_that_is_gone_is_trained_again(lab):
    import shutil

    found = lab.sweep()
    shutil.rmtree(found.best.folders[3])
    assert lab.sweep().best == found.best


def test_the_ledger_is_one_file_when_it_is_closed(lab):
    lab.sweep()
    assert [p.name for p in lab.folder.glob("ledger.db*")] == ["ledger.db"]


@pytest.mark.soak
def test_a_rollback_journal_gives_the_same(lab, monkeypatch):
    lab.sweep()
    expected = lab.table()
    lab.clear()
    monkeypatch.setattr("manyfit.study.ledger.ledger.is_on_network", lambda path: True)
    lab.sweep()
    assert lab.table() == expected


def test_links_do_not_lead_out_of_a_study(lab, tmp_path):
    (lab.folder / "trials").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="is a link"):
        lab.sweep()


def test_the_study_of_the_design_loads(lab):
    lab.project.write(
        "studies/lr/study.yaml",
        """
        base: ../../runs/a/config.yaml
        objective: {metric: val_loss, mode: min}
        search: {method: tpe, trials: 4, seeds: 2, stop: asha}
        space:
          train.optimizer.lr: {log: [1e-4, 1e-1]}
          model.hidden: [64, 128, 256]
          ablate: {model.dropout: 0.0, train.optimizer.weight_decay: 0.0}
        execute: {on: auto, fuse: off, hop: false}
        """,
    )
    assert len(manyfit.sweep(lab.root / "studies/lr", ["execute.on=inline"], progress=False).points) == 4


def test_export_to_optuna(lab, cli):
    optuna = pytest.importorskip("optuna")
    lab.sweep()
    url = f"sqlite:///{lab.root}/o.db"
    assert cli("study", "export", lab.folder, "--optuna", url, "--csv", "t.csv").code == 0
    study = optuna.load_study(study_name="s", storage=url)
    assert len(study.trials) == 6 and study.best_value == pytest.approx(lab.sweep().best.value)
    assert Path("t.csv").read_text().count("\n") == 13
    assert cli("study", "export", lab.folder, "--optuna", url).code == 2  # it is there already


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"base": "../../runs/nope/config.yaml"}, "no such config"),
        ({"base": None}, "a study needs a base config"),
        ({"space": None}, "a study needs a space"),
        ({"objective": {"metric": "val_los", "mode": "min"}}, "val_loss"),
        ({"objective": {"metric": "val_loss"}}, "mode"),
        ({"search": {"method": "random"}}, "requires the number of points"),
        ({"search": {"method": "gird"}}, "did you mean: grid"),
        ({"search": {"method": "grid", "seeds": [1, 1]}}, "distinct numbers"),
        ({"search": {"method": "grid", "stop": "ahsa"}}, "did you mean: asha"),
        ({"execute": {"order": "free"}}, "only trials that hop visit shards in some order"),
        ({"execute": {"hop": True}}, "the training rows are not divided into shards"),
        ({"execute": {"on": "procesess"}}, "no built-in executor named 'procesess'"),
        ({"execute": {"worker": 2}}, "did you mean: workers"),
        ({"serach": {}}, "did you mean: search"),
        ({"space": {"model.hiden": [1, 2]}}, "did you mean: hidden"),
        ({"space": {"seed": [1, 2]}}, "seeds are replicates"),
        ({"search": {"method": "grid", "stop": {"class": "halving", "factor": 1}}}, "factor at least 2"),
    ],
)
def test_mistakes_in_the_file(lab, cli, changes, says):
    lab.write(**changes)
    said = cli("sweep", lab.folder)
    assert said.code == 2 and says in said.err and "Traceback" not in said.err
    assert not (lab.folder / "trials").exists()


def test_the_base_must_belong_to_the_project(lab, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "runs" / "x").mkdir(parents=True)
    (other / "runs/x/config.yaml").write_text("{}")
    lab.write(base=str(other / "runs/x/config.yaml"))
    with pytest.raises(ConfigError, match="another project"):
        lab.sweep()


@pytest.mark.soak
def test_mirrors_of_a_study(lab, cli, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    lab.write(search__seeds=1, track={"tensorboard": True, "mlflow": "sqlite:///m.db"})
    found = lab.sweep()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{lab.root}/m.db")
    number = client.get_experiment_by_name("test").experiment_id
    runs = client.search_runs([number])
    parent = next(run for run in runs if run.data.tags.get("manyfit.study") == "s")
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    evaluated = [run for run in below if run.data.tags.get("manyfit.evaluates")]
    assert len(below) - len(evaluated) == 6
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_val_loss"] == pytest.approx(found.best.value)
    assert len(list(lab.folder.glob("tensorboard/*/events.out.tfevents.*"))) == 6
    assert cli("track", "sync", lab.folder).code == 0
    assert len(client.search_runs([number])) == len(runs)  # nothing is sent twice
    known, facts, rest = read_only(lab.folder / "ledger.db")
    known[0].trials[0].over = False
    monkeypatch.setattr("manyfit.study.mirrors.read_only", lambda _: (known, facts, rest))
    mirror(lab.folder, False, f"sqlite:///{lab.root}/m.db")
    assert client.get_run(parent.info.run_id).info.status == "RUNNING"


def test_a_full_disk_is_said(lab, cli, monkeypatch):

    points(lab, 1, search__seeds=1)
    real = Ledger.save_trial
    monkeypatch.setattr(
        Ledger,
        "save_trial",
        lambda *a: (_ for _ in ()).throw(sqlite3.OperationalError("database or disk is full")),
    )
    said = cli("sweep", lab.folder)
    assert said.code == 1 and "could not be written: database or disk is full" in said.err
    monkeypatch.setattr(Ledger, "save_trial", real)
    assert cli("sweep", lab.folder).code == 0


def test_values_on_the_command_line_reach_dotted_keys(lab):
    assert len(lab.sweep("space.model.hidden=[4]", "search.seeds=1").points) == 3
    assert (
        len(lab.sweep("space.model.hidden=[4]", "space.train.optimizer.lr=[0.1]", "search.seeds=1").points)
        == 1
    )
