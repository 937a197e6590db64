"""The sections of the config of a run."""

import pytest
from tests.config.mistakes import check_mistake, swap, verbs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train__every": {"validate": "5s"}}, "measured at time intervals"),
        ({"train__every": {"validate": "0ep"}}, "more than 0"),
        ({"train__every": {"validate": "5 ep"}}, "train.every.validate"),
        ({"train__every": {"log": "5m"}}, "train.every.log"),
        ({"train__stop": {"metric": "val_loss"}}, "this never stops a run"),
        ({"train__stop": {"metric": "val_los", "patience": "1ep"}}, "did you mean: val_loss"),
        ({"train__stop": {"metric": "val_loss", "patience": "9s"}}, "patience cannot be in seconds"),
        ({"train__groups": [{"match": "("}]}, "invalid regular expression"),
        ({"train__freeze": [{"epochs": 2}]}, "either match or up_to"),
        ({"train__precision": "fp8"}, "one of"),
        ({"train__capture": "off", "train__compile": "default"}, "which train.capture: off excludes"),
        ({"train__ema": 1.5}, "train.ema"),
        ({"train__accumulate": 0}, "train.accumulate"),
        ({"train__scheduler": {"a": {"class": "step", "step_size": 1}}}, "no optimizer of this name"),
    ],
)  # fmt: skip
def test_mistakes(project, cli, changes, says):
    project.config(project.changed(**changes))
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert says in answer.err


MISTAKES = [
    swap("typo in a section", "export:", "exprot:", 13, "exprot", "did you mean: export"),
    swap("typo in a key of a section", "epochs: 2", "epoch: 2", 7, "train.epoch", "did you mean: epochs"),
    swap("derived value", "epochs: 2", "epochs: 2\n  horizon: 3", 8, "train.horizon", "derived"),
    swap(
        "missing section",
        "model: {class: models.MLP, hidden: 8}\n",
        "",
        1,
        "model",
        "requires the parameter 'model'",
    ),
    swap("missing required key", "  loss: cross_entropy\n", "", 6, "train.loss", "cross_entropy"),
    swap("unknown device", "epochs: 2", "epochs: 2\n  device: gpu", 8, "train.device", "'gpu'"),
    swap(
        "section with the name of an attribute",
        "seed: 3",
        "seed: 3\nproject: {class: models.Head, width: 1}",
        4,
        "project",
        "attribute",
    ),
    swap(
        "section without a class", "seed: 3", "seed: 3\nnotes: {a: 1}", 4, "notes", "a mapping with `class`"
    ),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)
