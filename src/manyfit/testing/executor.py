"""The contract of executors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyfit.core.errors import UsageError
from manyfit.core.position import Position
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Failure, Outcome, Progress, Trial, Unit


def work(unit: Unit, watch: UnitWatch, tell: Callable[[Progress], None]) -> Iterator[Outcome]:
    """Execute a unit of the contract: the values of each trial determine how it ends."""
    for trial in unit.trials:
        yield _one(trial, watch.of(trial.id), tell)


def _one(trial: Trial, watch: Watch, tell: Callable[[Progress], None]) -> Outcome:
    how = trial.values.get("how", "well")
    tell(Progress(trial.id, 1, 0.5))
    if how == "badly":
        raise ValueError("failed on request")
    if how == "exits":
        os._exit(0)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(int(trial.values.get("pauses", 0))):
        if watch.number:
            return Outcome(trial.id, 1, 0.5, 1, failure=Failure("preempted", "asked to end"))
        time.sleep(0.02)
    return Outcome(
        trial.id, 2, 1.0, 2, True, curve=((1.0, float(trial.values.get("value", 0.5))),), seconds=0.01
    )


class ExecutorContract:
    """Tests of an executor. Implement `make`: it returns one with one or two slots that calls `work`."""

    def make(self) -> Executor:
        """Return an executor that calls `manyfit.testing.executor.work` for its units."""
        raise NotImplementedError

    simulates = False
    """Whether it simulates results without calling `work`."""

    def workers(self) -> set[Any]:
        """Return the processes of executors that are alive.

        Override it for an executor whose workers are not children of this process.
        """
        return {child.pid for child in multiprocessing.active_children()}

    @pytest.fixture
    def executor(self) -> Any:
        """Create an executor, and close it afterwards."""
        made = self.make()
        yield made
        made.close()

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return the folder of the trials."""
        return tmp_path

    def unit(
        self,
        folder: Path,
        *names: str,
        until: Position | None = None,
        place: str = "",
        each: Mapping[str, Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> Unit:
        """Create a unit of trials, with common values and values for each."""
        own = each or {}
        trials = [Trial(n, str(folder / n), {**values, **own.get(n, {})}, 0) for n in names]
        return Unit(tuple(trials), until, place)

    def all_of(self, executor: Executor, units: Sequence[Unit], most: float = 240.0) -> dict[str, Outcome]:
        """Submit units as slots become free, and collect all outcomes."""
        waiting, found, busy = list(units), dict[str, Outcome](), dict[str, int]()
        limit = time.monotonic() + most
        while waiting or busy:
            while waiting and len(set(busy.values())) < executor.slots:
                unit = waiting.pop(0)
                busy |= dict.fromkeys((trial.id for trial in unit.trials), len(waiting))
                executor.submit(unit)
            for outcome in executor.wait(5.0):
                assert outcome.trial not in found, f"{outcome.trial} has two outcomes"
                found[outcome.trial] = outcome
                del busy[outcome.trial]
            assert time.monotonic() < limit, f"no outcome for {sorted(busy)}"
        return found

    def test_every_trial_is_answered_once(self, executor: Executor, folder: Path) -> None:
        """Every trial has one outcome, also with more units than slots and several trials per unit."""
        units = [self.unit(folder, f"a{i}", f"b{i}") for i in range(8)]
        found = self.all_of(executor, units)
        assert sorted(found) == sorted(trial.id for unit in units for trial in unit.trials)
        assert all(outcome.over and outcome.failure is None for outcome in found.values())

    def test_it_shows_signs_of_life(self, executor: Executor, folder: Path) -> None:
        """Progress is reported before the outcome is returned."""
        if self.simulates:
            pytest.skip("simulated results have no progress")
        told: list[Progress] = []
        executor.tell = told.append
        self.all_of(executor, [self.unit(folder, "a"), self.unit(folder, "b")])
        assert {progress.trial for progress in told} == {"a", "b"}

    def test_a_failure_leaves_the_others_alone(self, executor: Executor, folder: Path) -> None:
        """A failure is an outcome, and does not affect other trials."""
        if self.simulates:
            pytest.skip("simulated results have no such failures")
        found = self.all_of(
            executor, [self.unit(folder, "a"), self.unit(folder, "b", how="badly"), self.unit(folder, "c")]
        )
        failure = found["b"].failure
        assert failure is not None
        assert failure.kind == "user error"
        assert failure.message.startswith("ValueError: failed on request")
        assert "failed on request" in failure.traceback
        assert found["a"].over
        assert found["c"].over

    def test_a_crash_leaves_the_others_alone(self, executor: Executor, folder: Path) -> None:
        """A process that dies yields a failure, and the next unit finds a worker."""
        if self.simulates or not executor.isolates:
            pytest.skip("this executor does not isolate crashes")
        units = [self.unit(folder, name, how=how) for name, how in
                 {"a": "well", "b": "dies", "c": "well", "d": "exits", "e": "well"}.items()]  # fmt: skip
        found = self.all_of(executor, units)
        kinds = {name: outcome.failure.kind for name, outcome in found.items() if outcome.failure}
        assert kinds == {"b": "infrastructure", "d": "user error"}
        assert all(found[name].over for name in "ace")

    def test_a_trial_fails_without_the_others_of_its_unit(self, executor: Executor, folder: Path) -> None:
        """Earlier outcomes stay; trials that were not started are marked so, and can be submitted again."""
        if self.simulates:
            pytest.skip("simulated results have no such failures")
        unit = self.unit(folder, "a", "b", "c", each={"b": {"how": "badly"}})
        found = self.all_of(executor, [unit])
        assert found["a"].over
        assert found["a"].failure is None
        assert found["b"].failure is not None
        assert found["b"].failure.kind == "user error"
        assert found["c"].failure is not None
        assert (found["c"].failure.kind, found["c"].is_begun) == ("preempted", False)
        assert self.all_of(executor, [self.unit(folder, "c")])["c"].over

    def test_a_crash_of_several_trials_is_charged_to_none(self, executor: Executor, folder: Path) -> None:
        """If a process dies with several trials, none counts as crashed: each can be tried alone."""
        if self.simulates or not executor.isolates:
            pytest.skip("this executor does not isolate crashes")
        found = self.all_of(executor, [self.unit(folder, "a", "b", "c", each={"b": {"how": "dies"}})])
        assert found["a"].over
        for outcome in (found["b"], found["c"]):
            assert outcome.failure is not None
            assert (outcome.failure.kind, outcome.is_begun, outcome.is_shared) == ("preempted", False, True)
        alone = self.all_of(executor, [self.unit(folder, "b", each={"b": {"how": "dies"}})])["b"]
        assert alone.failure is not None
        assert (alone.failure.kind, alone.is_begun, alone.is_shared) == ("infrastructure", True, False)

    def test_one_trial_of_a_unit_can_be_interrupted(self, executor: Executor, folder: Path) -> None:
        """The other trials of the unit continue."""
        if self.simulates or not executor.isolates:
            pytest.skip("this requires an executor that can be called while a unit is executed")
        told: list[str] = []
        executor.tell = lambda progress: told.append(progress.trial)
        executor.submit(self.unit(folder, "a", "b", each={"a": {"pauses": 3000}}))
        while not told:
            executor.wait(10.0)
        executor.interrupt(["a"])
        found: dict[str, Outcome] = {}
        while len(found) < 2:
            found |= {outcome.trial: outcome for outcome in executor.wait(30.0)}
        assert found["a"].failure is not None
        assert (found["a"].failure.kind, found["a"].failure.process_died) == ("preempted", False)
        assert found["b"].over
        assert self.all_of(executor, [self.unit(folder, "c")])["c"].over

    def test_a_unit_is_executed_where_it_asks_to_be(self, executor: Executor, folder: Path) -> None:
        """Units can request a worker by name; an unknown name is an error."""
        with pytest.raises(UsageError, match="there is no worker 'nowhere'"):
            executor.submit(self.unit(folder, "a", place="nowhere"))
        for place in executor.places:
            assert self.all_of(executor, [self.unit(folder, f"at-{place}", place=place)])

    def test_the_number_of_workers_can_be_changed(self, executor: Executor, folder: Path) -> None:
        """Trials of workers that leave are preempted; all others continue. Some executors refuse."""
        if self.simulates or not executor.isolates:
            pytest.skip("this executor has no workers of its own")
        try:
            executor.resize(1)
        except UsageError:
            pytest.skip("this executor has a fixed number of workers")
        limit = time.monotonic() + 120
        while executor.slots != 1 and time.monotonic() < limit:
            executor.wait(0.2)
        assert executor.slots == 1
        assert self.all_of(executor, [self.unit(folder, name) for name in "abc"]).keys() == set("abc")
        executor.resize(2)
        while executor.slots != 2 and time.monotonic() < limit:
            executor.wait(0.2)
        executor.submit(self.unit(folder, "d", pauses=3000))
        executor.submit(self.unit(folder, "e", pauses=3000))
        executor.wait(1.0)
        executor.resize(1)
        ended: list[Outcome] = []
        while not ended and time.monotonic() < limit:
            ended = executor.wait(1.0)
        assert len(ended) == 1
        assert ended[0].failure is not None
        assert ended[0].failure.kind == "preempted"

    def test_waiting_ends_when_time_is_up(self, executor: Executor, folder: Path) -> None:
        """Nothing was submitted, so there are no outcomes."""
        assert executor.wait(0.05) == []

    def test_a_file_descriptor_wakes_it(self, executor: Executor, folder: Path) -> None:
        """Waiting ends as soon as a file descriptor is readable, so that callers need not poll."""
        if self.simulates or not executor.isolates:
            pytest.skip("this executor executes units while it waits")
        reading, writing = os.pipe()
        try:
            os.write(writing, b"!")
            began = time.monotonic()
            executor.wait(30.0, [reading])
            assert time.monotonic() - began < 10
        finally:
            os.close(reading)
            os.close(writing)

    def test_trials_can_be_interrupted(self, executor: Executor, folder: Path) -> None:
        """An interrupted trial commits its progress; the others continue."""
        if executor.slots < 2 or self.simulates:
            pytest.skip("this requires two concurrent units in real time")
        told: list[str] = []
        executor.tell = lambda progress: told.append(progress.trial)
        executor.submit(self.unit(folder, "a", pauses=3000))
        executor.submit(self.unit(folder, "b", pauses=20))
        while len(told) < 2:
            executor.wait(10.0)
        executor.interrupt(["a"])
        found: dict[str, Outcome] = {}
        while len(found) < 2:
            found |= {outcome.trial: outcome for outcome in executor.wait(30.0)}
        assert found["a"].failure is not None
        assert found["a"].failure.kind == "preempted"
        assert found["b"].over

    def test_closing_leaves_nothing_behind(self, folder: Path) -> None:
        """Closing also ends workers in the middle of a unit."""
        before = self.workers()
        executor = self.make()
        executor.submit(self.unit(folder, "a", pauses=0 if self.simulates or not executor.isolates else 3000))
        executor.wait(2.0 if executor.isolates else None)
        has_workers = executor.isolates and not self.simulates
        assert bool(self.workers() - before) == has_workers, "the processes of its workers are not found"
        executor.close()
        limit = time.monotonic() + 10
        while self.workers() - before and time.monotonic() < limit:
            time.sleep(0.05)
        assert not self.workers() - before

    def test_its_clock_does_not_go_back(self, executor: Executor, folder: Path) -> None:
        """The clock is monotonic: budgets depend on it."""
        first = executor.now()
        self.all_of(executor, [self.unit(folder, "a")])
        assert executor.now() >= first
