"""The main loop of a study: units that fail, die or are interrupted."""

import pytest
from tests.study.points import points

from manyfit.core.errors import Interrupted
from manyfit.study.drive.driver import StudyStopped
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.simulated import Simulated
from manyfit.study.status import status
from manyfit.study.work.units import Failure, Outcome


class Several(Simulated):
    """Answers for all units that are running at once."""

    def wait(self, timeout=None, wake=()):
        found = super().wait(timeout, wake)
        while self._busy:
            found += super().wait(timeout, wake)
        return found


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


def test_code_that_always_asks_to_end_is_given_up(lab):
    points(lab, 1, search__seeds=1)

    def interrupted(unit, watch, tell):
        if unit.purpose == "train":
            raise Interrupted("again", 2)
        return [Outcome(trial.id) for trial in unit.trials]

    found = lab.execute(lambda study, work, watch, trials: Inline(interrupted, watch))
    assert found.failures == {"preempted": 1}
