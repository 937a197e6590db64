"""Hopping is bit-identical to one process, for every learner, layout and executor, also when killed at random."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tests.study.test_hopping import assert_same, trained

import manyfit
from manyfit.config.tree.reader import dump
from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.run import run_etl
from manyfit.data.etl.tables import read_table
from manyfit.data.prepared import open_split
from manyfit.spec import ETLSpec
from manyfit.store.folder import RunFolder
from manyfit.study.status import status

SIZES = {1: (1,), 2: (5, 2), 3: (1, 4, 2), 7: (1, 2, 1, 5, 1, 3, 1)}
"""By number of shards: their relative sizes."""
CODE = """
import time

import torch
from torch import nn
from manyfit.spec import MinibatchSpec


class Net(nn.Module):
    def __init__(self, width: int = 6, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))

    def forward(self, x):
        time.sleep(self.pause)
        return self.layers(x)


class Spec(MinibatchSpec):
    def create_model_components(self, hyperparams):
        self.seen = 0
        model = Net(hyperparams["width"], hyperparams["pause"])
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=hyperparams["lr"])}

    def train(self, model_object, minibatch, hyperparams, device):
        x, y = minibatch
        self.seen += len(y)
        loss = nn.functional.cross_entropy(model_object["model"].train()(x), y)
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        return model_object, {"loss": loss, "seen": self.seen}

    def valtest(self, model_object, minibatch, hyperparams, device):
        x, y = minibatch
        outputs = model_object["model"].eval()(x)
        right = (outputs.argmax(1) == y).float()
        return {"loss": nn.functional.cross_entropy(outputs, y), "right": right, "rows": len(y)}

    def metrics_agg(self, mode, hyperparams, metrics):
        numbers = {"loss": sum(metrics["loss"]) / len(metrics["loss"])}
        if "right" in metrics:
            numbers |= {"accuracy": torch.cat(metrics["right"]).mean(), "rows": sum(metrics["rows"])}
        return numbers

"""
KERAS = """
import keras

from manyfit.pipeline import ModelBuilderBase


class Builder(ModelBuilderBase):
    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        self.rate = rate

    def get_compiled_model(self):
        layers = [keras.layers.Dense(6, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(self.rate), loss, metrics=["accuracy"], jit_compile=False)
        return model
"""
ROWS, VALIDATION_ROWS = 140, 41


class Rows(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        dice = np.random.RandomState(int(row.id))
        label = int(row.id) % 3
        return dice.normal(size=8).astype(np.float32) + label, label


def prepare(root, shards):
    """Write rows in shards of unequal sizes; the rows for validation are in shards, too."""
    tables = []
    for mode, first, count in (("train", 0, ROWS), ("val", 1000, VALIDATION_ROWS)):
        path = root / f"{mode}.csv"
        path.write_text("id\n" + "\n".join(str(first + i) for i in range(count)) + "\n")
        tables.append(read_table(mode, str(path)))
    options = EtlOptions(shards=shards, capacities=SIZES[shards], workers=1)
    return run_etl(Rows(), tables, root / "etl", options).folder


def describe(learner, pause):
    """The base config and the space of a learner."""
    base = {
        "seed": 5,
        "data": {"class": "manyfit.spec.EtlData", "etl_dir": "etl", "batch_size": 8},
        "train": {"epochs": 2, "every": {"checkpoint": "7ba"}},
    }
    if learner == "spec":
        hyperparams = {"lr": 0.01, "width": 6, "pause": pause}
        base["trainer"] = {
            "class": "manyfit.spec.SpecTrainer", "spec": {"class": "nets.Spec"}, "hyperparams": hyperparams,
        }  # fmt: skip
        return base, {"trainer.hyperparams.lr": [0.003, 0.01, 0.03]}
    if learner == "keras":
        base["model"] = {"class": "keras_nets.Builder"}
        base["train"] |= {"loss": None, "optimizer": None, "epochs": 1}  # each visit compiles the model
        return base, {"model.rate": [0.003, 0.03]}
    base["model"] = {"class": "nets.Net", "pause": pause}
    base["train"] |= {
        "loss": "cross_entropy", "metrics": ["accuracy"], "optimizer": {"class": "adamw", "lr": 0.01},
    }  # fmt: skip
    return base, {"train.optimizer.lr": [0.003, 0.01, 0.03]}


def write_study(project, learner, shards, pause=0.0, rates=(), **execute):
    layout = prepare(project.root, shards)
    project.write("src/nets.py", CODE)
    project.write("src/keras_nets.py", KERAS)
    base, space = describe(learner, pause)
    space = {"train.optimizer.lr": list(rates)} if rates else space
    project.config(base)
    tree = {
        "base": "../../runs/a/config.yaml", "objective": {"metric": "val_loss", "mode": "min"},
        "search": {"method": "grid"}, "space": space, "execute": {"hop": True, "retries": 100, **execute},
    }  # fmt: skip
    project.write("studies/s/study.yaml", dump(tree))
    return project.root / "studies" / "s", layout


def check(project, folder, learner):
    """Every trial ends as its own config does, trained as a single run."""
    trials = sorted((folder / "trials").iterdir())
    assert len(trials) == (2 if learner == "keras" else 3)
    for trial in trials:
        project.write(f"runs/{trial.name}/config.yaml", (trial / "config.yaml").read_text())
        manyfit.train(project.root / "runs" / trial.name, callbacks=[])
        assert_same(trial, project.root / "runs" / trial.name)
        last = RunFolder(trial).events()[-1].values
        if learner == "spec":
            assert last["val_rows"] == VALIDATION_ROWS


def run_whole(project, learner, shards, on, workers):
    if learner == "keras":
        pytest.importorskip("tensorflow")
    folder, layout = write_study(project, learner, shards, on=on, workers=workers)
    sizes = open_split(layout, "train").layout.sizes
    assert len(sizes) == shards
    assert shards == 1 or max(sizes) > min(sizes) + 1
    manyfit.sweep(folder, progress=False)
    check(project, folder, learner)


@pytest.mark.parametrize(
    ("learner", "shards", "on", "workers"),
    [
        ("torch", 3, "processes", 2),
        pytest.param("keras", 2, "inline", 1, marks=pytest.mark.soak),
        ("spec", 7, "inline", 1),
    ],
)
def test_a_trial_that_hops_is_the_same(project, learner, shards, on, workers):
    run_whole(project, learner, shards, on, workers)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("learner", ["torch", "keras", "spec"])
def test_every_learner_on_every_executor(project, learner, shards, workers):
    run_whole(project, learner, shards, "processes" if workers else "inline", workers or 1)


def kill(project, learner, shards, workers, seed, kills):
    dice = random.Random(seed)
    order = dice.choice(["cyclic", "cyclic", "free"])
    folder, _ = write_study(
        project, learner, shards, pause=0.01, on="processes", workers=workers, order=order
    )
    command = [sys.executable, "-m", "manyfit", "sweep", str(folder)]
    for _ in range(kills):
        driver = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(dice.uniform(3.0, 8.0))
        driver.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        driver.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for trial in sorted((folder / "trials").iterdir()):
        visits = RunFolder(trial).checkpoints()[-1].note.position.get("visits", [])
        assert all(sorted(path) in ([], list(range(shards))) for path in visits)
        project.write(f"runs/{trial.name}/config.yaml", (trial / "config.yaml").read_text())
        manyfit.train(project.root / "runs" / trial.name, [f"data.visits={visits}"], callbacks=[])
        assert_same(trial, project.root / "runs" / trial.name)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("learner", ["torch", "keras", "spec"])
def test_killed_and_resumed_at_random(project, learner, seed):
    if learner == "keras":
        pytest.importorskip("tensorflow")
    dice = random.Random(seed)
    kill(project, learner, dice.choice([2, 3, 7]), dice.randint(1, 4), seed, kills=3)


def keep_trials(folder):
    """Move the trials of a study away, and return the last state and the log of each."""
    found = {path.name: trained(path) for path in sorted((folder / "trials").iterdir())}
    for path in folder.iterdir():
        if path.name != "study.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


@pytest.mark.parametrize(("on", "workers", "shards"), [("inline", 1, 2), ("processes", 2, 2)])
def test_a_group_that_hops_is_as_its_trials_alone(project, on, workers, shards):
    """Each epoch ends with visits to the shards of validation rows, which every trial makes alone."""
    folder, _ = write_study(project, "torch", shards, on=on, workers=workers)
    project.write(
        "src/nets.py", CODE.replace("nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)", "nn.Tanh()")
    )
    manyfit.sweep(folder, progress=False)
    alone = keep_trials(folder)
    manyfit.sweep(folder, ["execute.fuse=64"], progress=False)
    assert status(folder)["trained"].get("in one pass") == 2, status(folder)[
        "trained"
    ]  # the third one begins at another shard
    together = keep_trials(folder)
    assert alone.keys() == together.keys()
    for name, (state, events) in alone.items():
        other, other_events = together[name]
        assert [event[:2] for event in events] == [event[:2] for event in other_events]
        for (*_, one), (*_, two) in zip(events, other_events, strict=True):
            assert one == pytest.approx(two, rel=1e-4)
        for key, tensor in state.tensors.items():
            assert torch.allclose(tensor.double(), other.tensors[key].double(), rtol=1e-3, atol=1e-5), key


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_groups_are_killed_and_resumed_at_random(project, seed):
    """Trials may meet other mates then, and end with the same bits."""
    dice = random.Random(seed)
    shards, workers = dice.choice([2, 3]), dice.randint(1, 3)
    folder, _ = write_study(
        project, "torch", shards, 0.01, [0.001, 0.003, 0.01, 0.02, 0.03, 0.1],
        on="processes", workers=workers, fuse=64,
    )  # fmt: skip
    manyfit.sweep(folder, progress=False)
    assert status(folder)["trained"].get("in one pass") == 6, status(folder)["trained"]
    undisturbed = keep_trials(folder)
    command = [sys.executable, "-m", "manyfit", "sweep", str(folder)]
    for _ in range(2):
        driver = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(dice.uniform(2.5, 5.0))
        driver.send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM]))
        driver.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, (state, events) in keep_trials(folder).items():
        before, events_before = undisturbed[name]
        assert events == events_before
        assert all(torch.equal(tensor, before.tensors[key]) for key, tensor in state.tensors.items())


@pytest.mark.parametrize("learner", ["torch", pytest.param("spec", marks=pytest.mark.soak)])
def test_stoppers_decide_on_complete_epochs(project, learner):
    """Validation rows are in shards: an epoch is complete when all of them were visited."""
    folder, _ = write_study(project, learner, 3, on="inline")
    text = (folder / "study.yaml").read_text()
    tables = []
    for hop in ("true", "false"):
        (folder / "study.yaml").write_text(
            text.replace("hop: true", f"hop: {hop}").replace(
                "method: grid", "method: grid\n  stop: {class: halving, factor: 3}"
            )
        )
        found = manyfit.sweep(folder, ["set={train.epochs: 3}"], progress=False)
        tables.append([(p.id, p.state, p.value) for p in found.points])
        shutil.rmtree(folder / "trials")
        for file in folder.glob("ledger.db*"):
            file.unlink()
    assert tables[0] == tables[1]
    assert [state for _, state, _ in tables[0]].count("stopped") == 2
    assert all(value is not None for _, _, value in tables[0])
