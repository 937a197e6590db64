"""What a study is asked to search has an effect, can be built, and is shown as it was."""

from __future__ import annotations

import pytest

from manyfit.config.study.study import load_study
from manyfit.core.errors import ComponentFailed, ConfigError
from manyfit.report.leaderboard import leaderboard, leaderboard_cells
from manyfit.study.dry_run import dry_run
from manyfit.study.search.plan import covering, plan_study
from manyfit.study.work.points import Candidate

ONE_CYCLE = {"class": "one_cycle", "max_lr": 0.1}


def test_a_searched_rate_that_a_schedule_overrides_is_said_before_the_study_starts(lab, caplog):
    lab.project.config(lab.project.changed(train__scheduler=ONE_CYCLE))
    plan_study(load_study(lab.folder))
    assert "train.optimizer.lr has no effect: OneCycleLR sets the rate by its own max_lr" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"train__scheduler": {"class": "one_cycle"}},
        {"train__scheduler": "cosine"},
        {"train__scheduler": ONE_CYCLE, "train__optimizer": {"class": "adamw", "weight_decay": 0.1}},
    ],
)
def test_nothing_is_said_of_a_rate_that_has_an_effect_or_is_not_given(lab, caplog, changes):
    lab.project.config(lab.project.changed(**changes))
    lab.write(space={"model.hidden": [4, 8]})
    plan_study(load_study(lab.folder))
    assert "no effect" not in caplog.text


@pytest.mark.parametrize(
    "space",
    [
        {"model.dropout": [0.1, 1.5], "model.hidden": [4, 8]},
        {"train.optimizer.lr": [0.1, -0.1]},
        {"model.dropout": {"linear": [0.0, 1.5]}},
    ],
)
@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
def test_a_value_that_cannot_work_is_found_before_anything_is_trained(lab, space, method):
    if "linear" in str(space) and method == "grid":
        space = {"model.dropout": {"linear": [0.0, 1.5], "points": 4}}
    lab.write(space=space, search={"method": method, "trials": None if method == "grid" else 12, "seeds": 1})
    with pytest.raises(ComponentFailed, match=r"nothing was started|cannot be trained") as error:
        lab.sweep()
    assert "1.5" in str(error.value) or "-0.1" in str(error.value) or "dropout" in str(error.value)
    with pytest.raises(ComponentFailed):
        dry_run(lab.folder)


def test_few_points_hold_every_option(lab):
    lab.write(space={"model.dropout": [0.1, 0.2, 0.3], "train.optimizer.class": ["sgd", "adam"]})
    study = load_study(lab.folder)
    found = plan_study(study)
    built = list(found.structures.values())
    for key in study.space.keys:
        assert {c.values[key] for c in built} == {c.values[key] for c in found.candidates}
    assert len(built) < 6


def test_a_grid_of_many_rates_is_tried_out_with_two_of_them(lab):
    rates = [0.01, *(0.001 * 1.1**i for i in range(64))]
    lab.write(space={"train.optimizer.lr": rates}, search={"method": "grid", "seeds": 1})
    tried = {c.values["train.optimizer.lr"] for c in plan_study(load_study(lab.folder)).structures.values()}
    assert tried == {0.01, min(rates), max(rates)}  # the first one is that of the structure


def test_the_ends_of_a_range_are_those_that_are_drawn(lab):
    lab.write(space={"model.dropout": {"linear": [0.0, 0.9]}}, search={"method": "random", "trials": 9})
    study = load_study(lab.folder)
    drawn = [Candidate(str(i), {"model.dropout": i / 10}, "asked", attrs={}) for i in range(9)]
    chosen = covering(study.space.axes, drawn, drawn[3:4])
    assert sorted(c.id for c in chosen) == ["0", "8"]


def test_a_replaced_model_does_not_have_the_parameters_of_the_base(lab):
    lab.project.config(lab.project.changed(model={"class": "models.Inherits", "depth": 3}))
    lab.write(
        space={
            "model": [{"class": "models.MLP"}, {"class": "models.Inherits", "depth": 2}],
            "model.depth": {"values": [4, 5], "when": {"model.class": "models.Inherits"}},
        },
        search={"method": "grid", "seeds": 1},
    )
    lab.sweep()
    header, body = leaderboard_cells(leaderboard(lab.folder))
    column = header.index("depth")
    model = header.index("model")
    shown = {(row[model].split()[0], row[column]) for row in body}
    assert shown == {("models.MLP", "–"), ("models.Inherits", "4"), ("models.Inherits", "5")}


def test_classes_with_other_parameters_are_refused_with_the_way_that_works(lab):
    lab.project.config(lab.project.changed(model={"class": "models.Inherits", "depth": 3}))
    lab.write(space={"model.class": ["models.Inherits", "models.MLP"]})
    with pytest.raises(ConfigError) as error:
        plan_study(load_study(lab.folder))
    assert "choose classes with their parameters: model: [{class: …, depth: …}, {class: …}]" in str(
        error.value
    )
