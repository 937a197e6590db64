"""A kind of learner of one's own: one file, nothing else, and everything works."""

from __future__ import annotations

import csv
import json
import textwrap

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import UsageError
from manyfit.learn import kind as registry
from manyfit.run.resume_proof import POINTS, Kill, difference, kill_and_resume
from manyfit.store.folder import RunFolder

PERCEPTRON = '''
"""A perceptron in NumPy, and how manyfit trains it."""

import numpy as np
import torch

from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.learn.kind import Format, LearnerKind, register
from manyfit.learn.learner import BaseLearner, Outputs, Weights


class Perceptron:
    """Scores of classes, linear in the inputs."""

    def __init__(self, inputs: int, classes: int, rate: float = 0.1) -> None:
        self.weights = np.random.standard_normal((classes, inputs))
        self.rate = rate

    def __call__(self, rows):
        return rows @ self.weights.T


class PerceptronLearner(BaseLearner):
    """Adds a row to the scores of its class, and takes it from those of the class that was taken for it."""

    stands_between_batches = True

    def __init__(self, model, seed, steps_per_epoch, whole_epochs=False):
        self.model, self.step, self.seed = model, 0, seed
        self.grain = steps_per_epoch if whole_epochs else 1
        self.wrong, self.rows = 0, 0

    def describe(self):
        return f"Perceptron with {self.model.weights.size} weights"

    def train(self, batches, steps):
        assert steps % self.grain == 0, "a learner of whole epochs is asked for whole epochs"
        for _ in range(steps):
            batch = next(batches)
            noise = np.random.RandomState(derive(self.seed, "noise", self.step) % 2**32)
            rows = np.asarray(batch.inputs) + 0.01 * noise.normal(size=batch.inputs.shape)
            said = self.model(rows).argmax(axis=1)
            for row, target, found in zip(rows, np.asarray(batch.target), said):
                if target != found:
                    self.model.weights[target] += self.model.rate * row
                    self.model.weights[found] -= self.model.rate * row
            self.wrong += int((said != batch.target).sum())
            self.rows += len(batch)
            self.step += 1

    def take(self):
        found = {"lr": np.array([self.model.rate])}
        if self.rows:
            found["train_loss"] = np.array([self.wrong / self.rows])
        self.wrong = self.rows = 0
        return found

    def evaluate(self, batches):
        for batch in batches:
            output = self.predict(batch)
            target = None if batch.target is None else np.asarray(batch.target)
            rows = {} if target is None else {"loss": (output.argmax(axis=1) != target).astype(float)[None]}
            yield Outputs(batch.index, output[None], None if target is None else target[None], rows)

    def predict(self, batch, model=None):
        return (model or self.model)(np.asarray(batch.inputs))

    def state(self):
        values = {"step": self.step, "wrong": self.wrong, "rows": self.rows}
        return [State({"weights": torch.from_numpy(self.model.weights)}, values)]

    def load(self, states):
        self.model.weights = states[0].tensors["weights"].numpy().copy()
        self.step, self.wrong, self.rows = (states[0].values[n] for n in ("step", "wrong", "rows"))

    def weights(self):
        return [Weights({"weights": torch.from_numpy(self.model.weights)}, {})]


def write_npz(learner, batch, file):
    with open(file, "wb") as target:
        np.savez(target, weights=learner.model.weights)


@register
class PerceptronKind(LearnerKind):
    name = "perceptron"
    noun = "a perceptron"
    formats = {"npz": Format("model.npz", write_npz)}

    def claims(self, model):
        return getattr(model if isinstance(model, type) else type(model), "__name__", "") == "Perceptron"

    def build(self, setup):
        whole = setup.config.run.project_name == "whole epochs"
        return PerceptronLearner(setup.made.model, setup.config.run.seed, setup.steps_per_epoch, whole)

    def restore(self, model, state, inputs=None):
        model.weights = state["weights"].numpy()
        return model
'''


@pytest.fixture
def kind(project):
    project.write("src/perceptron.py", PERCEPTRON)
    tree = project.changed(model={"class": "perceptron.Perceptron", "inputs": 64, "classes": 10})
    tree["train"] = {"epochs": 3, "loss": None, "optimizer": None}
    tree["track"] = {"tensorboard": False}
    project.tree = tree
    project.config(tree)
    yield project
    registry._registered.clear()
    registry.MODELS.clear()
    registry.FORMATS.clear()


def test_it_trains_evaluates_and_exports(kind, cli):
    result = manyfit.train(kind.run, ["train.epochs=10"], callbacks=[])
    assert RunFolder(kind.run).events()[-1].values["train_loss"] < 0.1
    assert result.test["loss"] < 0.8, "of ten classes"
    rows = list(csv.DictReader((kind.run / "reports" / "test.csv").open()))
    model = manyfit.load_model(kind.run)
    exported = manyfit.load_model(kind.run / "exported")
    from points import Blobs

    test = Blobs().source("test")
    said = model(test.inputs).argmax(axis=1)
    assert [int(row["prediction"]) for row in rows] == said.tolist()
    assert np.array_equal(exported(test.inputs), model(test.inputs))
    assert [path.name for path in manyfit.export(kind.run, ["npz"])] == ["model.npz"]
    assert np.array_equal(np.load(kind.run / "exported" / "model.npz")["weights"], model.weights)
    with pytest.raises(UsageError, match="a perceptron cannot be exported as onnx"):
        manyfit.export(kind.run, ["onnx"])
    answer = cli("check", kind.run)
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.parametrize("kills", [POINTS[1], POINTS[3], [Kill("step", 5), Kill("step", 6)]], ids=str)
def test_it_resumes_exactly(kind, kills):
    changes = ["train.epochs=2", "train.every.checkpoint=2ba", "train.every.log=1ba"]
    kill_and_resume(kind.run, changes, kind.root / "runs" / "whole", [])
    assert kill_and_resume(kind.run, changes, kind.root / "runs" / "killed", kills)
    assert difference(*(RunFolder(kind.root / "runs" / name) for name in ("whole", "killed"))) == ""


@pytest.mark.parametrize("on", ["inline", "processes"])
def test_it_runs_in_a_study(kind, cli, on):
    kind.write(
        "studies/s/study.yaml",
        textwrap.dedent(f"""
            base: ../../runs/a/config.yaml
            objective: {{metric: val_loss, mode: min}}
            search: {{method: grid, seeds: 2, stop: {{class: halving, factor: 2}}}}
            space: {{model.rate: [0.01, 0.1, 1.0, 3.0]}}
            execute: {{on: {on}, workers: 2}}
        """),
    )
    answer = cli("sweep", "studies/s")
    assert answer.code == 0, answer.err
    board = json.loads(cli("status", "--json", "studies/s").out)["leaderboard"]
    assert len(board) == 4
    assert {row["state"] for row in board} == {"finished", "stopped"}


def test_what_it_does_not_use_is_refused(kind):
    kind.config({**kind.tree, "train": {**kind.tree["train"], "clip_norm": 1.0}})
    with pytest.raises(UsageError, match=r"train\.clip_norm: does not apply to a perceptron"):
        manyfit.train(kind.run, callbacks=[])


def test_whole_epochs_are_never_cut(kind):
    """Pauses by the clock come between epochs, and a cadence inside is refused."""
    kind.config({**kind.tree, "project_name": "whole epochs"})
    assert manyfit.train(kind.run, callbacks=[]).step == 12
    assert [event.step for event in RunFolder(kind.run).events()] == [4, 8, 12]
    with pytest.raises(
        UsageError, match=r"train\.every\.log: the model trains 4 steps at once and 6ba falls"
    ):
        manyfit.train(kind.run, ["train.every.log=6ba"], folder=kind.root / "runs" / "b", callbacks=[])


def test_its_formats_may_stand_in_a_config(kind):
    kind.config({**kind.tree, "export": {"formats": ["npz"]}})
    manyfit.train(kind.run, callbacks=[])
    assert (kind.run / "exported" / "model.npz").is_file()
    with pytest.raises(manyfit.ConfigError, match="no such export format") as caught:
        manyfit.load_config(kind.run, ["export.formats=[nzp]"])
    assert caught.value.problems[0].suggestion == "npz"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('    name = "perceptron"\n', "", "the kind PerceptronKind needs a name"),
        ('"") == "Perceptron"', '"") == missing', "the kind 'perceptron' failed in claims.* NameError"),
        (
            "        return PerceptronLearner(setup",
            "        return print(setup",
            "must build a learner, but built None",
        ),
    ],
    ids=["no name", "claims raises", "builds nothing"],
)
def test_mistakes_in_a_kind_are_named(kind, before, after, message):
    assert before in PERCEPTRON
    kind.write("src/perceptron.py", PERCEPTRON.replace(before, after))
    with pytest.raises(manyfit.ManyfitError, match=message):
        manyfit.train(kind.run, callbacks=[])


def test_a_module_that_is_imported_again_replaces_its_kind(kind):
    for _ in range(2):
        registry.register(type("Again", (registry.LearnerKind,), {
            "name": "again", "claims": lambda self, model: False, "build": None, "restore": None,
        }))  # fmt: skip
    assert [each.name for each in registry.kinds()].count("again") == 1
