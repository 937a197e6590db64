"""What readers and attackers have found, each with the scenario that showed it."""

import json
import sqlite3
from dataclasses import replace

import pytest

from manyfit.config.study.study import load_study
from manyfit.core.errors import Interrupted
from manyfit.report.leaderboard import leaderboard
from manyfit.report.replicates import compare_seeds, mean_of, t_probability, t_quantile
from manyfit.study.drive.commands import leave_command
from manyfit.study.drive.driver import StudyStopped
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.simulated import Simulated
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.plan import plan_study
from manyfit.study.status import status
from manyfit.study.work.units import Failure, Outcome


class Several(Simulated):
    """Answers for all units that are running at once."""

    def wait(self, timeout=None, wake=()):
        found = super().wait(timeout, wake)
        while self._busy:
            found += super().wait(timeout, wake)
        return found


def points(lab, count=3, **options):
    lab.write(space={"train.optimizer.lr": {"linear": [0.1, 1.0], "points": count}}, **options)


def test_several_failures_at_once_do_not_hang_a_study(lab):
    points(lab, 4, search__seeds=1)
    bad = Failure("user error", "everywhere")
    with pytest.raises(StudyStopped, match="the first trial failed"):
        lab.execute(lambda *_: Several(4, epochs=2, failure=lambda trial: bad))
    assert {row[0] for row in lab.rows("select state from trials")} <= {"waiting", "failed"}


class Dying(Inline):
    """Its process dies after every epoch, as if somebody killed it each time."""

    isolates = True

    def wait(self, timeout=None, wake=()):
        if not self._waiting:
            return []
        unit = self._waiting[0]
        before = len(list(lab_checkpoints(unit)))
        found = super().wait(timeout, wake)
        if unit.purpose == "train" and found[0].epoch and len(list(lab_checkpoints(unit))) >= before:
            return [
                Outcome(o.trial, failure=Failure("infrastructure", "killed", process_died=True))
                for o in found
            ]
        return found


def lab_checkpoints(unit):
    from pathlib import Path

    return Path(unit.trials[0].folder).glob("checkpoints/step-*")


def test_a_process_that_dies_but_gets_further_is_forgiven(lab):
    """The run folder knows what was committed, although nobody could say so."""
    points(
        lab,
        1,
        search={"method": "grid", "seeds": 1, "stop": {"class": "patience", "epochs": 9}},
        set={"train.epochs": 5},
    )
    found = lab.execute(lambda study, work, watch, trials: Dying(work, watch), "execute.retries=1")
    rows = lab.rows("select step, deaths, state from trials")
    assert (
        rows[0][0] == 20 and found.points
    )  # all five epochs, although one death without a step is the limit


def test_a_best_that_could_not_be_evaluated_is_mended_later(lab, monkeypatch):
    points(lab, 2, search__seeds=1)
    import manyfit.run.trial as trial

    real = trial.finish
    monkeypatch.setattr(trial, "finish", lambda *a, **k: (_ for _ in ()).throw(OSError("no")))
    lab.sweep()
    assert not (lab.folder / "best").exists()
    monkeypatch.setattr(trial, "finish", real)
    lab.sweep()
    assert (lab.folder / "best" / "reports" / "test.csv").exists()


def test_a_point_that_was_stopped_goes_on_with_all_its_seeds(lab):
    points(lab, 2)
    lab.sweep(only=["0"])
    leave_command(lab.folder, "stop", 1)
    lab.sweep()
    assert [p.state for p in lab.sweep().points] == ["finished", "stopped"]
    leave_command(lab.folder, "resume", 1)
    found = lab.sweep()
    assert [p.state for p in found.points] == ["finished", "finished"] and not found.unfinished


def test_a_seed_that_failed_closes_its_point(lab):
    points(lab, 3, search={"method": "grid", "seeds": 2, "stop": "halving"}, set={"train.epochs": 4})

    def failing(trial):
        return (
            Failure("not a number", "nan")
            if trial.seed == 4 and trial.values["train.optimizer.lr"] == 1.0
            else None
        )

    found = lab.execute(lambda *_: Simulated(2, epochs=4, failure=failing))
    assert [p.state for p in found.points].count("failed") == 1
    assert status(lab.folder)["state"] == "finished"


def test_conditions_on_sub_configurations_are_probed(lab):
    lab.write(
        search={"method": "tpe", "trials": 3},
        space={
            "train.optimizer": [{"class": "adamw", "lr": 0.01}, {"class": "sgd", "lr": 0.1}],
            "train.optimizer.momentum": {"linear": [0.1, 0.9], "when": {"train.optimizer.class": "sgd"}},
            "model.hidden": {"int": [4, 64], "step": 4},
            "constraints": ["train.optimizer.momentum <= 0.95", "model.hidden < 64"],
        },
    )
    assert plan_study(load_study(lab.folder)).planned == 3
    lab.sweep()
    leave_command(
        lab.folder, "add", None, {"train.optimizer": {"class": "adamw", "lr": 0.02}, "model.hidden": 7}
    )
    assert (
        len(lab.sweep("search.trials=5").points) == 6
    )  # one that is off the grid does not trouble the sampler


def test_code_that_always_asks_to_end_is_given_up(lab):
    points(lab, 1, search__seeds=1)

    def interrupted(unit, watch, tell):
        if unit.purpose == "train":
            raise Interrupted("again", 2)
        return [Outcome(trial.id) for trial in unit.trials]

    found = lab.execute(lambda study, work, watch, trials: Inline(interrupted, watch))
    assert found.failures == {"preempted": 1}


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


def test_a_point_that_was_removed_can_be_added(lab):
    points(lab, 2, search__seeds=1)
    lab.sweep()
    points(lab, 1, search__seeds=1)
    assert len(lab.sweep().points) == 1
    leave_command(lab.folder, "add", None, {"train.optimizer.lr": 1.0})
    assert len(lab.sweep().points) == 2


def test_somebody_who_reads_does_not_disturb_the_end(lab):
    lab.write(search__seeds=1)
    lab.sweep(only=["0"])
    from manyfit.study.ledger.ledger import Ledger

    with Ledger(lab.folder / "ledger.db") as ledger:
        ledger.set("x", 1)
        reader = sqlite3.connect(lab.folder / "ledger.db")
        reader.execute("begin")
        reader.execute("select * from meta").fetchall()
    reader.close()
    assert len(lab.sweep().points) == 6


def test_the_best_is_the_same_for_everybody(lab):
    points(lab, 5, search__seeds=1)
    found = lab.execute(lambda *_: Simulated(1, epochs=2, curve=lambda values, seed, epoch: 1.0))
    assert found.best.number == leaderboard(lab.folder).rows[0].point
    from manyfit.study.ledger.best import rank_points
    from manyfit.study.ledger.reader import read_only

    assert rank_points(read_only(lab.folder / "ledger.db")[0], 1, 2)[0].number == found.best.number


def test_better_needs_evidence(lab):
    assert compare_seeds({1: 0.1}, {1: 0.2}).p is None
    assert compare_seeds({1: 0.1, 2: 0.2}, {1: 0.2, 2: 0.3}).p is None  # the same difference each time
    sure = compare_seeds({1: 0.10, 2: 0.20, 3: 0.15}, {1: 0.50, 2: 0.61, 3: 0.56})
    assert sure.p < 0.05 and sure.verdict.startswith("better, by")
    worse = compare_seeds({1: 0.50, 2: 0.61, 3: 0.56}, {1: 0.10, 2: 0.20, 3: 0.15})
    assert worse.verdict.startswith("not shown")
    assert compare_seeds({1: 1.0}, {2: 1.0}) is None


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 30])
def test_students_t(degrees):
    scipy = pytest.importorskip("scipy.stats")
    for t in (0.1, 1.0, 2.5, 12.0):
        assert t_probability(t, degrees) == pytest.approx(scipy.t.cdf(t, degrees), abs=1e-12)
    assert t_quantile(0.975, degrees) == pytest.approx(scipy.t.ppf(0.975, degrees), rel=1e-9)
    values = [1.0, 2.0, 4.0]
    low, high = scipy.t.interval(0.95, 2, loc=7 / 3, scale=scipy.sem(values))
    assert mean_of(values).half == pytest.approx((high - low) / 2)


def test_commands_that_make_no_sense_are_set_aside(lab):
    lab.sweep(only=["0"])
    inbox = lab.folder / "inbox"
    (inbox / "1.json").write_text("{")
    (inbox / "2.json").write_text(json.dumps({"action": "stop", "point": 99}))
    (inbox / "3.json").write_text(json.dumps({"action": "add", "values": {"model.hiden": 3}}))
    (inbox / "4.json").write_text(json.dumps({"action": "clone", "point": 5, "weights": True}))
    lab.sweep(only=["0"])
    assert sorted(p.name for p in (inbox / "refused").glob("*.json")) == [
        "1.json",
        "2.json",
        "3.json",
        "4.json",
    ]
    assert "no checkpoint yet" in (inbox / "refused" / "4.json.txt").read_text()


def test_a_clone_begins_with_the_weights_of_its_parent(lab):
    points(lab, 1, search__seeds=2, set={"train.epochs": 4})
    first = lab.sweep()
    leave_command(lab.folder, "clone", 0, {"train.optimizer.lr": 1e-6}, True)
    found = lab.sweep()
    clone = found.points[1]
    for seed, value in clone.trials.items():
        assert value == pytest.approx(first.points[0].trials[seed], rel=0.05)
    assert len(lab.sweep().points) == 2 and replace(found.points[0]) == first.points[0]


def test_a_running_study_obeys(lab):
    """Commands come while the first trial is being trained, in the same process."""
    points(lab, 4, search__seeds=1, set={"train.epochs": 3})
    done = []

    class Busy(Inline):
        def wait(self, timeout=None, wake=()):
            if self._waiting and self._waiting[0].purpose == "train" and not done:
                done.append(1)
                leave_command(lab.folder, "stop", 3)
                leave_command(lab.folder, "add", None, {"train.optimizer.lr": 0.77})
            return super().wait(timeout, wake)

    found = lab.execute(lambda study, work, watch, trials: Busy(work, watch))
    assert [p.state for p in found.points] == ["finished", "finished", "finished", "stopped", "finished"]


def test_another_objective_has_its_own_values(lab):
    points(lab, 3, search__seeds=1)
    lab.sweep()
    points(lab, 3, search__seeds=1, objective={"metric": "val_accuracy", "mode": "max"})
    found = lab.sweep()
    logged = {p.number: max(row["val_accuracy"] for row in lab.log(p.folders[3].name)) for p in found.points}
    assert {p.number: p.value for p in found.points} == logged
    assert found.best.value == max(logged.values())
    assert json.loads((lab.folder / "best" / "best.json").read_text())["metric"] == "val_accuracy"


def test_from_a_grid_to_a_search_and_back(lab):
    lab.write(search={"method": "grid", "seeds": 1}, space={"model.hidden": [4, 8]})
    lab.sweep()
    steps = lab.steps()
    lab.write(search={"method": "tpe", "trials": 2, "seeds": 1}, space={"model.hidden": [4, 8]})
    assert len(lab.sweep().ranked) == 2 and lab.steps() == steps
    lab.write(search={"method": "grid", "seeds": 1}, space={"model.hidden": [4, 8]})
    assert len(lab.sweep().ranked) == 2 and lab.steps() == steps


def test_constraints_that_come_later_count(lab):
    lab.write(search={"method": "random", "trials": 6}, space={"model.hidden": {"int": [2, 60]}})
    lab.sweep()
    lab.write(
        search={"method": "random", "trials": 6},
        space={"model.hidden": {"int": [2, 60]}, "constraints": ["model.hidden > 30"]},
    )
    found = lab.sweep()
    assert len(found.points) == 6 and all(p.values["model.hidden"] > 30 for p in found.points)


@pytest.mark.parametrize(
    ("space", "method", "says"),
    [
        ({"model.hidden": {"int": [1, 10**20]}}, "grid", "too large"),
        ({"train.optimizer.lr": {"linear": [0, 1], "step": 1e-9}}, "grid", "1,000,000,000 points or more"),
        (
            {"model.hidden": {"int": [1, 1000]}, "train.optimizer.lr": {"linear": [0.1, 1], "points": 5000}},
            "grid",
            "points or more",
        ),
        ({"model.hidden": {"int": [1, 9]}, "constraints": ["model.hidden > 10"]}, "tpe", "constraints"),
        (
            {"model.hidden": {"int": [1, 9]}, "constraints": ["model.hidden > 'x'"]},
            "tpe",
            "space.constraints",
        ),
        (
            {"model.hidden": {"int": [1, 9]}, "constraints": ["'a' * 10 > model.hidden"]},
            "grid",
            "is not a number",
        ),
        ({"model.hidden": {"int": [1, 9]}}, "cma_es", "cmaes"),
    ],
)
def test_spaces_that_cannot_be_searched(lab, cli, space, method, says):
    lab.write(space=space, search={"method": method, "trials": 3} if method != "grid" else {"method": "grid"})
    said = cli("sweep", lab.folder)
    assert said.code == 2 and says in said.err and "Traceback" not in said.err


def test_what_was_trained_longer_counts_up_to_the_same_epoch(lab):
    points(lab, 1, search__seeds=1, set={"train.epochs": 5})
    lab.sweep()
    points(lab, 2, search__seeds=1, set={"train.epochs": 2})
    found = lab.sweep()
    rows = [row["val_loss"] for row in lab.log(found.points[0].folders[3].name)]
    assert len(rows) == 5 and found.points[0].value == min(rows[:2])


def test_code_that_changes_the_folder_or_prints_disturbs_nobody(lab, cli, monkeypatch):
    lab.project.write(
        "src/wanders.py",
        "import os\nfrom models import MLP\nclass Wanders(MLP):\n    def forward(self, x):\n        os.chdir('/'); print('hello')\n        return super().forward(x)\n",
    )
    lab.project.config(lab.project.changed(model={"class": "wanders.Wanders", "hidden": 4}))
    points(lab, 2, search__seeds=1)
    monkeypatch.chdir(lab.root)
    said = cli("sweep", "studies/s", "--json")
    assert said.code == 0 and json.loads(said.out)["state"] == "finished"
    assert len(list(lab.folder.glob("trials/*/metrics.jsonl"))) == 2


@pytest.mark.soak
def test_a_slow_validation_is_a_sign_of_life(lab):
    lab.project.write(
        "src/slow.py",
        "import time\nfrom models import MLP\nclass Slow(MLP):\n    def forward(self, x):\n        time.sleep(0.0 if self.training else 0.35)\n        return super().forward(x)\n",
    )
    lab.project.config(lab.project.changed(model={"class": "slow.Slow", "hidden": 4}, train__epochs=1))
    points(lab, 1, search__seeds=1, execute={"on": "processes", "workers": 1, "timeout": "1s"})
    assert not lab.sweep().failures


def test_a_full_disk_is_said(lab, cli, monkeypatch):
    from manyfit.study.ledger.ledger import Ledger

    points(lab, 1, search__seeds=1)
    real = Ledger.save_trial
    monkeypatch.setattr(
        Ledger,
        "save_trial",
        lambda *a: (_ for _ in ()).throw(sqlite3.OperationalError("database or disk is full")),
    )
    said = cli("sweep", lab.folder)
    assert said.code == 1 and "could not be written: database or disk is full" in said.err
    monkeypatch.setattr(Ledger, "save_trial", real)
    assert cli("sweep", lab.folder).code == 0


def test_values_on_the_command_line_reach_dotted_keys(lab):
    assert len(lab.sweep("space.model.hidden=[4]", "search.seeds=1").points) == 3
    assert (
        len(lab.sweep("space.model.hidden=[4]", "space.train.optimizer.lr=[0.1]", "search.seeds=1").points)
        == 1
    )


def test_commands_are_checked_when_they_are_given(lab, cli):
    lab.sweep(only=["0"])
    assert cli("study", "add", lab.folder, "model.hiden=3").code == 2
    assert cli("study", "add", lab.folder, "seed=3").code == 2
    assert cli("study", "clone", lab.folder, "0", "nosuch=1").code == 2
    assert cli("study", "stop", lab.folder / "study.yaml", "0").code == 0
    assert (
        not list((lab.folder / "inbox").glob("*.json"))
        or len(list((lab.folder / "inbox").glob("*.json"))) == 1
    )


def test_an_interrupt_during_the_validation_at_a_rung_changes_nothing(lab):
    """What was trained but not measured yet has not reached the rung."""
    points(
        lab,
        4,
        search={"method": "grid", "seeds": 1, "stop": {"class": "halving", "factor": 2}},
        set={"train.epochs": 4},
    )
    lab.sweep()
    expected = lab.table()
    lab.clear()
    import manyfit.run.loop.trainer as trainer
    from manyfit.core.signals import StopRequested

    real, count = trainer.validate, [0]

    def validate(*args):
        count[0] += 1
        if count[0] == 2:
            raise StopRequested
        return real(*args)

    class Signalled(Inline):
        """The signal comes while the second trial is validated."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "validate", validate)
        patch.setattr("manyfit.core.signals.signal.Signals", lambda number: signal_name(number))
        lab.execute(lambda study, work, watch, trials: Signalled(work, watch))
    assert lab.table() == expected


def signal_name(number):
    class Name:
        name = "SIGTERM"

    return Name


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


def test_a_point_with_a_failed_seed_is_shown_last(lab):
    points(lab, 3)

    def failing(trial):
        bad = trial.seed == 4 and trial.values["train.optimizer.lr"] == 1.0
        return Failure("not a number", "nan") if bad else None

    lab.execute(lambda *_: Simulated(1, epochs=2, failure=failing))
    rows = leaderboard(lab.folder).rows
    assert len(rows) == 3 and (rows[-1].state, rows[-1].seeds) == ("failed", "1 of 2")


def test_a_study_whose_ledger_is_lost_is_not_called_new(lab, cli):
    points(lab, 1, search__seeds=1)
    lab.sweep()
    (lab.folder / "ledger.db").unlink()
    said = cli("status", lab.folder)
    assert said.code == 2 and "has trials, but no ledger" in said.err
    steps = [p.read_text() for p in sorted(lab.folder.glob("trials/*/metrics.jsonl"))]
    assert cli("sweep", lab.folder).code == 0
    assert steps == [p.read_text() for p in sorted(lab.folder.glob("trials/*/metrics.jsonl"))]
    assert cli("status", lab.folder).code == 0


def test_the_config_of_a_trial_is_the_base_with_its_values(lab, cli):
    lab.project.config(lab.project.changed(model__hidden="${data.batch_size}"))
    points(lab, 1, search__seeds=1)
    trial = lab.sweep().points[0]
    folder = next(iter(trial.folders.values()))
    text = (folder / "config.yaml").read_text()
    assert text.startswith("# Written by manyfit: one trial of a study.") and "${data.batch_size}" in text
    assert cli("train", folder).code == 0  # it is finished: that is said, and nothing is trained again
    assert (folder / "config.yaml").read_text() == text
    assert cli("evaluate", folder).code == 0
