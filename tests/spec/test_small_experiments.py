"""Experiments that are started again: with other rows, files, code, models and hyperparameters."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from manyfit.core.errors import ManyfitError
from manyfit.spec import Experiment
from manyfit.stoppers import Add, Go, Stop

CODE = """
import numpy as np
from manyfit.spec import ETLSpec, MinibatchSpec


class Rows(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        return np.array([row["a"], row["b"]], dtype=np.float32), int(row["y"])


class Nets(MinibatchSpec):
    def __init__(self, width: int = 2):
        self.steps, self.seen = 0, []
        self.size = width * 2

    def read_misc(self, misc_path):
        self.factor = float(open(misc_path + "factor.txt").read()) if misc_path else 1.0

    def create_model_components(self, hyperparams):
        import torch

        if hyperparams.get("bad"):
            self.fails = True
        model = torch.nn.Linear(2, 2)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=hyperparams["lr"])}

    def train(self, model_object, minibatch, hyperparams, device):
        import torch

        self.steps += 1
        self.seen.append(1)
        if hyperparams.get("bad") and self.steps > 12:
            raise ValueError("a bad value")
        loss = torch.nn.functional.cross_entropy(model_object["model"](minibatch[0]), minibatch[1])
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        return model_object, {"loss": loss}

    def valtest(self, model_object, minibatch, hyperparams, device):
        right = (model_object["model"](minibatch[0]).argmax(1) == minibatch[1]).float()
        return {"accuracy": right, "steps": self.steps, "seen": len(self.seen), "size": self.size,
                "factor": self.factor}

    def predict(self, model_object, minibatch, hyperparams, device):
        chances = model_object["model"](minibatch[0]).softmax(1)
        return chances.argmax(1), chances.max(1).values
"""


class World:
    """Tables, a module with specs, and experiments over them."""

    def __init__(self, root):
        self.root = root
        self.write_rows()
        (root / "factor.txt").write_text("1")

    def write_rows(self, train=64, flip=0, test=21):
        for name, first, count in (
            ("train", 0, train),
            ("val", 1000, 40),
            ("test", 2000, test),
            ("predict", 3000, 17),
        ):
            lines = ["id,a,b,y"]
            for i in range(first, first + count):
                y = (i % 7 > 3) ^ (flip if name != "test" else 0)
                lines.append(f"r{i},{i / 5000:.4f},{1.0 if i % 7 > 3 else -1.0},{int(y)}")
            (self.root / f"{name}.csv").write_text("\n".join(lines) + "\n")

    def specs(self, old="", new=""):
        assert old in CODE
        (self.root / "small_nets.py").write_text(CODE.replace(old, new) if old else CODE)
        sys.modules.pop("small_nets", None)
        importlib.invalidate_caches()
        return importlib.import_module("small_nets")

    def experiment(self):
        params = {
            f"{name}_main": str(self.root / f"{name}.csv") for name in ("train", "val", "test", "predict")
        }
        folders = {f"{name}_dir": str(self.root / name) for name in ("etl", "models", "output")}
        params |= {"misc": [str(self.root / "factor.txt")]}
        return Experiment({**params, **folders}, shards=2, workers=1, progress=False)

    def fit(self, grid=None, epochs=2, spec=None, **options):
        nets = self.specs() if "small_nets" not in sys.modules else sys.modules["small_nets"]
        experiment = self.experiment()
        experiment.run_etl(nets.Rows())
        result = experiment.run_fit(
            spec or nets.Nets(), grid or {"lr": [0.1, 0.5]}, epochs, metric="val_accuracy",
            execute={"on": "inline"}, **options,
        )  # fmt: skip
        return experiment, result


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield World(tmp_path)
    sys.modules.pop("small_nets", None)


def test_the_state_of_a_spec_belongs_to_its_run(world):
    nets = world.specs()
    _, result = world.fit(spec=nets.Nets(width=5), grid={"lr": [0.1, 0.5], "batch_size": 16})
    before = result.models[0].history()
    for model in result.models:
        last = model.history()[-1]
        assert (last["val_steps"], last["val_seen"], last["val_size"]) == (8, 8, 10)
    _, longer = world.fit(spec=nets.Nets(width=5), grid={"lr": [0.1, 0.5], "batch_size": 16}, epochs=3)
    assert [model.history()[-1]["val_seen"] for model in longer.models] == [12, 12]
    assert longer.models[0].history()[:2] == before


def test_a_spec_that_was_changed_after_it_was_made_is_refused(world):
    nets = world.specs()
    spec = nets.Nets()
    spec.size = 7
    with pytest.raises(ManyfitError, match="size was changed after the spec was created"):
        world.fit(spec=spec)
    with pytest.raises(ManyfitError, match="'width' must consist of numbers, text, lists and dicts"):
        world.fit(spec=nets.Nets(width=__import__("numpy").arange(2)))


def test_other_rows_or_files_are_refused(world):
    experiment, result = world.fit()
    assert experiment.run_test().rows == 21
    world.write_rows(test=9)
    again, same = world.fit()
    assert [m.value for m in same.models] == [m.value for m in result.models]
    assert again.run_test().rows == 9
    world.write_rows(train=50, flip=1)
    with pytest.raises(ManyfitError, match=r"data.layout"):
        world.fit()
    world.write_rows()
    (world.root / "factor.txt").write_text("2")
    with pytest.raises(ManyfitError, match=r"trainer.misc_digest"):
        world.fit()


def test_changed_code_is_refused_and_can_be_allowed(world):
    world.fit()
    world.specs("lr=hyperparams", "momentum=0.9, lr=hyperparams")
    with pytest.raises(ManyfitError, match=r"code of .* has changed"):
        world.fit(epochs=3)
    world.fit(epochs=3, allow_change=["code"])


def test_an_error_of_one_model_does_not_end_the_others(world):
    _, result = world.fit({"lr": [0.1], "bad": [True, False]}, epochs=8)
    assert [model.state for model in result.models] == ["failed", "finished"]
    assert result.best.hyperparams["bad"] is False


class Copies:
    """Stops the worse half after an epoch, and copies the best model, with its weights."""

    def pauses(self, epochs):
        return [1]

    def decide(self, board):
        points = list(board.points)
        if any(point.state == "running" for point in points):
            return []
        best, *others = board.ranked([point for point in points if point.state == "waiting"]) or [None]
        if best is None or len(points) > 3:  # a copy was made
            return [Go(best.number, None)] if best is not None else []
        assert best.score(1) < float("inf")
        copied = Add({"trainer.hyperparams.lr": 0.01}, weights=best.number)
        return [Go(best.number, None), copied, *(Stop(other.number, "worse") for other in others)]


def test_a_callback_stops_adds_and_copies_models(world):
    (world.root / "small_stopper.py").write_text(
        "from tests.spec.test_small_experiments import Copies\nclass Mine(Copies):\n    pass\n"
    )
    _, result = world.fit({"lr": [0.1, 0.5, 1.0]}, epochs=2, callback="small_stopper.Mine")
    states = [model.state for model in result.models]
    assert states.count("finished") == 2
    assert states.count("stopped") == 2
    copied = result.models[3]
    assert copied.hyperparams["lr"] == 0.01
    assert all(model.value is not None for model in result.models)


@pytest.mark.parametrize(
    ("search", "grid"),
    [
        ({"method": "random", "trials": 6}, {"lr": {"log": [1e-3, 1.0]}, "batch_size": [8, 16]}),
        ({"method": "tpe", "trials": 4}, {"lr": {"log": [1e-3, 1.0]}, "batch_size": [8, 16]}),
    ],
)
def test_other_searches(world, search, grid):
    pytest.importorskip("optuna")
    _, result = world.fit(grid, search=search)
    assert len(result.models) == search["trials"]
    assert len({model.hyperparams["lr"] for model in result.models}) == search["trials"]
    best = max(result.models, key=lambda model: model.value)
    assert result.best.value == best.value


def test_every_row_is_predicted_once_and_everything_is_removed(world):
    experiment, result = world.fit(seed=4)
    predictions = experiment.run_predict()
    assert sorted(predictions.by_id) == sorted(f"r{i}" for i in range(3000, 3017))
    assert len(result.history) == 4
    events = list(Path(experiment.folder).rglob("*tfevents*"))
    assert events
    experiment.reset()
    assert not experiment.folder.exists()
    experiment.clean_up()
    assert not list((world.root / "etl").glob("*/layout.json"))


@pytest.mark.parametrize(
    ("grid", "message"),
    [({"o.lr": [0.1]}, "text without a dot"), ({"lr": ["${seed}"]}, "is a reference"), ({}, "at least one")],
)
def test_grids_are_checked(world, grid, message):
    nets = world.specs()
    experiment = world.experiment()
    experiment.run_etl(nets.Rows())
    with pytest.raises(ManyfitError, match=message):
        experiment.run_fit(nets.Nets(), grid, 1)


def test_a_replaced_model_is_refused(world):
    world.specs(
        "        self.steps += 1\n",
        "        self.steps += 1\n        model_object['model'] = torch.nn.Linear(2, 2)\n",
    )
    with pytest.raises(ManyfitError, match="may change, but not be replaced"):
        world.fit()


def test_the_study_is_one_like_any_other(world, cli):
    experiment, _ = world.fit()
    facts = json.loads(cli("status", experiment.folder, "--json").out)
    assert facts["trials"] == {"finished": 2}
    assert cli("study", "clone", experiment.folder, "0", "trainer.hyperparams.lr=0.2").code == 0
    _, result = world.fit()
    assert [model.hyperparams["lr"] for model in result.models] == [0.1, 0.5, 0.2]
    trials = sorted((experiment.folder / "trials").iterdir())
    assert cli("compare", *trials[:2], "--metric", "accuracy").code in (0, 2)
