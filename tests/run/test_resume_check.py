"""Which changes of config, data and code may resume a run."""

import json
import sys

import pytest

import manyfit
from manyfit.core.errors import RunConflict
from manyfit.learn.torch.launching import Launching
from manyfit.run.resume_proof import Probe


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


def test_changes_that_are_named_may_go_on(project, cli):
    cli("train", "runs/a")
    refused = cli("train", "runs/a", "model.dropout=0.5", "train.epochs=3")
    assert refused.code == 2
    assert "--allow-change model.dropout" in refused.err
    answer = cli("train", "runs/a", "model.dropout=0.5", "train.epochs=3", "--allow-change", "model.dropout")
    assert answer.code == 0
    assert cli("train", "runs/a", "model.dropout=0.5", "train.epochs=4").code == 0, (
        "it is the run's own value now"
    )
    sessions = json.loads((project.run / "provenance.json").read_text())["sessions"]
    assert sessions[1]["allowed_changes"] == ["model.dropout"]


def test_changed_code_is_noticed_and_comments_are_not(project):
    import sys

    manyfit.train("runs/a", callbacks=[])
    file = project.src / "models.py"
    text = file.read_text()

    def train(epochs, **options):
        sys.modules.pop("models")
        return manyfit.train("runs/a", [f"train.epochs={epochs}"], callbacks=[], **options)

    file.write_text(text.replace("class MLP", "# a comment\nclass MLP") + "\n\n# another\n")
    assert train(3).step == 12
    file.write_text(text.replace("nn.ReLU()", "nn.Tanh()"))
    with pytest.raises(RunConflict, match=r"code .* has changed since it was trained: models") as caught:
        train(4)
    assert "--allow-change code.models" in str(caught.value)
    assert train(4, allow_change=["code.models"]).step == 16
    assert train(5).step == 20


def test_a_schedule_is_trained_past_its_end_if_that_is_asked_for(project):
    tree = project.changed(train__scheduler={"class": "one_cycle", "max_lr": 0.1})
    manyfit.train(tree, folder="runs/b", callbacks=[])
    with pytest.raises(RunConflict, match=r"--allow-change train\.horizon"):
        manyfit.train(tree, ["train.epochs=4"], folder="runs/b", callbacks=[])
    result = manyfit.train(
        tree, ["train.epochs=4"], folder="runs/b", callbacks=[], allow_change=["train.horizon"]
    )
    rates = [e.values["lr"] for e in result.history]
    assert rates[1] == rates[2] == rates[3] or rates[2] == rates[3] < rates[1]


def test_the_rows_of_launched_steps_are_traced(project, monkeypatch, tmp_path):
    """They are read before they are launched, and `check --resume` sees the same ones."""
    found = []
    for is_launched in (False, True):
        monkeypatch.setattr(Launching, "is_wanted", lambda self, device, it=is_launched: it)
        trace = tmp_path / f"{is_launched}.trace"
        probe = Probe(trace, None)
        manyfit.train("runs/a", ["train.epochs=2"], folder=tmp_path / f"{is_launched}", callbacks=[probe])
        found.append(([json.loads(line) for line in trace.read_text().splitlines()], probe._counts))
    assert found[0] == found[1]
    assert {"step", "validation", "epoch"} <= found[0][1].keys()


def test_a_compiled_run_is_checked(project, cli):
    answer = cli("check", "--resume", project.run, "train.compile=default")
    assert answer.code == 0 and "not compiled" not in answer.err, answer.err
    assert answer.out.count("killed in validation batch") == 2
