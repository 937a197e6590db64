"""Studies whose trials train in one pass have the results of trials that are trained alone."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import manyfit
from manyfit.learn.torch.fused.step import StackedStep
from manyfit.run.folder_copy import copy_folder
from manyfit.store.folder import RunFolder
from manyfit.store.weights import read_weights
from manyfit.study.status import status

GRID = {"train.optimizer.lr": [0.003, 0.01, 0.03, 0.1], "train.optimizer.weight_decay": [0.0, 0.01]}


@pytest.fixture
def study(lab):
    """Eight trials of one structure."""
    lab.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 3})
    return lab


def check_tables(one, other, rel=1e-3):
    """Compare trial tables: everything but values is equal, and values agree."""
    assert [row[:6] for row in one] == [row[:6] for row in other]
    assert [row[8:] for row in one] == [row[8:] for row in other]
    assert [row[6] for row in one] == pytest.approx([row[6] for row in other], rel=rel)
    for a, b in zip(one, other, strict=True):
        assert json.loads(a[7]) == [pytest.approx(pair, rel=rel) for pair in json.loads(b[7])]


def states(lab):
    """The tensors of the last checkpoint of each trial."""
    folders = sorted((lab.folder / "trials").iterdir())
    found = {each.name: RunFolder(each).checkpoints()[-1:] for each in folders}
    return {name: each[0].load().tensors for name, each in found.items() if each}


def fused(lab):
    return status(lab.folder)["trained"].get("in one pass", 0)


@pytest.mark.parametrize("execute", [
    {"on": "inline", "fuse": 7}, {"on": "inline", "fuse": 64}, {"on": "inline", "fuse": "auto"},
    {"on": "processes", "workers": 2, "fuse": 3},
], ids=str)  # fmt: skip
def test_the_table_is_that_of_trials_alone(study, execute):
    study.write(space=GRID, search={"method": "grid", "seeds": 2}, set={"train.epochs": 3})
    study.sweep()
    alone = study.table()
    study.clear()
    study.write(space=GRID, search={"method": "grid", "seeds": 2}, set={"train.epochs": 3}, execute=execute)
    study.sweep()
    check_tables(alone, study.table())
    if execute["fuse"] != "auto":
        assert fused(study) >= 14  # a group of seven may leave one


ROWS = """
    import numpy as np, torch
    from manyfit.data import ArraySource

    class Weighted:
        def __init__(self, batch_size: int = 16):
            self.batch_size = batch_size

        def source(self, split):
            s = np.random.RandomState({"train": 0, "validation": 1, "test": 2}[split])
            x = s.randn(70, 8, 8).astype(np.float32)
            return ArraySource(x, s.randint(0, 10, 70), weight=s.rand(70).astype(np.float32))

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, split):
            self.split, s = split, np.random.RandomState(len(split))
            self.x, self.y = s.randn(70, 8, 8).astype(np.float32), s.randint(0, 10, 70)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            noise = np.random.randn(8, 8).astype(np.float32) if self.split == "train" else 0
            return torch.from_numpy(self.x[i] + noise), int(self.y[i])

    class Augmented:
        def __init__(self, batch_size: int = 16):
            self.batch_size = batch_size

        def source(self, split):
            return Noisy(split)
"""
PLATEAU = {"class": "plateau", "patience": 0, "threshold": 0.5}


@pytest.mark.parametrize(("base", "study_"), [
    ({"data": {"class": "rows.Weighted"}}, {}),
    ({"data": {"class": "rows.Augmented"}}, {"search__seeds": 2}),
    ({"train__scheduler": PLATEAU}, {"set": {"train.epochs": 4}}),
    ({"train__scheduler": "one_cycle", "train__ema": 0.9, "train__clip_norm": 0.1, "train__accumulate": 2}, {}),
    ({"train__stop": {"metric": "val_loss", "patience": "1ep", "mode": "min"}}, {"set": {"train.epochs": 6}}),
    ({}, {"search__folds": 2}),
    ({}, {"search": {"method": "random", "trials": 6}}),
    ({}, {"execute__evaluate": "all", "execute__keep": 2}),
    ({"train__freeze": [{"match": "layers.1", "epochs": 1}]}, {}),
], ids=["weights", "augmentation", "plateau", "update", "early stop", "folds", "random", "evaluate all", "thaw"])  # fmt: skip
def test_combinations(lab, base, study_):
    lab.project.write("src/rows.py", ROWS)
    tree = lab.project.config(lab.project.changed(**{"train__metrics": ["accuracy"], **base}))
    assert tree
    tables = []
    for fuse in ("off", 64):
        lab.clear()
        lab.write(**{"space": {"train.optimizer.lr": [0.003, 0.01, 0.03]}, "search__seeds": 1, "set": {"train.epochs": 2},
                     "execute": {"on": "inline"}, **study_, "execute__fuse": fuse})  # fmt: skip
        if "random" in str(study_):
            lab.write(
                space={"train.optimizer.lr": {"log": [0.003, 0.03]}},
                **study_,
                execute={"on": "inline", "fuse": fuse},
            )
        found = lab.sweep()
        assert not found.failures
        tables.append(lab.table())
    check_tables(*tables)
    assert fused(lab) >= 2


COUNTED = """
    import torch
    from models import MLP

    SEEN = set()

    class Counted(MLP):
        def forward(self, images):
            SEEN.add((self.training, torch.get_num_threads()))
            return super().forward(images)
"""


@pytest.mark.parametrize("fuse", ["off", 64])
def test_the_number_of_threads_is_that_of_the_config(lab, fuse):
    """Also in the comparison before, and in validation."""
    lab.project.write("src/counted.py", COUNTED)
    lab.write(space={"train.optimizer.lr": [0.003, 0.01]}, search={"method": "grid", "seeds": 1},
              set={"model.class": "counted.Counted", "train.epochs": 1},
              execute={"on": "inline", "fuse": fuse, "threads": 3})  # fmt: skip
    before = torch.get_num_threads()
    lab.sweep()
    import counted

    assert {(True, 3), (False, 3)} == counted.SEEN
    assert torch.get_num_threads() == before


def test_a_worker_that_is_killed_takes_no_trial_with_it(study):
    """The trials of its group are tried alone, and go on from their checkpoints."""
    study.project.write("src/deadly.py", """
        import os, time
        from pathlib import Path
        import torch
        from torch import nn

        class Deadly(nn.Module):
            def __init__(self, hidden: int = 4):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
                self.steps = 0

            def forward(self, x):
                if self.training and torch._C._functorch.is_batchedtensor(self.layers[1].weight):
                    self.steps += 1
                    if self.steps > 10 and Path("once").exists():
                        begun = time.monotonic()
                        while not any(Path("studies/s/groups").glob("*/commit-*")):
                            assert time.monotonic() < begun + 60, "no step is on disk"
                            time.sleep(0.01)
                        Path("once").unlink()
                        os._exit(9)
                return self.layers(x)
    """)  # fmt: skip
    study.project.config(study.project.changed(model={"class": "deadly.Deadly"}))
    changes = {"space": GRID, "search": {"method": "grid", "seeds": 1},
               "set": {"train.epochs": 4, "train.every.checkpoint": "3ba"}}  # fmt: skip
    study.write(**changes, execute={"on": "inline"})
    study.sweep()
    alone = study.table()
    study.clear()
    study.write(**changes, execute={"on": "processes", "workers": 2, "fuse": 64})
    study.project.write("once", "")
    found = study.sweep()
    assert not found.failures
    assert not (study.root / "once").exists()
    check_tables(alone, study.table())


def test_groups_have_trials_of_one_structure(lab):
    lab.write(execute={"on": "inline", "fuse": 64})
    lab.sweep()
    units = lab.rows("select unit, count(*) from unit_trials group by unit order by 1")
    assert [count for _, count in units if count > 1] == [
        6,
        6,
    ]  # two sizes, with three rates and two seeds each
    assert fused(lab) == 12


def test_halving_promotes_the_same_trials(study):
    search = {"method": "grid", "seeds": 2, "stop": {"class": "halving", "first": 1, "factor": 2}}
    tables = []
    for fuse in ("off", 64):
        study.clear()
        study.write(
            space=GRID, search=search, set={"train.epochs": 4}, execute={"on": "inline", "fuse": fuse}
        )
        study.sweep()
        tables.append(study.table())
    check_tables(*tables)


def test_asha_explains_its_decisions(study):
    search = {"method": "grid", "seeds": 1, "stop": {"class": "asha", "first": 1, "factor": 2}}
    study.write(space=GRID, search=search, set={"train.epochs": 4}, execute={"on": "inline", "fuse": 4})
    found = study.sweep()
    assert not found.unfinished
    decided = {row[0] for row in study.rows("select distinct action from decisions")}
    assert {"go", "stop", "fuse"} <= decided


QUICK = [0.05, 0.24, 0.35, 0.48, 0.6, 0.75, 0.95]
PARTS = 8
"""The whole matrix is run in so many parts."""


@pytest.mark.parametrize(
    ("then", "loses", "moments"),
    [
        ("fuse=64", "power", QUICK),
        ("fuse=off", "nothing", QUICK[1::2]),
        *(
            pytest.param(then, loses, {"part": part, "of": PARTS}, marks=pytest.mark.soak)
            for then, loses in (("fuse=64", "power"), ("fuse=64", "nothing"), ("fuse=off", "power"))
            for part in range(PARTS)
        ),
    ],
)
def test_a_study_that_is_killed_at_a_disk_operation_resumes(study, then, loses, moments):
    """In the same way with the same bits, and with the other setting within rounding.

    `moments` are shares of all disk operations on trials and groups, or one part of all of them. Besides the process,
    the machine may lose its power.
    """
    study.write(
        space=GRID, search={"method": "grid", "seeds": 1}, execute={"on": "inline", "fuse": 64},
        set={"train.epochs": 3, "train.every.checkpoint": "3ba", "train.device": "cpu"},
    )  # fmt: skip
    script = Path(__file__).with_name("crash_matrix.py")
    words = json.dumps([f"execute.{then}"])
    done = subprocess.run(
        [sys.executable, script, study.folder, json.dumps(moments), words, loses],
        check=False, capture_output=True, text=True, cwd=study.root,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # with a GPU, autograd cannot be forked
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    whole, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    assert not whole["leftovers"]
    assert len(rest) >= min(len(moments), whole["total"] // PARTS)
    for found in rest:
        assert found["codes"] == [9, 0], (found["moment"], done.stderr)
        assert not found["leftovers"]
        check_tables(whole["table"], found["table"])
        if then == "fuse=64":
            assert found["tensors"] == whole["tensors"], found["moment"]


def test_trials_that_diverge_leave_and_the_others_stay_as_they_are(study):
    """The bits of the others are those of a study without them."""
    changes = {
        "search": {"method": "grid", "seeds": 1},
        "set": {"train.epochs": 3},
        "execute": {"on": "inline", "fuse": 64},
    }
    good = [0.003, 0.01, 0.03]
    study.write(**changes, space={"train.optimizer.lr": good})
    study.sweep()
    alone = states(study)
    study.clear()
    study.write(**changes, space={"train.optimizer.lr": [1e30, *good, 1e32]})
    found = study.sweep()
    assert [failure["kind"] for failure in status(study.folder)["failures"]] == ["not a number"]
    assert len(found.ranked) == 3
    now = states(study)
    for name, tensors in alone.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), ValueError("a bad row")], ids=str)
def test_a_step_that_fails_for_a_group_does_not_fail_its_trials(study, error, monkeypatch):
    """Without memory, groups of halves go on with the same bits; after another error, trials go on alone."""
    study.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 3},
                execute={"on": "inline", "fuse": 64})  # fmt: skip
    study.sweep()
    table, undisturbed = study.table(), states(study)
    study.clear()
    step, sizes = StackedStep.train, []

    def fails(self, *args):
        sizes.append(count := len(self.update.runs))
        if count > 2 and self.base.step + args[-1].number >= 10:
            raise error
        return step(self, *args)

    monkeypatch.setattr(StackedStep, "train", fails)
    study.sweep()
    is_full = isinstance(error, torch.OutOfMemoryError)
    assert [size for size, _ in itertools.groupby(sizes)] == ([8, 4, 2, 4, 2] if is_full else [8])
    if not is_full:
        check_tables(table, study.table())
        return
    assert study.table() == table
    now = states(study)
    for name, tensors in undisturbed.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items()), name


def test_memory_that_runs_out_while_a_group_is_compared_halves_it(study, monkeypatch):
    from manyfit.learn.torch.fused import learner

    check, sizes = learner.check_group, []

    def fails(runs, *args):
        sizes.append(len(runs))
        if len(runs) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return check(runs, *args)

    monkeypatch.setattr(learner, "check_group", fails)
    study.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2},
                execute={"on": "inline", "fuse": 64})  # fmt: skip
    found = study.sweep()
    assert not found.unfinished
    assert sizes[-3:] == [8, 4, 4]
    assert fused(study) == 8


def test_a_trial_that_is_stopped_leaves_the_others_as_they_are(study, monkeypatch):
    """By a person, in the middle of its group."""
    from manyfit.study.executors.inline import Inline

    changes = {"space": GRID, "search": {"method": "grid", "seeds": 1},
               "set": {"train.epochs": 3, "train.device": "cpu"}}  # fmt: skip
    study.write(**changes, execute={"on": "inline", "fuse": 64})
    study.sweep()
    undisturbed = states(study)
    study.clear()
    stopped = sorted(undisturbed)[2]
    asked = []

    monkeypatch.setattr("manyfit.study.work.training.BETWEEN", 0.0)

    class Asks(Inline):
        def _report_progress(self, progress):
            if progress.step > 5 and not asked:
                asked.append(progress.trial)
                self.interrupt([stopped])
            super()._report_progress(progress)

    study.execute(lambda s, work, watch, trials: Asks(work, watch))
    assert asked
    now = states(study)
    for name, tensors in undisturbed.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items()), name


def test_a_dry_run_and_the_status_say_what_is_fused(study, cli):
    study.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2},
                execute={"on": "inline", "fuse": 64})  # fmt: skip
    answer = cli("sweep", study.folder, "--dry-run")
    assert answer.code == 0, answer.err
    assert "can be trained in one pass" in answer.out
    study.sweep()
    answer = cli("status", study.folder)
    assert "8 in one pass" in answer.out
    assert "ms together" in study.rows("select reason from decisions where action = 'fuse'")[0][0]


def test_what_cannot_be_fused_is_trained_alone_and_said(study, cli):
    study.project.write("src/noisy.py", """
        import torch
        from torch import nn

        class Noisy(nn.Module):
            def __init__(self, hidden: int = 4):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

            def forward(self, x):
                return self.layers(x + torch.randn_like(x)) if self.training else self.layers(x)
    """)  # fmt: skip
    study.project.config(study.project.changed(model={"class": "noisy.Noisy"}))
    study.write(space={"train.optimizer.lr": [0.01, 0.1]}, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2},
                execute={"on": "inline", "fuse": 64})  # fmt: skip
    assert "draws random numbers" in cli("sweep", study.folder, "--dry-run").out
    study.sweep()
    assert status(study.folder)["trained"] == {"alone: the model draws random numbers other than dropout": 2}


WRONG = {"on": "'off', 'auto', or a whole number", 1: "greater than 1", 2.5: "a whole number"}


@pytest.mark.parametrize("fuse", ["on", 1, 2.5])
def test_a_wrong_setting_is_an_error(study, cli, fuse):
    study.write(execute={"fuse": fuse})
    answer = cli("sweep", study.folder)
    assert answer.code == 2
    assert "execute.fuse" in answer.err
    assert WRONG[fuse] in answer.err


KILLED = """
    import os, sys
    from manyfit.store import durable
    import manyfit
    commits = []
    def before(operation, path):
        commits.extend([path] if operation == "rename" and path.parent.parent.name == "groups" else [])
        if len(commits) == 3:
            os._exit(9)
    durable.before = before
    manyfit.sweep(sys.argv[1], progress=False)
"""


def test_what_a_killed_group_has_saved_can_be_used(study, cli):
    """Every command reads it as if each trial had its own files."""
    study.write(space=GRID, search={"method": "grid", "seeds": 1}, execute={"on": "inline", "fuse": 64},
                set={"train.epochs": 3, "train.every.checkpoint": "1ep"})  # fmt: skip
    study.sweep()
    whole = study.table()
    study.clear()
    study.write(space=GRID, search={"method": "grid", "seeds": 1}, execute={"on": "inline", "fuse": 64},
                set={"train.epochs": 3, "train.every.checkpoint": "3ba"})  # fmt: skip
    script = study.project.write("kill.py", textwrap.dedent(KILLED))
    done = subprocess.run([sys.executable, script, study.folder], check=False, cwd=study.root)
    assert done.returncode == 9
    trials = sorted((study.folder / "trials").iterdir())
    trial = RunFolder(trials[3])
    assert trial.state() == "unfinished"
    last = trial.checkpoints()[-1]
    assert not last.path.exists()
    assert str(last.step) in cli("list", study.folder / "trials").out
    assert last.path.name in cli("show", trial.path, "--json").out
    assert "layers" in cli("show", last.path).out
    module = manyfit.load_model(trial.path)
    assert module.state_dict().keys() == manyfit.load_model(last.path).state_dict().keys()
    assert read_weights(last.path).keys() == read_weights(trial.path).keys()
    copy = copy_folder(trial)
    assert f"checkpoints/{last.path.name}/manifest.json" in copy.files
    assert "checkpoints/group.json" not in copy.files
    for name, data in copy.files.items():
        study.project.root.joinpath("copy", name).parent.mkdir(parents=True, exist_ok=True)
        study.project.root.joinpath("copy", name).write_bytes(data)
    assert RunFolder(study.root / "copy").checkpoints()[-1].step == last.step
    study.sweep()
    check_tables(whole, study.table(), rel=1e-9)
    assert not (study.folder / "groups").exists()


PICKY = """
    import random
    import torch
    from torchmetrics import Metric

    class Picky(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

        def update(self, output, target):
            if output.abs().max() > 1e3:
                raise ValueError("outputs are too large")
            self.total += output.sum() * random.random()

        def compute(self):
            return self.total * random.random()
"""


def test_a_metric_that_raises_for_one_trial_does_not_disturb_the_others(study):
    """Their bits are those of a study without it, also if the metric draws random numbers."""
    study.project.write("src/picky.py", PICKY)
    base = {"train__metrics": ["accuracy", {"class": "picky.Picky"}], "train__guard": {"nan": False}}
    study.project.config(study.project.changed(**base))
    changes = {
        "search": {"method": "grid", "seeds": 1},
        "set": {"train.epochs": 3},
        "execute": {"on": "inline", "fuse": 64},
    }
    good = [0.001 * (i + 1) for i in range(15)]
    study.write(**changes, space={"train.optimizer.lr": good})
    study.sweep()
    alone, table = states(study), {row[0]: row for row in study.table()}
    study.clear()
    study.write(**changes, space={"train.optimizer.lr": [*good[:7], 1e4, *good[7:]]})
    study.sweep()
    (failed,) = status(study.folder)["failures"]
    assert "outputs are too large" in failed["message"]
    now = states(study)
    for name, tensors in alone.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items())
    for row in study.table():
        assert row[0] not in table or (row[3], *row[5:8]) == (table[row[0]][3], *table[row[0]][5:8])
    assert fused(study) >= 15


def test_a_share_of_a_study_is_fused(study, cli):
    """Jobs of an array train in one pass what they can, and the study collects it."""
    study.write(space={**GRID, "model.hidden": [4, 8]}, search={"method": "grid", "seeds": 1},
                set={"train.epochs": 2}, execute={"on": "inline", "fuse": 64})  # fmt: skip
    study.sweep()
    table, tensors = study.table(), states(study)
    study.clear()
    for task in range(2):
        answer = cli("study", "share", study.folder, task, 2)
        assert answer.code == 0, answer.err
        assert answer.out.count("in one pass") == 8
    study.sweep()
    assert study.table() == table
    now = states(study)
    assert all(torch.equal(t, now[name][key]) for name, own in tensors.items() for key, t in own.items())
    assert not (study.folder / "groups").exists()
