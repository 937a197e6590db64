"""Early stopping, and losses that end a run."""

import pytest

import manyfit
from manyfit.core.errors import RunFailed
from manyfit.learn.torch.launching import Launching
from manyfit.store.folder import RunFolder


@pytest.fixture(autouse=True, params=[False, True], ids=["alone", "launched"])
def is_launched(request, monkeypatch):
    """On a GPU, steps of a run are launched together."""
    monkeypatch.setattr(Launching, "is_wanted", lambda self, device: request.param)


def test_a_run_stops_early_and_goes_on_when_one_is_more_patient(project):
    tree = project.changed(train__epochs=30, train__optimizer={"class": "sgd", "lr": 1e-9})
    tree["train"]["stop"] = {"metric": "val_loss", "patience": "2ep", "min_delta": 0.5}
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    assert result.step == 12
    assert "has not been better" in result.summary["stopped"]
    assert RunFolder(result.folder).state() == "finished"
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).trained_steps == 0
    tree["train"]["stop"]["patience"] = "4ep"
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 20
    tree["train"]["stop"] = {"metric": "val_accuracy", "mode": "max", "reach": 0.0}
    assert "has reached" in manyfit.train(tree, folder="runs/c", callbacks=[]).summary["stopped"]


def test_a_loss_that_is_not_a_number_fails_the_run(forms, cli):
    forms.config(forms.changed(train__loss="forms.not_a_number"))
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "train_loss is nan at step 4" in answer.err
    run = RunFolder(forms.run)
    assert run.state() == "failed"
    assert run.failure()["kind"] == "not a number"
    assert "failed" in cli("list").out
    assert "not a number" in cli("show", "runs/a").out
    forms.config(forms.changed())
    assert cli("train", "runs/a").code == 0, "no checkpoint: the run may be started with another loss"
    assert run.state() == "finished"


def test_a_run_that_diverges(project):
    tree = project.changed(train__epochs=20, train__optimizer={"class": "sgd", "lr": 50.0})
    tree["train"]["guard"] = {"divergence": 2.0}
    with pytest.raises(RunFailed, match="more than 2 times the lowest"):
        manyfit.train(tree, folder="runs/b", callbacks=[])
    assert RunFolder(project.root / "runs/b").failure()["kind"] == "diverged"
