"""Fields of a config that contradict each other."""

import pytest
from tests.config.mistakes import check_mistake, swap, verbs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train__groups": [{"match": "bias", "options": {"learning_rate": 1}}]}, "the optimizer has no such option"),
        ({"train__groups": [{"match": "bias", "options": {"wight_decay": 1}}]}, "did you mean: weight_decay"),
        ({"export": {"metric": "val_accuracy"}}, "higher values of 'val_accuracy' are better"),
        ({"train__stop": {"metric": "val_accuracy", "patience": "2ep"}}, "higher values of 'val_accuracy' are better"),
        ({"train__stop": {"patience": "0ep"}}, "patience must not be zero"),
        ({"train__every": {"log": "3 epochs"}}, "such as 3ep, 0.5ep, 500ba or 90s"),
        ({"train__every": {"log": "9" * 5000 + "ba"}}, "such as 3ep"),
        ({"train__optimizer": {"class": "lbfgs"}, "train__clip_norm": 1.0}, "LBFGS"),
        ({"train__threads": 10**11}, "train.threads"),
    ],
)  # fmt: skip
def test_mistakes(project, cli, changes, says):
    project.config(
        {
            **project.changed(**{k: v for k, v in changes.items() if "__" in k}),
            **{k: v for k, v in changes.items() if "__" not in k},
        }
    )
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert says in answer.err
    assert "bug in manyfit" not in answer.err


MISTAKES = [
    swap(
        "metric that nobody measures",
        "metric: val_loss",
        "metric: val_acuracy",
        13,
        "export.metric",
        "did you mean: val_accuracy",
    ),
    swap(
        "two metrics of one name",
        "metrics: [accuracy]",
        "metrics: [accuracy, accuracy]",
        9,
        "train.metrics.1",
        "distinct names",
    ),
    swap(
        "metric with the name of a column",
        "metrics: [accuracy]",
        "metrics: {loss: accuracy}",
        9,
        "train.metrics.loss",
    ),
]


@verbs
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake(mistake, verb, project, cli):
    check_mistake(mistake, verb, project, cli)
