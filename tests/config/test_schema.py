"""The sections of the config of a run."""

import pytest


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
