"""Hyperparameters against metrics."""

from __future__ import annotations

import json

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import UsageError
from manyfit.report.effects import Effect

SPACE = {
    "train.optimizer.lr": {"log": [1e-4, 1e-1]},
    "model.hidden": {"int": [4, 40]},
    "data.batch_size": [16, 32],
    "train.optimizer": None,
}


@pytest.fixture
def study(project):
    project.config(project.changed())
    space = {key: value for key, value in SPACE.items() if value}
    return manyfit.sweep(
        {
            "base": "runs/a/config.yaml",
            "objective": {"metric": "val_loss", "mode": "min"},
            "set": {"train.epochs": 1},
            "search": {"method": "random", "trials": 8},
            "space": space,
        },
        folder="studies/s",
        progress=False,
    )


def test_values_are_told_apart_and_in_order():
    x = [{"class": "a.Net"}, {"class": "b.Net"}, 128, 64, True, None]
    effect = Effect("model", "val_loss", x, np.arange(6.0))
    assert list(effect.by_value()) == [
        "64",
        "128",
        "None",
        "True",
        '{"class": "a.Net"}',
        '{"class": "b.Net"}',
    ]
    assert [values.tolist() for values in effect.by_value().values()] == [[3], [2], [5], [4], [0], [1]]


def test_an_ablation_has_the_values_of_the_base(project, cli):
    project.config(project.changed())
    study = manyfit.sweep(
        {
            "base": "runs/a/config.yaml",
            "objective": {"metric": "val_loss", "mode": "min"},
            "set": {"train.epochs": 1},
            "search": {"method": "grid", "folds": 2},
            "space": {"ablate": {"model.hidden": 4, "data.batch_size": 24}},
        },
        folder="studies/b",
        progress=False,
    )
    found = {each.key: each for each in study.plot_effects("val_loss").effects}
    assert {key: len(each.y) for key, each in found.items()} == {"model.hidden": 6, "data.batch_size": 6}
    frame = study.frame()
    assert sorted(set(zip(frame.seed, frame.fold, strict=True))) == [(3, 0), (3, 1)]


def test_every_hyperparameter_against_every_metric(study, cli, tmp_path):
    figure = study.plot_effects()
    assert {each.key for each in figure.effects} == set(SPACE) - {"train.optimizer"}
    assert figure.effects[0].metric == "val_loss"
    lr = figure.effects[0]
    assert lr.is_log and len(lr.y) == 8
    slope, intercept, share = lr.fit()
    rest = ((lr.y - slope * lr.places - intercept) ** 2).sum() / ((lr.y - lr.y.mean()) ** 2).sum()
    assert share == pytest.approx(1 - rest)
    size = next(each for each in figure.effects if each.key == "data.batch_size")
    assert not size.is_number and sum(map(len, size.by_value().values())) == 8
    for name in ("effects.png", "effects.svg"):
        assert figure.save(tmp_path / name).stat().st_size > 5000
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert cli("study", "effects", "studies/s", "-o", tmp_path / "e.txt").code == 2
    answer = cli("study", "effects", "studies/s")
    assert "per a factor of 10, explains" in answer.out
    shown = json.loads(cli("study", "effects", "studies/s", "-m", "val_loss", "--json").out)
    assert [row["metric"] for row in shown] == ["val_loss"] * 3
    assert shown[0]["slope"] == pytest.approx(slope) and set(shown[2]["means"]) == {"16", "32"}
    with pytest.raises(UsageError, match="no trial has a metric named 'val_los'"):
        study.plot_effects("val_los")
