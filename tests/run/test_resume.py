"""Runs that are cut short resume exactly, whatever form their model and data have."""

import numpy as np
import pytest
from tests.run.cut import resumes
from tests.run.forms import OWN, falls

import manyfit


@pytest.mark.parametrize(
    "changes",
    [
        {**OWN, "model": {"class": "forms.WithLoss", "hidden": 8}},
        {**OWN, "model": {"class": "forms.WithRowLoss", "hidden": 8}},
        {"model": {"class": "forms.Pair"}, "train__optimizer": {"encoder": {"class": "adam", "lr": 0.01}, "decoder": {"class": "sgd", "lr": 0.1}},
         "train__scheduler": {"decoder": {"class": "step", "step_size": 3}}},
        {"model": {"class": "forms.ByName", "hidden": 8}, "data": {"class": "sets.Named", "unused": ["extra"]}},
        {"data": {"class": "sets.Weighted"}},
        {"data": {"class": "sets.Plain"}},
        {"data": {"class": "sets.Generated"}},
        {"train__groups": [{"match": "bias$", "options": {"weight_decay": 0.0}}, {"match": r"layers\.1", "options": {"lr": 0.1}}]},
        {"train__freeze": [{"up_to": "layers.1", "epochs": 1}]},
        {"train__freeze": ["layers.1.bias"], "train__ema": 0.8},
        {"train__precision": "bf16", "train__accumulate": 4},
        {"train__precision": "fp16", "train__clip_norm": 0.1},
        {"train__class_weights": "balanced", "data": {"class": "sets.Unbalanced"}},
        {"train__metrics": ["accuracy", {"class": "torchmetrics.F1Score", "task": "multiclass", "num_classes": 10, "average": "macro"}]},
        {"train__every": {"log": "3ba", "validate": "0.5ep", "checkpoint": "5ba"}, "model__dropout": 0.3},
        {"train__optimizer": {"class": "sgd", "lr": 0.1, "momentum": 0.9, "fused": True}, "train__scheduler": {"class": "plateau", "patience": 0}},
    ],
    ids=["own loss", "own row losses", "two optimizers", "by name", "weights", "dataset", "generator", "groups", "thaws", "frozen, averaged",
         "bf16", "fp16", "class weights", "torchmetrics", "cadence", "plateau"],
)  # fmt: skip
def test_a_form_trains_and_resumes(forms, changes):
    if "torchmetrics" in str(changes):
        pytest.importorskip("torchmetrics")
    assert falls(resumes(forms, forms.changed(**{"train__epochs": 4, **changes})))


@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.soak) for step in (4, 8, 14))])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"class": "forms.Noisy"}},
        {"data": {"class": "sets.Drawn"}},
        {"model": {"class": "forms.Noisy"}, "train__every": {"validate": "0.5ep", "checkpoint": "3ba"}},
    ],
    ids=["model", "source", "in the middle"],
)
def test_whoever_draws_at_random_resumes_exactly(forms, changes, step):
    """Between epochs, in the middle of one, and where a run is evaluated again."""
    result = resumes(forms, forms.changed(**{"train__epochs": 4, **changes}), step)
    before = (result.folder / "reports/test.csv").read_bytes()
    np.random.seed(1)
    manyfit.evaluate(result.folder, "test")
    assert (result.folder / "reports/test.csv").read_bytes() == before


@pytest.mark.parametrize("model", ["forms.Tied", "forms.Strided"])
@pytest.mark.parametrize("every", ["2ba", "auto"])
def test_weights_that_share_memory_or_are_strided(forms, model, every):
    tree = forms.changed(model={"class": model}, train__epochs=4, train__every={"checkpoint": every})
    assert falls(resumes(forms, tree))
