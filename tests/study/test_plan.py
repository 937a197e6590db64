"""The plan of a study: points that are known and checked before training."""

import numpy as np
import pytest

from manyfit.config.study.study import load_study
from manyfit.study.drive.commands import leave_command
from manyfit.study.search.plan import plan_study


def test_conditions_on_sub_configurations_are_probed(lab):
    lab.write(
        search={"method": "tpe", "trials": 3},
        space={
            "train.optimizer": [{"class": "adamw", "lr": 0.01}, {"class": "sgd", "lr": 0.1}],
            "train.optimizer.momentum": {"linear": [0.1, 0.9], "when": {"train.optimizer.class": "sgd"}},
            "model.hidden": {"int": [4, 64], "step": 4},
            "constraints": ["train.optimizer.momentum <= 0.95", "model.hidden < 64"],
        },
    )
    assert plan_study(load_study(lab.folder)).planned == 3
    lab.sweep()
    leave_command(
        lab.folder, "add", None, {"train.optimizer": {"class": "adamw", "lr": 0.02}, "model.hidden": 7}
    )
    assert (
        len(lab.sweep("search.trials=5").points) == 6
    )  # one that is off the grid does not trouble the sampler


def test_from_a_grid_to_a_search_and_back(lab):
    lab.write(search={"method": "grid", "seeds": 1}, space={"model.hidden": [4, 8]})
    lab.sweep()
    steps = lab.steps()
    lab.write(search={"method": "tpe", "trials": 2, "seeds": 1}, space={"model.hidden": [4, 8]})
    assert len(lab.sweep().ranked) == 2 and lab.steps() == steps
    lab.write(search={"method": "grid", "seeds": 1}, space={"model.hidden": [4, 8]})
    assert len(lab.sweep().ranked) == 2 and lab.steps() == steps


def test_constraints_that_come_later_count(lab):
    lab.write(search={"method": "random", "trials": 6}, space={"model.hidden": {"int": [2, 60]}})
    lab.sweep()
    lab.write(
        search={"method": "random", "trials": 6},
        space={"model.hidden": {"int": [2, 60]}, "constraints": ["model.hidden > 30"]},
    )
    found = lab.sweep()
    assert len(found.points) == 6 and all(p.values["model.hidden"] > 30 for p in found.points)


@pytest.mark.parametrize(
    ("space", "method", "says"),
    [
        ({"model.hidden": {"int": [1, 10**20]}}, "grid", "too large"),
        ({"train.optimizer.lr": {"linear": [0, 1], "step": 1e-9}}, "grid", "1,000,000,000 points or more"),
        (
            {"model.hidden": {"int": [1, 1000]}, "train.optimizer.lr": {"linear": [0.1, 1], "points": 5000}},
            "grid",
            "points or more",
        ),
        ({"model.hidden": {"int": [1, 9]}, "constraints": ["model.hidden > 10"]}, "tpe", "constraints"),
        (
            {"model.hidden": {"int": [1, 9]}, "constraints": ["model.hidden > 'x'"]},
            "tpe",
            "space.constraints",
        ),
        (
            {"model.hidden": {"int": [1, 9]}, "constraints": ["'a' * 10 > model.hidden"]},
            "grid",
            "is not a number",
        ),
        ({"model.hidden": {"int": [1, 9]}}, "cma_es", "cmaes"),
    ],
)
def test_spaces_that_cannot_be_searched(lab, cli, space, method, says):
    lab.write(space=space, search={"method": method, "trials": 3} if method != "grid" else {"method": "grid"})
    said = cli("sweep", lab.folder)
    assert said.code == 2 and says in said.err and "Traceback" not in said.err


def test_random_draws_of_two_axes_are_not_correlated(lab):
    axes = ["train.optimizer.lr", "train.optimizer.weight_decay"]
    lab.write(
        search={"method": "random", "trials": 200}, space={axis: {"log": [1e-4, 1e-1]} for axis in axes}
    )
    drawn = [[np.log(c.values[axis]) for axis in axes] for c in plan_study(load_study(lab.folder)).candidates]
    assert len(drawn) == 200
    assert abs(np.corrcoef(np.array(drawn).T)[0, 1]) < 0.2


def test_rows_of_splits_are_compared_once(lab, monkeypatch):
    """A study rehearses a point for each value, and all of them have the same rows."""
    from manyfit.data import overlap

    read, sample = [], overlap.sample_contents

    def count(source):
        read.append(source)
        return sample(source)

    monkeypatch.setattr(overlap, "sample_contents", count)
    lab.write(space={"train.optimizer.lr": [0.001, 0.003, 0.01, 0.03]}, search__seeds=1)
    assert not lab.sweep().failures
    assert len(read) == 3  # the training rows, and those of two other splits
