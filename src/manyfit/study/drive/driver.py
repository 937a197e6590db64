"""The loop of a study: decide, hand out units, take what comes back, until nothing is left."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from manyfit.config.study.space import to_patch
from manyfit.config.study.study import StudyConfig, seconds
from manyfit.core.errors import Interrupted, ManyfitError, RunFailed, UsageError
from manyfit.core.names import pluralize
from manyfit.core.position import Position
from manyfit.core.seeds import derive
from manyfit.core.signals import Watch
from manyfit.data.randomness import seed_for
from manyfit.study.drive.display import Display, Silent
from manyfit.study.drive.inbox import Command, Inbox
from manyfit.study.executors.base import Executor
from manyfit.study.executors.worker import tidy_output
from manyfit.study.ledger import best, start_weights
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.asker import Asker
from manyfit.study.search.decisions import Add, Board, Decision, Stop, Stopper, decisions_of, next_pause
from manyfit.study.work import policy
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import STUDY, Candidate, candidate
from manyfit.study.work.records import PointRecord, TrialRecord, epochs_of
from manyfit.study.work.schedule import Ready, close, grant, ready, waiting
from manyfit.study.work.training import read_committed_progress
from manyfit.study.work.units import Failure, Outcome, Progress, Purpose, Trial, Unit

log = logging.getLogger("manyfit")

LOOK: Final = 5.0
"""Seconds after which the driver looks at its folder and its inbox, though nothing has happened."""


@dataclass(frozen=True)
class Options:
    """What was asked for on this start, beside the study itself."""

    only: Collection[int] | None = None
    fail_fast: bool = False


class StudyStopped(RunFailed):
    """A mistake in the first trial, which all others would repeat; or a failure, if that was asked for."""


class StudyMoved(RunFailed):
    """The folder of a study is not where it was."""

    kind = "folder"


@dataclass
class Driver:
    """Drives one study. All state is in the ledger; what is here can be rebuilt from it."""

    study: StudyConfig
    folder: StudyFolder
    ledger: Ledger
    executor: Executor
    watch: Watch = field(default_factory=Watch)
    shown: Display = field(default_factory=Silent)
    options: Options = field(default_factory=Options)
    signals: int | None = None
    """A file descriptor that can be read once a signal has come."""
    inbox: Inbox | None = None

    def __post_init__(self) -> None:
        stop = self.study.search.stop
        self.stopper: Stopper | None = stop.build() if stop is not None else None
        self.asker = Asker(self.study, self.ledger)
        self.epochs = self.study.base.run.train.epochs
        self._sign = self.study.objective.sign
        self._busy: dict[str, Ready] = {}
        self._units: dict[str, int] = {}
        """The unit of each trial that is being worked on."""
        self._queue: deque[Ready] = deque()
        self._undecided = True
        self._began = self.executor.now()
        self._before = float(self.ledger.get("seconds") or 0.0)
        self._steps = 0
        self._absolute = StudyFolder(self.folder.path.resolve())
        found = self._absolute.path.stat()
        self._place = found.st_dev, found.st_ino

    def run(self) -> None:
        """Train until nothing is left, or the budget is used up, or somebody asks to stop."""
        self.executor.tell = self._report_progress
        self._steps = sum(trial.step for trial in self.ledger.trials.values())
        self._queue = deque(ready(self.ledger.points, self.options.only))
        settled = False
        while not self.watch.number:
            self._check_place()
            self._obey()
            self._decide()
            self._hand_out()
            if not self._busy:
                if not self._settle():
                    break
                if settled:  # waiting for an executor that has nothing to do would never end
                    raise RuntimeError("a study has points left, but no trial of them can be handed out")
                settled = True
                continue
            settled = False
            outcomes = self.executor.wait(self._patience(), self._wake)
            self._check_place()  # first: what came from another place is not recorded
            hopeless = [self._take(outcome) for outcome in outcomes]
            for reason in filter(None, hopeless):
                self._drain()
                raise StudyStopped(reason)
        self.ledger.set("seconds", self.elapsed)
        if self.watch.number:
            self._leave()

    @property
    def elapsed(self) -> float:
        """Seconds that the study has run, over all starts."""
        return self._before + self.executor.now() - self._began

    # -- handing out ------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._has_room() and not self.watch.number and not self.over_budget():
            item = self._next()
            if item is None:
                return
            self._submit([item], item.until)
            self.shown.show_started(item.point, item.trial)

    def _next(self) -> Ready | None:
        while True:
            while self._queue:
                item = self._queue.popleft()
                if item.trial.id not in self._busy and item in waiting(item.point, self.options.only):
                    return item
            found = self.asker.ask() if self.asker.coming and self.options.only is None else None
            if found is None:
                return None
            with self.ledger.transaction():
                point = self.add(found)
                self.ledger.decide(point, "ask", f"number {self.asker.numbers} of the search")
            self._queue.extend(waiting(point))

    def _has_room(self) -> bool:
        """Whether the executor takes another unit. It counts units, not their trials."""
        return len(set(self._units.values())) < self.executor.slots

    def _submit(
        self, items: Sequence[Ready], until: int | None = None, purpose: Purpose = "train", place: str = ""
    ) -> None:
        """Hand out one unit with some trials."""
        trials = [item.trial for item in items]
        with self.ledger.transaction():
            for trial in trials if purpose == "train" else ():
                trial.state = "running"
                self.ledger.save_trial(trial)
            number = self.ledger.begin_unit([trial.id for trial in trials], until, purpose, place)
        self._busy |= {item.trial.id: item for item in items}
        self._units |= dict.fromkeys((trial.id for trial in trials), number)
        made = tuple(self.as_trial(item.point, item.trial) for item in items)
        goal = None if until is None else Position(until)
        self.executor.submit(Unit(made, goal, place, number, purpose))

    def _release(self, trial: TrialRecord, outcome: str) -> None:
        """Note how a unit has ended for one of its trials."""
        self.ledger.end_trial(self._units.pop(trial.id), trial.id, outcome)

    def as_trial(self, point: PointRecord, trial: TrialRecord) -> Trial:
        """A trial as executors know it."""
        changes: dict[str, Any] = {}
        if point.parent:
            changes["train.warm_start"] = start_weights.start(
                self.folder, self.study.base.project, point, trial
            )
        if trial.split > 1:
            given = point.values.get("train.accumulate", self.study.base.run.train.accumulate)
            changes["train.accumulate"] = given * trial.split
        folder = self._absolute.trial(trial.id).path
        return Trial(trial.id, str(folder), point.values, trial.seed, changes)

    def over_budget(self) -> bool:
        """Whether a budget is used up."""
        steps, limit = self.study.search.steps, seconds(self.study.search.time)
        return (steps is not None and self._steps >= steps) or (limit is not None and self.elapsed >= limit)

    def add(self, found: Candidate) -> PointRecord:
        """Put a point into the ledger, with a trial for each seed."""
        until = next_pause(self.stopper, 0, epochs_of(found.values, self.epochs))
        known = self.ledger.point(found.id)
        if known is None or not known.current:
            self.asker.note_added(found)
        point = self.ledger.add(found, until)
        if point.state != "stopped":  # one that was given up is not given more seeds
            for seed in self.study.seeds:
                self.ledger.add_trial(point, seed)
        return point

    # -- taking what comes back -------------------------------------------------------------------

    def _take(self, outcome: Outcome) -> str:
        """Record how a unit has ended; return why the study cannot go on, if that is so."""
        item = self._busy.pop(outcome.trial)
        point, trial = item.point, item.trial
        outcome = self._read_committed(outcome)
        self._steps += max(0, outcome.step - trial.step)
        with self.ledger.transaction():
            trial.take(outcome, self._sign)
            if outcome.failure is not None:
                self._record_failure(point, trial, outcome.failure, outcome.is_begun)
            else:
                trial.failure = None
                trial.state = "finished" if trial.over else "paused"
                self._release(trial, trial.state)
            short = point.granted is None or trial.epoch < point.granted
            if trial.state == "paused" and point.state == "open" and short:
                trial.state = "waiting"
            self.ledger.save_trial(trial)
            self._close(point)
            self.ledger.set("seconds", self.elapsed)
        if trial.state == "waiting":
            self._queue.append(Ready(point, trial))
        self._undecided = True
        self.shown.show_ended(point, trial, outcome)
        return self._hopeless(point, trial) if trial.state in ("failed", "infeasible") else ""

    def _read_committed(self, outcome: Outcome) -> Outcome:
        """What a process that died has committed, it could not say itself: the run folder knows."""
        failure = outcome.failure
        if failure is None or not failure.process_died or not self.executor.keeps_folders:
            return outcome
        with contextlib.suppress(OSError):  # it has printed nothing
            tidy_output(self.folder.trial(outcome.trial).path)
        known = self.ledger.trials[outcome.trial].step
        step, epoch, curve = read_committed_progress(
            self.folder.trial(outcome.trial), self.study.objective.metric
        )
        return replace(outcome, step=step, epoch=epoch, curve=curve, trained=max(0, step - known))

    def _record_failure(
        self, point: PointRecord, trial: TrialRecord, failure: Failure, is_begun: bool
    ) -> None:
        if failure.kind == "preempted" and point.state == "stopped":
            trial.state = "paused"
            self._release(trial, "stopped")
            return
        if not is_begun:  # another trial of its unit has ended it: that is no death of its own
            trial.state = "waiting"
            self._release(trial, "not begun")
            return
        found = policy.verdict(trial, failure, self.study.execute.retries)
        trial.state = found.state
        trial.deaths += found.died
        trial.split *= 2 if found.split else 1
        trial.failure = failure if found.state != "waiting" else None
        self._release(trial, failure.kind)
        self.ledger.decide(point, f"{failure.kind} → {found.state}", f"trial {trial.id}: {found.reason}")

    def _close(self, point: PointRecord) -> None:
        """Close a point of which nothing can be trained any more, and give disk space back if asked to."""
        if not close(point):
            return
        self.ledger.save_point(point)
        if self.study.execute.keep is not None:
            keep = self.study.execute.keep
            best.prune_points(self.folder, self.ledger.points, keep, self._sign, self.epochs)

    def _hopeless(self, point: PointRecord, trial: TrialRecord) -> str:
        """A mistake in the first trial is in all of them; so is the first failure, if that was asked for."""
        failure = trial.failure
        assert failure is not None
        some = any(t.state in ("finished", "paused") for t in self.ledger.trials.values())
        first = point.number == 0 and not some and failure.kind in ("user error", "data")
        if not (first or self.options.fail_fast):
            return ""
        if first:  # so that the same command tries it again
            with self.ledger.transaction():
                trial.state, trial.failure, point.state = "waiting", None, "open"
                self.ledger.save_trial(trial)
                self.ledger.save_point(point)
        why = "the first trial failed, and the others would, too" if first else "a trial failed"
        return f"{why}: {failure.message}\n  trial {trial.id}, {failure.kind}"

    # -- deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self.stopper is None or not self._undecided:
            return
        self._undecided = False
        for _ in range(100):
            self._seed()
            changed = [self._apply(decision) for decision in decisions_of(self.stopper, self._board())]
            if not any(changed):
                return

    def _seed(self) -> None:
        """A stopper may draw at random: asked about the same results again, it draws the same."""
        given_up = sum(point.state == "stopped" for point in self.ledger.points)
        known = len(self.ledger.points), given_up, self._steps
        seed_for(derive(self.study.search.seed, "decide", *known))

    def _board(self) -> Board:
        return Board(self.ledger.points, self._sign, self.epochs, self.asker.coming, self.study.search.seed)

    def _apply(self, decision: Decision) -> bool:
        """Carry out a decision; return whether it has changed anything."""
        if isinstance(decision, Add):
            try:
                return (
                    self.add_point(decision.values, decision.weights, "stopper", decision.reason) is not None
                )
            except ManyfitError as error:
                self.ledger.decide(None, "refused", f"the stopper wants to add {decision.values}: {error}")
                return False
        point = self.point(decision.point)
        if isinstance(decision, Stop):
            return self.stop(point, decision.reason)
        if point.state in ("finished", "failed") or (
            point.state == "open" and decision.until == point.granted
        ):
            return False
        self.go(point, decision.until, decision.reason)
        return True

    def go(self, point: PointRecord, until: int | None, reason: str) -> None:
        """Let a point be trained further."""
        with self.ledger.transaction():
            for seed in self.study.seeds:
                self.ledger.add_trial(point, seed)
            changed = grant(point, until)
            for trial in point.trials:
                self.ledger.save_trial(trial)
            self._close(point)
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
            self.executor.interrupt(running)
        self.shown.show_stopped(point)
        return True

    def _settle(self) -> bool:
        """Nothing is being trained and nothing can be: end what waits in vain. Return whether to go on."""
        if self.watch.number or self.over_budget() or self.options.only is not None:
            return False
        board = self._board()
        left = [point for point in board.points if point.state == "waiting"]
        if left and not any(point.state == "finished" for point in board.points):
            self.go(board.ranked(left)[0].record, None, "the best of those that are left")
            return bool(self._queue)
        for point in left:
            done = pluralize(point.record.granted or 0, "epoch")
            self.stop(point.record, f"not chosen to go on after {done}")
        self._undecided = True
        self._decide()
        return bool(self._queue)

    # -- points that nobody has planned -----------------------------------------------------------

    def add_point(
        self, values: Mapping[str, Any], parent: int | None, origin: str, reason: str
    ) -> PointRecord | None:
        """Add a point that no search has asked for; None if it is there already."""
        begun = ""
        if "seed" in values:
            raise UsageError("seeds are replicates, and no value of a point: raise search.seeds")
        if parent is not None:
            source = self.point(parent)
            values = {**source.values, **values}
            begun = start_weights.keep_weights(self.folder, source)
        found = candidate(self.study, to_patch(values, STUDY), origin, begun)
        known = self.ledger.point(found.id)
        if known is not None and known.current:
            log.info("point %d is what was to be added: it is there already", known.number)
            return None
        with self.ledger.transaction():
            point = self.add(found)
            point.origin = origin  # also if the study file had it once, and has it no more
            self.ledger.save_point(point)
            self.ledger.decide(point, "add", reason or origin)
        self._queue.extend(waiting(point))
        self.shown.show_added(point)
        return point

    def point(self, number: int) -> PointRecord:
        """A point by its number."""
        if not 0 <= number < len(self.ledger.points):
            raise UsageError(f"there is no point {number}; the study has {len(self.ledger.points)}")
        return self.ledger.points[number]

    def _obey(self) -> None:
        """Carry out what people have asked for; a command that cannot be carried out is set aside."""
        if self.inbox is None:
            return
        for command in self.inbox.commands():
            try:
                if not self.ledger.get(f"inbox {command.file}"):
                    with self.ledger.transaction():
                        self._carry_out(command)
                        self.ledger.set(f"inbox {command.file}", True)
                self.inbox.done(command.file)
            except (ManyfitError, RecursionError) as error:
                log.warning("%s: %s", command.action, error)
                self.inbox.refuse(command.file, str(error))

    def _carry_out(self, command: Command) -> None:
        if command.action == "add":
            self.add_point(command.values, None, "added", "asked by a person")
            return
        assert command.point is not None
        point = self.point(command.point)
        if command.action == "stop":
            self.stop(point, "stopped by a person")
            point.granted = 0  # no stopper may let it go on
            self.ledger.save_point(point)
        elif command.action == "resume":
            until = next_pause(self.stopper, point.epoch, epochs_of(point.values, self.epochs))
            self.go(point, until, "resumed by a person")
        else:
            parent = command.point if command.weights else None
            values = command.values if command.weights else {**point.values, **command.values}
            self.add_point(values, parent, "cloned", f"a clone of {point.number}")

    def _check_place(self) -> None:
        """A study that was moved away is left alone: going on would make another one at the old place."""
        if self._is_moved():
            raise StudyMoved(
                f"{self.folder.path} was moved or removed while it ran; what was committed is whole: "
                "the same command goes on where the study lies now"
            )

    def _is_moved(self) -> bool:
        try:
            found = self._absolute.path.stat()
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._place

    def _report_progress(self, progress: Progress) -> None:
        self.shown.progress(progress)
        if self._is_moved():
            self.executor.interrupt()
            return
        self._obey()

    # -- evaluating and leaving -------------------------------------------------------------------

    def evaluate(self, items: Sequence[tuple[PointRecord, TrialRecord]]) -> set[str]:
        """Export and evaluate trials that were trained; return those for which that has worked."""
        todo, done = deque(items), set[str]()
        while todo or self._busy:
            while todo and self._has_room() and not self.watch.number:
                self._submit([Ready(*todo.popleft())], purpose="evaluate")
            if self.watch.number:
                self.executor.interrupt()
            wake = [self.signals] if self.signals is not None and not self.watch.number else []
            for outcome in self.executor.wait(None, wake) if self._busy else []:
                item = self._busy.pop(outcome.trial)
                self._release(item.trial, outcome.failure.kind if outcome.failure else "evaluated")
                if outcome.failure is None:
                    done.add(outcome.trial)
                else:
                    log.warning("trial %s could not be evaluated: %s", outcome.trial, outcome.failure.message)
            if self.watch.number and not self._busy:
                self._leave()
        return done

    @property
    def _wake(self) -> list[int]:
        bell = self.inbox.bell if self.inbox is not None else None
        return [descriptor for descriptor in (self.signals, bell) if descriptor is not None]

    def _patience(self) -> float | None:
        """How long to wait at most: until the budget of time is used up, or it is time to look around."""
        limit = seconds(self.study.search.time)
        left = max(0.1, limit - self.elapsed) if limit is not None and self.elapsed < limit else math.inf
        if self.inbox is not None:
            left = min(left, LOOK)
        return left if math.isfinite(left) else None

    def _drain(self) -> None:
        """Have everything that is being trained committed, and record it."""
        self.executor.interrupt()
        while self._busy:
            for outcome in self.executor.wait(None, ()):
                item = self._busy.pop(outcome.trial)
                with self.ledger.transaction():
                    item.trial.take(self._read_committed(outcome), self._sign)
                    item.trial.state = "finished" if item.trial.over else "waiting"
                    self._close(item.point)
                    self._release(item.trial, "interrupted")
                    self.ledger.save_trial(item.trial)

    def _leave(self) -> None:
        self._drain()
        self.ledger.set("seconds", self.elapsed)
        raise Interrupted(
            f"ended by signal {self.watch.number}; the same command goes on with {self.folder.path}",
            self.watch.number,
        )
