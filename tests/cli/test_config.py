"""`manyfit config check` with JSON output."""

from tests.config.mistakes import BASE


def test_as_json(project, cli):
    import json

    project.write("runs/a/config.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    answer = cli("config", "check", "runs/a", "--json")
    assert answer.code == 2
    problem = next(p for p in json.loads(answer.out)["problems"] if p["key"] == "train.epoch")
    assert (problem["file"], problem["line"], problem["suggestion"]) == ("runs/a/config.yaml", 7, "epochs")
