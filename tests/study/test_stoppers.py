"""Stoppers on a made-up executor: what they decide, and that it does not depend on who was first."""

import gc
import resource
from pathlib import Path

import pytest

from manyfit.config.study.study import load_study
from manyfit.study.executors.simulated import Simulated
from manyfit.study.search.decisions import next_pause
from manyfit.study.search.stoppers import Halving, rungs
from manyfit.study.sweep import Wish, execute
from manyfit.study.work.units import Failure


def simulated(lab, slots, stop, points=27, epochs=9, failing=(), pace=None, **options):
    lab.write(
        space={"train.optimizer.lr": {"linear": [0.001, 1.0], "points": points}},
        search={"method": "grid", "seeds": 1, **({"stop": stop} if stop else {}), **options},
        set={"train.epochs": epochs},
    )
    study = load_study(lab.folder)
    failure = Failure("user error", "made up")
    make = lambda *_: Simulated(  # noqa: E731
        slots,
        epochs=epochs,
        seconds=pace or (lambda trial: 1 + int(trial.id, 16) % 5),
        failure=lambda trial: failure if trial.values["train.optimizer.lr"] in failing else None,
    )
    return execute(study, Wish(quiet=True), make)


def summary(found):
    return [(p.number, p.state, p.value, p.reason) for p in found.points]


def test_rungs():
    assert rungs(1, 3, 27) == [1, 3, 9]
    assert rungs(2, 2, 9) == [2, 4, 8]
    assert rungs(5, 2, 3) == []
    assert (
        next_pause(Halving(), 0, 9) == 1
        and next_pause(Halving(), 3, 9) is None
        and next_pause(None, 0, 9) is None
    )


def test_halving_keeps_a_third_at_each_rung(lab):
    simulated(lab, 4, "halving")
    epochs = [row[0] for row in lab.rows("select epoch from trials")]
    assert {epoch: epochs.count(epoch) for epoch in set(epochs)} == {1.0: 18, 3.0: 6, 9.0: 3}
    first = sorted(lab.rows("select json_extract(curve, '$[0][1]'), epoch from trials"))
    assert all(epoch > 1 for _, epoch in first[:9]) and all(epoch == 1 for _, epoch in first[9:])


@pytest.mark.parametrize("slots", [2, 5, 1000])
def test_halving_does_not_depend_on_the_order(lab, slots):
    expected = summary(simulated(lab, 1, {"class": "halving", "factor": 2}))
    lab.clear()
    assert (
        summary(
            simulated(lab, slots, {"class": "halving", "factor": 2}, pace=lambda t: 1 + int(t.id, 16) % 97)
        )
        == expected
    )


def test_halving_goes_on_without_points_that_failed(lab):
    found = simulated(lab, 3, "halving", points=9, failing=(0.875125, 1.0))
    states = [p.state for p in found.points]
    assert states.count("failed") == 2 and states.count("finished") >= 1 and "open" not in states


def test_asha_explains_every_decision(lab):
    found = simulated(lab, 7, "asha")
    decisions = {
        row[0]: row[1] for row in lab.rows("select point, reason from decisions where action = 'go'")
    }
    further = {row[0] for row in lab.rows("select point from trials where epoch > 1")}
    assert further == set(decisions) and all("among the best" in reason for reason in decisions.values())
    assert {p.state for p in found.points} == {"finished", "stopped"}


def test_asha_trains_at_least_the_best_to_the_end(lab):
    found = simulated(lab, 1, "asha", points=2)
    assert [p.state for p in found.points].count("finished") == 1


def test_median_and_patience(lab):
    found = simulated(lab, 1, "median", points=12)
    reasons = [p.reason for p in found.points if p.state == "stopped"]
    assert reasons and all("worse than the median" in reason for reason in reasons)
    lab.clear()
    found = simulated(lab, 1, {"class": "patience", "epochs": 2, "min_delta": 0.2}, points=4)
    assert any("not better than" in p.reason for p in found.points)


OWN = '''
from manyfit.study.search.decisions import Add, Go, Stop


class Picky:
    """Stops what is bad after two epochs, and tries something near the best."""

    def __init__(self, limit: float = 0.5) -> None:
        self.limit = limit

    def pauses(self, epochs):
        return [2]

    def decide(self, board):
        found = []
        for point in board.points:
            if point.state != "waiting":
                continue
            if board.sign * point.score(2) > self.limit:
                found.append(Stop(point.number, "too bad"))
            else:
                found.append(Go(point.number, None, "good enough"))
                found.append(Add({"train.optimizer.lr": point.values["train.optimizer.lr"] / 2}, reason="nearby"))
        return found
'''


def test_a_stopper_of_ones_own_may_stop_and_add(lab):
    lab.project.write("src/picky.py", OWN)
    found = simulated(lab, 2, {"class": "picky.Picky", "limit": 1.0}, points=5, epochs=4)
    assert len(found.points) > 5
    assert {p.reason for p in found.points if p.state == "stopped"} <= {"too bad"}
    again = summary(simulated(lab, 2, {"class": "picky.Picky", "limit": 1.0}, points=5, epochs=4))
    assert again == summary(found)  # asked again, it answers the same


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_thousands_of_trials(lab, count):
    """Through the whole driver; memory and file descriptors stay flat."""
    simulated(lab, 64, None, points=10, epochs=1)  # imports are not counted
    before = len(list(Path("/proc/self/fd").iterdir()))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = simulated(lab, 64, None, points=count, epochs=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 / count
    assert len(found.points) == count and {p.state for p in found.points} == {"finished"}
    assert grown <= 10 * 1024
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.soak)])
def test_many_real_trials_in_one_process(lab, count):
    def sweep(points):
        lab.clear()
        lab.write(
            space={"train.optimizer.lr": {"linear": [0.001, 0.1], "points": points}},
            search={"method": "grid", "seeds": 1},
            set={"train.epochs": 1, "train.limit.train": 1},
        )
        assert len(lab.sweep().ranked) == points
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before, memory = sweep(30 if count < 1000 else count)  # everything that is needed once
    after, peak = sweep(count)
    assert after <= before
    assert (peak - memory) * 1024 / count <= 10 * 1024 * (
        10 if count < 1000 else 1
    )  # few trials do not say much
