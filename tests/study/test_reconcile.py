"""Reconciliation of the ledger with a changed study file, code and run folders."""

import json

from tests.study.points import points

from manyfit.report.leaderboard import leaderboard
from manyfit.study.executors.simulated import Simulated
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.status import status


def test_an_early_stop_is_remembered(lab):
    lab.project.config(
        lab.project.changed(train={**lab.project.changed()["train"], "stop": {"reach": 99.0}, "epochs": 5})
    )
    points(lab, 1, search__seeds=1)
    lab.sweep()
    assert "has reached" in lab.rows("select reason from trials")[0][0]
    with Ledger(lab.folder / "ledger.db") as ledger:
        (trial,) = ledger.trials.values()
        trial.state, trial.over, trial.reason = "running", False, ""
        ledger.save_trial(trial)
    lab.sweep()
    assert "has reached" in lab.rows("select reason from trials")[0][0]
    units = len(lab.rows("select unit from unit_trials"))
    lab.sweep()
    assert len(lab.rows("select unit from unit_trials")) == units


def test_more_seeds_leave_points_alone_that_were_given_up(lab):
    options = {"method": "grid", "seeds": 1, "stop": {"class": "halving", "factor": 2}}
    points(lab, 6, search=options, set={"train.epochs": 4})
    lab.execute(lambda *_: Simulated(1, epochs=4))
    assert len(leaderboard(lab.folder).rows) == 6
    points(lab, 6, search={**options, "seeds": 2}, set={"train.epochs": 4})
    lab.execute(lambda *_: Simulated(1, epochs=4))
    assert len(leaderboard(lab.folder).rows) == 6
    assert status(lab.folder)["state"] == "finished"


def test_a_stopper_that_compares_what_was_not_measured_is_refused(lab, cli):
    lab.write(
        search={"method": "grid", "stop": "halving"}, set={"train.every.validate": "2ep", "train.epochs": 6}
    )
    said = cli("sweep", lab.folder)
    assert said.code == 2 and "validated only every 2ep" in said.err


def test_another_objective_has_its_own_values(lab):
    points(lab, 3, search__seeds=1)
    lab.sweep()
    points(lab, 3, search__seeds=1, objective={"metric": "val_accuracy", "mode": "max"})
    found = lab.sweep()
    logged = {p.number: max(row["val_accuracy"] for row in lab.log(p.folders[3].name)) for p in found.points}
    assert {p.number: p.value for p in found.points} == logged
    assert found.best.value == max(logged.values())
    assert json.loads((lab.folder / "best" / "best.json").read_text())["metric"] == "val_accuracy"


def test_changed_code_is_refused(lab, cli):
    points(lab, 2, search__seeds=1)
    lab.sweep()
    text = (lab.project.src / "models.py").read_text()
    (lab.project.src / "models.py").write_text(text.replace("nn.ReLU()", "nn.Tanh()"))
    points(lab, 2, search__seeds=2)
    said = cli("sweep", lab.folder)
    assert said.code == 2 and "the code of" in said.err and "--allow-change code" in said.err
    assert cli("sweep", lab.folder, "--allow-change", "code").code == 0
    assert cli("sweep", lab.folder).code == 0  # from now on that is the code
