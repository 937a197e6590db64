"""Drivers and workers are killed at random moments: nothing committed is lost, trained twice, or left behind."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.examples import quick

from manyfit.study.status import status

MODEL = '''
import os, time
from torch import nn


class Slow(nn.Module):
    """Writes down every step that it is trained, and takes its time."""

    def __init__(self, hidden: int = 4, name: str = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.name = name

    def forward(self, x):
        if self.training:
            time.sleep(0.01)
        return self.layers(x)
'''

STUDY = {
    "space": {"train.optimizer.lr": [0.01, 0.03, 0.1], "model.hidden": [4, 8]},
    "search": {"method": "grid", "seeds": 1},
    "set": {"train.epochs": 5, "train.every.checkpoint": "1ep"},
}


@pytest.fixture(params=["plain"])
def slow(lab, request):
    """A study that takes its time, on all data or hopping over shards."""
    lab.project.write("src/slow.py", MODEL)
    hops = {} if request.param == "plain" else {"hop": True}
    tree = lab.project.changed(model={"class": "slow.Slow"})
    tree["data"] |= {"shards": 3} if hops else {}
    lab.project.config(tree)
    lab.write(**STUDY, execute={"on": "processes", "workers": 2, "retries": 100, **hops})
    return lab


either = pytest.mark.parametrize("slow", ["plain", "hops"], indirect=True)


def start(lab, *words):
    return quick.start(["sweep", lab.folder, *words], lab.root, session=True)


def descendants(pid):
    """Every process below a process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
    below, todo = set(), [pid]
    while todo:
        parent = todo.pop()
        children = {child for child, its in found.items() if its == parent}
        below |= children
        todo += children
    return below


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def committed(lab):
    """For each trial, the step that its newest checkpoint has."""
    found = {}
    for folder in lab.folder.glob("trials/*/checkpoints/step-*"):
        trial = folder.parts[-3]
        found[trial] = max(found.get(trial, 0), int(folder.name.removeprefix("step-")))
    return found


def check(lab, expected):
    """Every trial once, finished, with the results of a study that nobody disturbed, and each row logged once."""
    assert lab.table() == expected
    for (trial,) in lab.rows("select id from trials"):
        steps = [row["step"] for row in lab.log(trial)]
        assert steps == sorted(set(steps))
    assert set(status(lab.folder)["trials"]) == {"finished"}


def shared_memory():
    """Shared memory with a name. Semaphores are those of other tests: studies have none."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


def kill_drivers(lab, expected, seed, kills):
    dice, memory = random.Random(seed), shared_memory()
    starts = Counter()
    while starts["killed"] < kills:
        driver = start(lab)
        time.sleep(dice.uniform(0.3, 6.0))
        if driver.poll() is not None:  # it has ended before: another study is killed
            assert driver.returncode == 0, driver.stderr.read()
            check(lab, expected)
            lab.clear()
            continue
        below = descendants(driver.pid)
        before = committed(lab)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        limit = time.monotonic() + 5
        while any(map(alive, below)) and time.monotonic() < limit:
            time.sleep(0.02)
        assert not [pid for pid in below if alive(pid)], "something is left running"
        after = committed(lab)
        assert all(after.get(trial, 0) >= step for trial, step in before.items())
        if (lab.folder / "ledger.db").exists():
            assert "running" not in status(lab.folder)["trials"]
        starts["killed"] += 1
    last = start(lab)
    assert last.wait() == 0, last.stderr.read()
    check(lab, expected)
    assert shared_memory() <= memory


def kill_workers(lab, expected, seed, kills):
    dice, memory = random.Random(seed), shared_memory()
    driver, done = start(lab), 0
    while driver.poll() is None:
        time.sleep(dice.uniform(0.05, 0.7))
        workers = [pid for server in descendants(driver.pid) for pid in descendants(server)]
        if workers and done < kills:
            try:
                os.kill(dice.choice(workers), dice.choice([signal.SIGKILL, signal.SIGSEGV]))
                done += 1
            except ProcessLookupError:
                continue
    assert driver.returncode == 0, driver.stderr.read()
    assert done
    check(lab, expected)
    assert shared_memory() <= memory
    return done


@pytest.fixture
def expected(slow):
    slow.sweep("execute.on=inline", "execute.hop=false")  # which gives the same
    found = slow.table()
    assert len(found) == 6
    slow.clear()
    return found


@either
def test_a_driver_that_is_killed(slow, expected):
    kill_drivers(slow, expected, seed=1, kills=1)


@pytest.mark.parametrize("slow", ["hops"], indirect=True)
def test_workers_that_are_killed(slow, expected):
    assert kill_workers(slow, expected, seed=2, kills=3) >= 1


@pytest.mark.soak
@either
@pytest.mark.parametrize("seed", range(5))
def test_drivers_killed_ten_times(slow, expected, seed):
    kill_drivers(slow, expected, seed=100 + seed, kills=10)


@pytest.mark.soak
@either
def test_workers_killed_fifty_times(slow, expected):
    total = 0
    for seed in range(50):
        slow.clear()
        total += kill_workers(slow, expected, seed=200 + seed, kills=8)
        if total >= 50:
            return
    raise AssertionError(f"only {total} kills have hit")


@pytest.mark.soak
@either
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_what_was_trained(slow, expected, number):
    driver = start(slow)
    limit = time.monotonic() + 60
    while not committed(slow) and time.monotonic() < limit:
        time.sleep(0.05)
    driver.send_signal(number)
    assert driver.wait() == 128 + number
    assert "the same command resumes" in driver.stderr.read()
    steps = committed(slow)
    facts = status(slow.folder)
    assert (
        facts["state"] == "unfinished"
        and "running" not in facts["trials"]
        and "interrupted" not in facts["trials"]
    )
    assert facts["steps"] == sum(steps.values()) > 0  # the ledger knows what was committed
    assert start(slow).wait() == 0
    check(slow, expected)


@pytest.mark.soak
def test_inline_marks_a_trial_that_crashed_and_goes_on(lab):
    lab.project.write("src/slow.py", MODEL.replace("time.sleep(0.01)", "os._exit(7) if self.name else None"))
    lab.project.config(lab.project.changed(model={"class": "slow.Slow"}))
    lab.write(
        space={"model.name": ["", "bad"]},
        search__seeds=1,
        execute={"on": "inline", "retries": 0},
    )
    codes = []
    for _ in range(6):
        codes.append(start(lab).wait())
        if codes[-1] != 7:
            break
    assert codes == [
        7,
        7,
        1,
    ]  # it died when it was tried out, then when it was trained; the third start goes on
    facts = status(lab.folder)
    assert facts["trials"] == {"finished": 1, "failed": 1}
    assert {f["kind"] for f in facts["failures"]} == {"infrastructure"}
