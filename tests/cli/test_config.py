"""`manyfit config check` with JSON output."""

import json
import re
from pathlib import Path

from tests.config.mistakes import BASE

from manyfit.config.tree.layers import Reader
from manyfit.config.tree.nodes import plain


def test_as_json(project, cli):
    project.write("runs/a/config.yaml", BASE.replace("epochs: 2", "epoch: 2"))
    answer = cli("config", "check", "runs/a", "--json")
    assert answer.code == 2
    problem = next(p for p in json.loads(answer.out)["problems"] if p["key"] == "train.epoch")
    assert (problem["file"], problem["line"], problem["suggestion"]) == ("runs/a/config.yaml", 7, "epochs")


STUDIES = sorted(Path(__file__).parents[2].glob("examples/*/studies/*/study.yaml"))


def test_a_schema_of_study_files(project, cli):
    """Those of the examples and of the page about studies are valid, and mistakes are not."""
    import jsonschema

    project.config(project.changed())
    schemas = [json.loads(cli("config", "schema", "--study", *run).out) for run in ([], ["runs/a"])]
    page = (Path(__file__).parents[2] / "docs/studies.md").read_text()
    texts = [file.read_text() for file in STUDIES] + re.findall(
        r'title="\S+/study.yaml"\n(.*?)```', page, re.DOTALL
    )
    assert len(texts) > 4
    for schema in schemas:
        check = jsonschema.Draft202012Validator(schema)
        check.check_schema(schema)
        for text in texts:
            file = project.write("studies/s/study.yaml", text)
            tree = plain(Reader([]).read(file))
            assert not list(check.iter_errors(tree)), text
        good = {"base": "a.yaml", "objective": {"metric": "val_loss", "mode": "min"}, "search": {"method": "grid"},
                "space": {"seed": [1, 2]}}  # fmt: skip
        assert not list(check.iter_errors(good))
        for wrong in (
            {"space": {"train.optimizer.lr": {"lgo": [1, 2]}}},
            {"search": {"method": "grid", "trails": 3}},
            {"objective": {"metric": "val_loss", "mode": "least"}},
            {"serach": {}},
            {"space": {"train.epochs": 3}},
        ):
            assert list(check.iter_errors({**good, **wrong})), wrong
    assert "model.hidden" in schemas[1]["properties"]["space"]["properties"]
