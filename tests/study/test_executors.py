"""Every executor keeps the contract; and what is special about processes."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from manyfit.core.errors import UsageError
from manyfit.study.executors.base import Executor, attempt
from manyfit.study.executors.guarded import Guarded
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import Processes, places
from manyfit.study.executors.simulated import Simulated
from manyfit.study.executors.worker import Place
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Trial, Unit
from manyfit.testing import ExecutorContract
from manyfit.testing.executor import work


class TestInline(ExecutorContract):
    def make(self):
        return Inline(work)


class TestProcesses(ExecutorContract):
    def make(self):
        return Processes(work, [Place(), Place()], timeout=60)


class TestSimulated(ExecutorContract):
    simulates = True

    def make(self):
        return Simulated(2, epochs=3)


def unit(folder, name, **values):
    return Unit((Trial(name, str(folder / name), values, 0),))


class Unopened:
    """Work that cannot be opened where it is to be done."""

    @property
    def enters_scopes(self):
        raise ModuleNotFoundError("No module named 'helper'")

    def __call__(self, unit, watch, tell):
        return self.enters_scopes


@pytest.mark.parametrize("count", [1, 2])
def test_work_that_cannot_be_opened_is_a_failure_that_says_why(count):
    trials = tuple(Trial(f"t{i}", "", {}, 0) for i in range(count))
    found = list(attempt(Unopened(), Unit(trials), UnitWatch(), lambda progress: None))
    assert [outcome.trial for outcome in found] == [trial.id for trial in trials]
    assert "No module named 'helper'" in found[0].failure.message


def test_a_guarded_executor_declares_what_the_executor_does():
    class Declares(Inline):
        isolates, keeps_folders, travels, slots, places = False, False, True, 3, ("a", "b", "c")
        speeds, replicas, holds = {"a": 2.0}, 2, {"b": (1,)}

    made, found = Declares(work), Guarded(Declares(work))
    for name in Executor.__annotations__.keys() - {"tell"}:
        assert getattr(made, name) != getattr(Inline(work), name) or name in ("isolates",), name
        assert getattr(found, name) == getattr(made, name), name


WORKS = '''
import os, time
from manyfit.study.work.units import Failure, Outcome

def facts(unit, watch, tell):
    """Where a worker is, and what it may use."""
    import resource

    trial = unit.trials[0]
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    print("said by", trial.id)
    return [
        Outcome(
            trial.id,
            facts={
                "pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0))[0], "memory": limit,
                "told": float(os.environ.get("MANYFIT_TEST_TOLD", -1)), "gpu": float(os.environ.get("CUDA_VISIBLE_DEVICES", -1)), "omp": float(os.environ["OMP_NUM_THREADS"]),
            },
        )
    ]  # fmt: skip


def eats(unit, watch, tell):
    import numpy as np

    kept = [np.ones(50_000_000) for _ in range(200)]
    return [Outcome(unit.trials[0].id, facts={"size": len(kept)})]


def fails_for_memory(unit, watch, tell):
    trial = unit.trials[0]
    failure = Failure("out of memory", "told so") if trial.values.get("full") else None
    return [Outcome(trial.id, failure=failure, facts={"pid": os.getpid()})]


def sleeps(unit, watch, tell):
    time.sleep(60)
    return []
'''


@pytest.fixture
def works(tmp_path, monkeypatch):
    """Functions that other processes can import."""
    name = f"works_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(WORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def ended(executor, most=30.0):
    limit = time.monotonic() + most
    while time.monotonic() < limit:
        if found := executor.wait(most):
            return found
    raise AssertionError("no answer")


def test_a_worker_has_its_place_and_its_output_goes_to_the_trial(tmp_path, works):
    forkserver._forkserver._stop()  # one that another test has started knows nothing of threads
    core = sorted(os.sched_getaffinity(0))[-1]
    executor = Processes(works.facts, [Place((core,), "3", 8 << 30)])
    try:
        executor.submit(unit(tmp_path, "a"))
        found = ended(executor)[0].facts
        assert (found["cores"], found["gpu"], found["memory"], found["omp"]) == (core, 3.0, 8 << 30, 1.0)
        assert (tmp_path / "a" / "output.log").read_text() == "said by a\n"
        executor.submit(unit(tmp_path, "b"))
        assert ended(executor)[0].facts["pid"] == found["pid"]  # a warm worker is used again
    finally:
        executor.close()


def test_workers_have_the_environment_of_the_moment(tmp_path, works, monkeypatch):
    """The server that they are forked from is older than what is said now."""
    told = []
    for value in ("1", "2", None):
        if value is None:
            monkeypatch.delenv("MANYFIT_TEST_TOLD")
        else:
            monkeypatch.setenv("MANYFIT_TEST_TOLD", value)
        executor = Processes(works.facts, [Place()])
        try:
            executor.submit(unit(tmp_path, f"a{value}"))
            told.append(ended(executor)[0].facts["told"])
        finally:
            executor.close()
    assert told == [1.0, 2.0, -1.0]


def test_a_worker_that_ran_out_of_memory_is_replaced(tmp_path, works):
    executor = Processes(works.fails_for_memory, [Place()])
    try:
        pids = []
        for name in "ab":
            executor.submit(unit(tmp_path, name, full=True))
            pids.append(ended(executor)[0].facts["pid"])
        assert pids[0] != pids[1]
    finally:
        executor.close()


def test_memory_that_a_worker_may_not_have_is_an_error_in_it(tmp_path, works):
    executor = Processes(works.eats, [Place((), None, 1200 << 20)])
    try:
        executor.submit(unit(tmp_path, "a"))
        assert ended(executor)[0].failure.kind == "out of memory"
    finally:
        executor.close()


def test_a_unit_without_a_sign_of_life_is_ended(tmp_path, works):
    executor = Processes(works.sleeps, [Place()], timeout=1.0)
    try:
        executor.submit(unit(tmp_path, "a"))
        assert ended(executor)[0].failure.kind == "timeout"
    finally:
        executor.close()


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(UsageError, match="cannot be sent to other processes"):
        Processes(lambda unit, watch, tell: [], [Place()])


@pytest.mark.parametrize(
    ("workers", "threads", "gpus", "expected"),
    [
        (None, 1, [], [(0,), (1,), (2,), (3,)]),
        (2, 2, [], [(0, 1), (2, 3)]),
        (None, 3, [], [(0, 1, 2)]),
        (8, 1, [], [()] * 8),  # more than there are cores: nobody is pinned
        (None, 1, ["0", "1"], ["0", "1"]),
        (3, 1, ["0", "1"], ["0", "1", "0"]),
    ],
)
def test_places(workers, threads, gpus, expected):
    found = places(workers, threads, gpus, None, lambda: [0, 1, 2, 3])
    assert [place.gpu or place.cores for place in found] == expected


def test_nothing_is_left_when_the_driver_is_killed(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            sys.path.insert(0, {str(tmp_path)!r})
            from manyfit.study.executors.processes import Processes
            from manyfit.study.executors.worker import Place
            from manyfit.study.work.units import Trial, Unit
            from busy import work

            executor = Processes(work, [Place(), Place()])
            for name in "ab":
                executor.submit(Unit((Trial(name, {str(tmp_path)!r} + "/" + name, {{}}, 0),)))
            while True:
                executor.wait(60)
            """
        )
    )
    (tmp_path / "busy.py").write_text(
        "import os\n"
        "def work(unit, watch, tell):\n"
        "    open(unit.trials[0].folder + '.pid', 'w').write(str(os.getpid()))\n"
        "    while True: sum(range(100))\n"  # never looks at anything
    )
    driver = subprocess.Popen([sys.executable, str(script)])  # without a guard around its main part
    pids = [tmp_path / f"{name}.pid" for name in "ab"]
    limit = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in pids) and time.monotonic() < limit:
        time.sleep(0.05)
    workers = [int(path.read_text()) for path in pids]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    limit = time.monotonic() + 5
    while any(is_alive(pid) for pid in workers) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in workers)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
