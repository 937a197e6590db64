"""The loop of a study: decide, hand out units, take what comes back, until nothing is left."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyfit.config.space import located
from manyfit.config.study import StudyConfig, seconds
from manyfit.core.errors import ConfigError, Interrupted, ManyfitError, RunFailed, UsageError
from manyfit.run.signals import Watch
from manyfit.study import policy, weights
from manyfit.study.board import Add, Board, Decision, Go, Stop, Stopper, View, next_pause
from manyfit.study.executors.base import Executor
from manyfit.study.folder import StudyFolder
from manyfit.study.inbox import Command, Inbox
from manyfit.study.ledger import Ledger
from manyfit.study.points import STUDY, Candidate, candidate
from manyfit.study.records import PointRecord, TrialRecord
from manyfit.study.sampling import EXHAUSTED, Observation, Sampler, is_blind
from manyfit.study.schedule import Ready, grant, ready, waiting
from manyfit.study.shown import Shown, Silent
from manyfit.study.units import Failure, Outcome, Trial, Unit

log = logging.getLogger("manyfit")


@dataclass(frozen=True)
class Options:
    """What was asked for on this start, beside the study itself."""

    only: Collection[int] | None = None
    fail_fast: bool = False


class StudyStopped(RunFailed):
    """A mistake in the first trial, which all others would repeat; or a failure, if that was asked for."""


@dataclass
class Driver:
    """Drives one study. All state is in the ledger; what is here can be rebuilt from it."""

    study: StudyConfig
    folder: StudyFolder
    ledger: Ledger
    executor: Executor
    watch: Watch = field(default_factory=Watch)
    shown: Shown = field(default_factory=Silent)
    options: Options = field(default_factory=Options)
    wake: Sequence[int] = ()
    inbox: Inbox | None = None

    def __post_init__(self) -> None:
        stop = self.study.search.stop
        self.stopper: Stopper | None = stop.build() if stop is not None else None
        self._sampler = Sampler(self.study) if not self.study.is_grid else None
        self._epochs = self.study.base.run.train.epochs
        self._sign = self.study.objective.sign
        self._busy: dict[str, Ready] = {}
        self._queue: deque[Ready] = deque()
        self._used_up = False
        self.recount()
        self._undecided = True
        self._to_stop: set[int] = set()
        self._began = self.executor.now()
        self._before = float(self.ledger.get("seconds") or 0.0)

    def run(self) -> None:
        """Train until nothing is left, or the budget is used up, or somebody asks to stop."""
        self.executor.tell = self._told
        self._queue = deque(ready(self.ledger.points, self.options.only))
        while True:
            self._obey()
            self._decide()
            self._hand_out()
            if not self._busy and not self._settle():
                break
            for outcome in self.executor.wait(self._patience(), self.wake):
                self._take(outcome)
            if self.watch.number:
                break
        self.ledger.set("seconds", self.elapsed)
        if self.watch.number:
            self._leave()

    def recount(self) -> None:
        """Count the points that were asked for and that the study still has."""
        self._asked_for = sum(p.origin == "asked" and p.current for p in self.ledger.points)

    @property
    def elapsed(self) -> float:
        """Seconds that the study has run, over all starts."""
        return self._before + self.executor.now() - self._began

    # -- handing out ------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while len(self._busy) < self.executor.slots and not self.watch.number:
            if self.over_budget():
                return
            item = self._next()
            if item is None:
                return
            self._submit(item)

    def _next(self) -> Ready | None:
        while self._queue:
            item = self._queue.popleft()
            if (
                item.trial.state == "waiting"
                and item.point.state == "open"
                and item.trial.id not in self._busy
            ):
                return item
        if self.coming and self.options.only is None:
            point = self.ask()
            if point is not None:
                self._queue.extend(waiting(point))
                return self._next()
        return None

    def _submit(self, item: Ready) -> None:
        trial = item.trial
        trial.state = "running"
        with self.ledger.transaction():
            self.ledger.save_trial(trial)
            self.ledger.assign(trial, item.until, "train")
        self._busy[trial.id] = item
        self.executor.submit(Unit((self.as_trial(item.point, trial),), item.until))
        self.shown.started(item.point, trial)

    def as_trial(self, point: PointRecord, trial: TrialRecord) -> Trial:
        """A trial as executors know it."""
        changes: dict[str, Any] = {}
        if point.parent:
            changes["train.warm_start"] = weights.start(self.folder, self.study.base.project, point, trial)
        if trial.split > 1:
            given = point.values.get("train.accumulate", self.study.base.run.train.accumulate)
            changes["train.accumulate"] = given * trial.split
        return Trial(trial.id, str(self.folder.trial(trial.id).path), point.values, trial.seed, changes)

    def over_budget(self) -> str:
        """Which budget is used up, if any."""
        search = self.study.search
        if search.steps is not None and sum(t.step for t in self.ledger.trials.values()) >= search.steps:
            return f"{search.steps} steps"
        limit = seconds(search.time)
        return f"{search.time}" if limit is not None and self.elapsed >= limit else ""

    # -- asking for points ------------------------------------------------------------------------

    @property
    def coming(self) -> int:
        """Points that are still to be asked for."""
        if self._sampler is None or self._used_up:
            return 0
        return max(0, (self.study.search.trials or 0) - self._asked_for)

    def ask(self) -> PointRecord | None:
        """Ask for the next point that is new and that no constraint excludes; None if there is none."""
        found = self._asked()
        if found is None:
            self._used_up = True
            self.ledger.decide(None, "exhausted", f"no new point was found in {EXHAUSTED} tries")
            return None
        with self.ledger.transaction():
            point = self.add(found)
            self.ledger.decide(point, "ask", f"number {point.number} of the search")
        return point

    def _asked(self) -> Candidate | None:
        assert self._sampler is not None
        number = sum(point.origin == "asked" for point in self.ledger.points)
        history = [] if is_blind(self.study) else list(self._history())
        for attempt in range(EXHAUSTED):
            patch, attrs = self._sampler.ask(history, number, attempt)
            if not self.study.space.allows(patch, self.study.value):
                continue
            found = candidate(self.study, patch, "asked", attrs=attrs)
            if self.ledger.point(found.id) is None:
                return found
        return None

    def _history(self) -> Iterator[Observation]:
        for point in self.ledger.points:
            view = View(point, self._sign)
            value, state = point.value(self._sign), view.state
            known = value is not None
            told = "stopped" if state == "waiting" and known else "running" if state == "waiting" else state
            epoch = int(min(point.epoch, self._epochs))
            yield Observation(point.values, told, value, epoch, point.attrs)

    def add(self, found: Candidate) -> PointRecord:
        """Put a point into the ledger, with a trial for each seed."""
        epochs = found.values.get("train.epochs", self._epochs)
        point = self.ledger.add(found, next_pause(self.stopper, 0, epochs))
        self._asked_for += found.origin == "asked"
        for seed in self.study.seeds:
            self.ledger.add_trial(point, seed)
        return point

    # -- taking what comes back -------------------------------------------------------------------

    def _take(self, outcome: Outcome) -> None:
        item = self._busy.pop(outcome.trial)
        point, trial = item.point, item.trial
        with self.ledger.transaction():
            trial.take(outcome, self._sign)
            if outcome.failure is not None:
                self._failed(point, trial, outcome.failure)
            else:
                trial.failure = None
                trial.state = "finished" if trial.over else "paused"
                self.ledger.release(trial, trial.state)
            if trial.state == "paused" and (point.granted is None or trial.epoch < point.granted):
                trial.state = "waiting"
            self._close_point(point)
            self.ledger.save_trial(trial)
            self.ledger.set("seconds", self.elapsed)
        if trial.state == "waiting" and point.state == "open":
            self._queue.append(Ready(point, trial))
        self._undecided = True
        self.shown.ended(point, trial, outcome)
        if trial.state in ("failed", "infeasible"):
            self._stop_if_hopeless(point, trial)

    def _failed(self, point: PointRecord, trial: TrialRecord, failure: Failure) -> None:
        if failure.kind == "preempted" and point.number in self._to_stop:
            self._to_stop.discard(point.number)
            trial.state = "paused"
            self.ledger.release(trial, "stopped")
            return
        found = policy.verdict(trial, failure, self.study.execute.retries)
        trial.state = found.state
        trial.deaths += found.died
        trial.split *= 2 if found.split else 1
        trial.failure = failure if failure.kind != "preempted" and found.state != "waiting" else None
        self.ledger.release(trial, failure.kind)
        self.ledger.decide(point, f"{failure.kind} → {found.state}", f"trial {trial.id}: {found.reason}")

    def _close_point(self, point: PointRecord) -> None:
        if point.state == "open" and point.trials and all(trial.is_done for trial in point.trials):
            point.state = "finished" if all(t.state == "finished" for t in point.trials) else "failed"
            self.ledger.save_point(point)

    def _stop_if_hopeless(self, point: PointRecord, trial: TrialRecord) -> None:
        """A mistake in the first trial is in all of them; so is the first failure, if that was asked for."""
        failure = trial.failure
        assert failure is not None
        some = any(t.state in ("finished", "paused") for t in self.ledger.trials.values())
        first = point.number == 0 and not some and failure.kind in ("user error", "data")
        if not (first or self.options.fail_fast):
            return
        if first:
            with self.ledger.transaction():
                trial.state, point.state = "waiting", "open"
                self.ledger.save_trial(trial)
                self.ledger.save_point(point)
        self._drain()
        why = "the first trial failed, and the others would, too" if first else "a trial failed"
        raise StudyStopped(f"{why}: {failure.message}\n  trial {trial.id}, {failure.kind}")

    # -- deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self.stopper is None or not self._undecided:
            return
        self._undecided = False
        for _ in range(1000):
            changed = [self._apply(decision) for decision in self.stopper.decide(self._board())]
            if not any(changed):
                return

    def _board(self) -> Board:
        return Board(self.ledger.points, self._sign, self._epochs, self.coming, self.study.search.seed)

    def _apply(self, decision: Decision) -> bool:
        """Carry out a decision; return whether it has changed anything."""
        if isinstance(decision, Add):
            return self._add(decision.values, decision.weights, "stopper", decision.reason) is not None
        point = self._point(decision.point)
        if isinstance(decision, Stop):
            return self.stop(point, decision.reason)
        if decision.until == point.granted and point.state == "open":
            return False
        assert isinstance(decision, Go)
        self.go(point, decision.until, decision.reason)
        return True

    def go(self, point: PointRecord, until: int | None, reason: str) -> None:
        """Let a point be trained further."""
        with self.ledger.transaction():
            changed = grant(point, until)
            for trial in changed:
                self.ledger.save_trial(trial)
            self._close_point(point)
            self.ledger.save_point(point)
            if reason:
                self.ledger.decide(point, "go", reason)
        self._queue.extendleft(reversed([Ready(point, trial) for trial in changed]))

    def stop(self, point: PointRecord, reason: str) -> bool:
        """Give a point up as a whole; what is being trained of it commits what it has."""
        if point.state != "open":
            return False
        point.state, point.reason = "stopped", reason
        with self.ledger.transaction():
            self.ledger.save_point(point)
            self.ledger.decide(point, "stop", reason)
            for trial in point.trials:
                if trial.state == "waiting":
                    trial.state = "paused"
                    self.ledger.save_trial(trial)
        running = [trial.id for trial in point.trials if trial.id in self._busy]
        if running:
            self._to_stop.add(point.number)
            self.executor.interrupt(running)
        self.shown.stopped(point)
        return True

    def _settle(self) -> bool:
        """Nothing is being trained and nothing can be: end what waits in vain. Return whether to go on."""
        if self.watch.number or self.over_budget():
            return False
        if self._queue or (self.coming and self.options.only is None):
            return bool(self._queue)
        left = [p for p in self._board().points if p.state == "waiting"] if self.options.only is None else []
        if left and not any(point.state == "finished" for point in self.ledger.points):
            best = self._board().ranked(left)[0]
            self.go(best.record, None, "the best of those that are left")
            return True
        for point in left:
            self.stop(point.record, f"not chosen to go on after {point.record.granted} epochs")
        self._undecided = True
        self._decide()
        return bool(self._queue)

    def _add(self, values: Any, parent: int | None, origin: str, reason: str) -> PointRecord | None:
        """Add a point that nobody asked a sampler for; None if it is there already."""
        begun = ""
        if parent is not None:
            source = self._point(parent)
            values = {**source.values, **values}
            begun = weights.keep(self.folder, source)
        found = candidate(self.study, located(values, STUDY), origin, begun)
        if self.ledger.point(found.id) is not None:
            return None
        with self.ledger.transaction():
            point = self.add(found)
            if parent is not None:
                for trial in self._point(parent).trials:
                    self.ledger.add_trial(point, trial.seed)
            self.ledger.decide(point, "add", reason or origin)
        self._queue.extend(waiting(point))
        self.shown.added(point)
        return point

    def _point(self, number: int) -> PointRecord:
        if not 0 <= number < len(self.ledger.points):
            raise UsageError(f"there is no point {number}; the study has {len(self.ledger.points)}")
        return self.ledger.points[number]

    # -- people -----------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Carry out what people have asked for; a command that cannot be carried out is set aside."""
        if self.inbox is None:
            return
        for command in self.inbox.commands():
            try:
                if not self.ledger.get(f"inbox {command.file}"):
                    self._obeyed(command)
                    self.ledger.set(f"inbox {command.file}", True)
                self.inbox.done(command.file)
            except (ManyfitError, ConfigError) as error:
                log.warning("%s: %s", command.action, error)
                self.inbox.refuse(command.file, str(error))

    def _obeyed(self, command: Command) -> None:
        if command.action == "add":
            self._add(command.values, None, "added", "asked by a person")
            return
        assert command.point is not None
        point = self._point(command.point)
        if command.action == "stop":
            if self.stop(point, "stopped by a person"):
                point.granted = 0  # no stopper may let it go on
                self.ledger.save_point(point)
        elif command.action == "resume":
            self.go(point, next_pause(self.stopper, point.epoch, self._epochs), "resumed by a person")
        else:
            values = command.values if command.weights else {**point.values, **command.values}
            self._add(
                values, command.point if command.weights else None, "cloned", f"a clone of {point.number}"
            )

    def _told(self, progress: Any) -> None:
        self.shown.progress(progress)
        if self.inbox is not None:
            self._obey()

    def evaluate(self, items: Sequence[tuple[PointRecord, TrialRecord]]) -> None:
        """Export and evaluate trials that were trained."""
        waiting = deque(items)
        while waiting or self._busy:
            while waiting and len(self._busy) < self.executor.slots:
                point, trial = waiting.popleft()
                self._busy[trial.id] = Ready(point, trial)
                self.ledger.assign(trial, None, "evaluate")
                self.executor.submit(Unit((self.as_trial(point, trial),), purpose="evaluate"))
            for outcome in self.executor.wait(None, self.wake):
                item = self._busy.pop(outcome.trial)
                self.ledger.release(item.trial, outcome.failure.kind if outcome.failure else "evaluated")
                if outcome.failure is not None:
                    log.warning("trial %s could not be evaluated: %s", outcome.trial, outcome.failure.message)
            if self.watch.number:
                self.executor.interrupt()

    # -- leaving ----------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """How long to wait at most: until the budget of time is used up."""
        limit = seconds(self.study.search.time)
        return max(0.1, limit - self.elapsed) if limit is not None and self.elapsed < limit else None

    def _drain(self) -> None:
        """Have everything that is being trained committed, and record it."""
        self.executor.interrupt()
        while self._busy:
            for outcome in self.executor.wait(None, ()):
                item = self._busy.pop(outcome.trial)
                with self.ledger.transaction():
                    item.trial.take(outcome, self._sign)
                    item.trial.state = "finished" if item.trial.over else "waiting"
                    self._close_point(item.point)
                    self.ledger.release(item.trial, "interrupted")
                    self.ledger.save_trial(item.trial)

    def _leave(self) -> None:
        self._drain()
        self.ledger.set("seconds", self.elapsed)
        raise Interrupted(
            f"ended by signal {self.watch.number}; the same command goes on with {self.folder.path}",
            self.watch.number,
        )
