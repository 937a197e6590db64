"""Hyperparameters against metrics."""

from __future__ import annotations

import json

import pytest

import manyfit
from manyfit.core.errors import UsageError

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
    with pytest.raises(UsageError, match="no trial has a metric named 'val_los'"):
        study.plot_effects("val_los")
