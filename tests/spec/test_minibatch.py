"""Minibatch specs: trained alone and hopping, and mistakes in them."""

from __future__ import annotations

import pytest
import torch

import manyfit
from manyfit.core.errors import ManyfitError
from manyfit.store.folder import RunFolder


def trained(path):
    run = RunFolder(path)
    return run.checkpoints()[-1].load(), [(e.step, e.epoch, dict(e.values)) for e in run.events()]


def assert_same(one, other):
    (state, events), (state_, events_) = trained(one), trained(other)
    assert events == events_
    assert all(torch.equal(tensor, state_.tensors[name]) for name, tensor in state.tensors.items())
    assert state.values == state_.values


def test_a_spec_trains_and_evaluates(specs):
    found = manyfit.train(specs.config(), callbacks=[])
    rows = RunFolder(found.folder).events()
    assert len(rows) == 3
    assert {"train_loss", "train_accuracy", "val_loss", "val_accuracy"} <= set(rows[-1].values)
    assert rows[-1].values["val_accuracy"] > 0.6
    report = (found.folder / "reports" / "validation.csv").read_text().splitlines()
    assert len(report) == 71
    assert len(specs.calls) == 1


def test_a_resumed_spec_ends_the_same(specs):
    whole = manyfit.train(specs.config("whole"), ["train.every.checkpoint=1ba"], callbacks=[])
    place = specs.config("again")
    for epochs in (1, 2, 3):
        manyfit.train(place, [f"train.epochs={epochs}", "train.every.checkpoint=1ba"], callbacks=[])
    assert_same(whole.folder, place)


@pytest.mark.parametrize(
    ("on", "workers"), [pytest.param("inline", 1, marks=pytest.mark.soak), ("processes", 2)]
)
def test_a_spec_hops_as_it_trains_alone(specs, on, workers):
    specs.config(shards=3)
    manyfit.sweep(specs.study(hop=True, on=on, workers=workers), progress=False)
    calls = specs.calls
    assert len(set(calls)) == len(calls) == workers
    for trial in sorted((specs.folder / "trials").iterdir()):
        specs.project.write(f"runs/{trial.name}/config.yaml", (trial / "config.yaml").read_text())
        manyfit.train(specs.root / "runs" / trial.name, callbacks=[])
        assert_same(trial, specs.root / "runs" / trial.name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def train(self, model_object, minibatch, hyperparams, device)", "def train(self, model, batch)",
         r"expected: train\(self, model_object, minibatch, hyperparams, device\)"),
        ("def create_model_components", "def create_model_component",
         r"needs a method create_model_components\(self, hyperparams\); did you mean 'create_model_component'"),
        ('"optimizer": torch', '"optim": torch', "with the key 'optimizer'"),
        ("return model_object, {", "return {", r"train must return \(model_object, metrics\)"),
        ("x, y = minibatch\n        optimizer", "x, y = minibatch\n        x = x[:, :3]\n        optimizer", "mat1 and mat2"),
        ("return {\n            \"loss\": sum", "return [1, 2, 3]\n        return {\n            \"loss\": sum",
         "metrics_agg must return numbers by name"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_training(specs, old, new, message):
    path = specs.root / "src" / "specs.py"
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new))
    specs.config()
    with pytest.raises(ManyfitError, match=message):
        manyfit.train(specs.root / "runs" / "a", callbacks=[])


def test_the_batch_size_comes_from_the_hyperparameters(specs):
    with pytest.raises(ManyfitError, match=r"hyperparams.batch_size is 16, but data.batch_size is 8"):
        manyfit.train(specs.config(batch_size=8), callbacks=[])


def test_an_older_name_and_a_pair_of_tensors_are_accepted(specs, caplog):
    path = specs.root / "src" / "specs.py"
    text = path.read_text().replace("def valtest", "def val_test")
    start = text.index('        return {\n            "loss": sum')
    pair = "        import torch\n        return torch.tensor(metrics['loss']).mean(), torch.tensor(0.5)\n"
    path.write_text(text[:start] + pair)
    specs.config()
    found = manyfit.train(specs.root / "runs" / "a", ["export.metric=val_correct"], callbacks=[])
    rows = RunFolder(found.folder).events()
    assert rows[-1].values["val_correct"] == 0.5
    assert caplog.text.count("metrics_agg returns a pair of tensors") == 1
