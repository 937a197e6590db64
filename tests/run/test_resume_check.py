"""Which changes of config, data and code may resume a run."""

import sys

import pytest

import manyfit
from manyfit.core.errors import RunConflict


def test_a_split_that_is_gone(project):
    manyfit.train("runs/a", callbacks=[])
    text = (project.src / "points.py").read_text()
    changed = text.replace(
        "        offset =", "        if split == 'test':\n            return None\n        offset ="
    )
    (project.src / "points.py").write_text(changed)
    sys.modules.pop("points")
    with pytest.raises(RunConflict, match=r"data .* has changed since it was trained: test"):
        manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])
    manyfit.train("runs/a", ["train.epochs=3"], callbacks=[], allow_change=["data", "code"])
    assert not (project.run / "reports/test.csv").exists()


def test_changed_code_is_not_evaluated_as_if_it_had_trained(project, cli):
    manyfit.train("runs/a", callbacks=[])
    before = (project.run / "reports/test.csv").read_bytes()
    file = project.src / "models.py"
    file.write_text(file.read_text().replace("nn.ReLU()", "nn.Tanh()"))
    sys.modules.pop("models")
    for verb in ("evaluate", "export", "predict"):
        answer = cli(verb, "runs/a")
        assert answer.code == 2
        assert "--allow-change code.models" in answer.err
    assert (project.run / "reports/test.csv").read_bytes() == before
    assert cli("evaluate", "runs/a", "--allow-change", "code").code == 0
