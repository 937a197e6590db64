"""Loading a config: missing files, and all problems together."""

import pytest
from tests.config.mistakes import BASE


def test_every_mistake_is_reported_at_once(project, cli):
    text = (
        BASE.replace("hidden: 8", "hiden: 2.5").replace("epochs: 2", "epochs: -1").replace("adamw", "adamv")
    )
    project.write("runs/a/config.yaml", text.replace("seed: 3", "seed: ${sed}"))
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert "4 problems" in answer.err
    for line in (3, 5, 7, 11):
        assert f"runs/a/config.yaml:{line}: " in answer.err


@pytest.mark.parametrize(
    "words", [["train", "runs/b"], ["config", "show", "runs/b"], ["train", "nowhere/x.yaml"]]
)
def test_a_missing_run(project, cli, words):
    answer = cli(*words)
    assert answer.code == 2
    assert "no such config" in answer.err
    assert not (project.root / "runs/b").exists()


def test_a_name_that_no_file_can_have(project, cli):
    from manyfit import ConfigError, load_config

    answer = cli("train", "x" * 5000)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    with pytest.raises(ConfigError, match="not a valid path of a config"):
        load_config("a\0b")


def test_a_missing_run_is_guessed(project, cli):
    project.write("runs/digits-mlp/config.yaml", BASE)
    assert "did you mean: runs/digits-mlp" in cli("train", "runs/digit-mlp").err
