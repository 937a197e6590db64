"""The main loop of a study: decide, assign units, record outcomes, until nothing is left to train."""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from manyfit.config.study.quantities import seconds
from manyfit.core.errors import Interrupted, ManyfitError, RunFailed
from manyfit.core.names import pluralize
from manyfit.core.seeds import derive
from manyfit.data.randomness import seed_for
from manyfit.study.drive.assigning import Assigning
from manyfit.study.drive.commands import obey_commands
from manyfit.study.executors.worker import tidy_output
from manyfit.study.search.decisions import Add, Board, Decision, Stop, decisions_of
from manyfit.study.search.standings import Standings
from manyfit.study.work import policy
from manyfit.study.work.failures import failure_of
from manyfit.study.work.folder import PlaceWatch
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.schedule import Ready, ready
from manyfit.study.work.training import read_committed_progress
from manyfit.study.work.units import Failure, Outcome, Progress

log = logging.getLogger("manyfit")

MOST_LOST: Final = 3
"""How often an evaluation is repeated whose worker was lost."""
LOOK: Final = 5.0
"""Seconds between checks of the study folder and the inbox while no unit ends."""


class StudyStopped(RunFailed):
    """The first trial failed as all others would, or any trial failed with `--fail-fast`."""


class StudyMoved(RunFailed):
    """The study folder was moved or removed while the study was running."""

    kind = "folder"


@dataclass
class Driver(Assigning):
    """Drives one study. The ledger holds all durable state; the attributes can be rebuilt from it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger.take_changed()
        self._standings = Standings(self.ledger.points, self._sign)
        self._noted = -1.0
        self._place = PlaceWatch(self.folder.path)

    def run(self) -> None:
        """Train until nothing is left, the budget is exhausted, or a signal arrives."""
        self.executor.tell = self._report_progress
        self._steps = sum(trial.step for trial in self.ledger.trials.values())
        self._queue = deque(ready(self.ledger.points, self.options.only))
        try:
            self._run()
        finally:
            if self.keepers is not None:
                self.keepers.close_all()
        self.ledger.set("seconds", self.elapsed)
        if self._how:
            self.ledger.set("trained", self._how)
        if self.watch.number:
            self._leave()

    def _run(self) -> None:
        settled, outcomes = False, list[Outcome]()
        while True:
            self._check_place()  # before recording: outcomes from a moved folder must not be recorded
            for reason in self._step(outcomes):
                self._drain()
                raise StudyStopped(reason)
            if self.watch.number:
                self._drain()
                return
            outcomes = []
            if not self.dispatch.busy and not self._lacks_workers():
                if not self._settle():
                    return
                if settled:  # waiting for an idle executor would block forever
                    raise RuntimeError(
                        "the study has open points, but none of their trials can be assigned to the executor"
                    )
                settled = True
                continue
            settled = False
            outcomes = self.executor.wait(self._wait_time(), self._wake)

    def _step(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Record outcomes, decide, and assign units; return the reasons to stop the study, if any.

        This is one transaction of the ledger: units are sent once they are recorded. Commands have
        transactions of their own, so that one that fails leaves nothing behind.
        """
        if not self.watch.number:
            self._read_inbox()
        with self.ledger.transaction():
            reasons = [reason for outcome in outcomes if (reason := self._take(outcome))]
            if not reasons and not self.watch.number:
                self._decide()
                self._hand_out()
        self.dispatch.send()
        return reasons

    # -- recording outcomes -----------------------------------------------------------------------

    def _take(self, outcome: Outcome) -> str:
        """Record how a unit ended for a trial; return the reason if the study must stop, otherwise ''."""
        item = self.dispatch.busy.pop(outcome.trial)
        point, trial = item.point, item.trial
        outcome = self._read_committed(outcome)
        self._steps += max(0, outcome.step - trial.step)
        with self.ledger.transaction():
            self._note_how(point, outcome)
            trial.take(outcome, self._sign)
            if outcome.is_shared:
                self.dispatch.alone.add(trial.id)
            if outcome.failure is not None:
                self._record_failure(point, trial, outcome.failure, outcome)
            else:
                trial.failure = None
                trial.state = "finished" if trial.over else "paused"
                self.dispatch.release(trial, trial.state, outcome.trained)
            short = point.granted is None or trial.epoch < point.granted
            if trial.state == "paused" and point.state == "open" and short:
                trial.state = "waiting"
            self.ledger.save_trial(trial)
            self._close(point)
            self._note_time()
        if trial.state == "waiting":
            self._queue.append(Ready(point, trial))
        if self.keepers is not None:
            try:
                if outcome.failure is not None:
                    self.keepers.note_failure(trial, outcome.failure)
                if trial.state not in ("waiting", "paused"):
                    self.keepers.close(trial.id)
            except (ManyfitError, OSError) as error:
                log.warning("trial %s: %s", trial.id, error)
        self._undecided = True
        self.shown.show_ended(point, trial, outcome)
        return self._reason_to_stop(point, trial) if trial.state in ("failed", "infeasible") else ""

    def _note_time(self) -> None:
        """Record, about once per second, how long the study has been running and how far its trials are."""
        now = self.elapsed
        if now - self._noted >= 1.0:
            with self.ledger.transaction():
                self.ledger.set("seconds", now)
                self.ledger.set("reported", self._reported)
                if self._how:
                    self.ledger.set("trained", self._how)
            self._noted = now

    def _read_committed(self, outcome: Outcome) -> Outcome:
        """Complete an outcome with the progress that is committed, and count what must be trained again."""
        before = self.ledger.trials[outcome.trial].step
        if self.hopping is not None and outcome.trial in self.hopping.sent:
            return self._count_lost(self.hopping.take(outcome, before))
        if self.keepers is not None and outcome.trial in self.keepers.sent:
            return self._count_lost(self.keepers.take(outcome, before))
        return self._count_lost(self._read_run_folder(outcome, before))

    def _read_run_folder(self, outcome: Outcome, before: int) -> Outcome:
        """Complete the outcome of a process that died with the progress that its run folder has committed."""
        failure = outcome.failure
        if failure is None or not failure.process_died or not self.executor.keeps_folders:
            return outcome
        with contextlib.suppress(OSError):  # there is no output to tidy
            tidy_output(self.folder.trial(outcome.trial).path)
        step, epoch, curve = read_committed_progress(
            self.folder.trial(outcome.trial), self.study.objective.metric
        )
        return replace(outcome, step=step, epoch=epoch, curve=curve, trained=max(0, step - before))

    def _record_failure(
        self, point: PointRecord, trial: TrialRecord, failure: Failure, outcome: Outcome
    ) -> None:
        if failure.kind == "preempted" and point.state == "stopped":
            trial.state = "paused"
            self.dispatch.release(trial, "stopped", outcome.trained)
            return
        if not outcome.is_begun:  # another trial of its unit died, which is not a death of this one
            trial.state = "waiting"
            self.dispatch.release(trial, "not begun")
            return
        found = policy.verdict(trial, failure, self.study.execute.retries)
        trial.state = found.state
        trial.deaths += found.died
        trial.split *= 2 if found.split else 1
        trial.failure = failure if found.state != "waiting" else None
        self.dispatch.release(trial, failure.kind, outcome.trained)
        self.ledger.decide(point, f"{failure.kind} → {found.state}", f"trial {trial.id}: {found.reason}")

    def _reason_to_stop(self, point: PointRecord, trial: TrialRecord) -> str:
        """Return why the study must stop, if so: all trials would fail like this, or `--fail-fast` is set."""
        failure = trial.failure
        assert failure is not None
        some = any(
            t.state in ("finished", "paused") or t.epoch >= 1
            for t in self.ledger.trials.values()
            if t is not trial
        )
        first = point.number == 0 and not some and failure.kind in ("user error", "data")
        if not (first or self.options.fail_fast):
            return ""
        if first:  # so that the same command retries it
            with self.ledger.transaction():
                trial.state, trial.failure, point.state = "waiting", None, "open"
                self.ledger.save_trial(trial)
                self.ledger.save_point(point)
        why = "the first trial failed, and the others would fail as well" if first else "a trial failed"
        return f"{why}: {failure.message}\n  trial {trial.id}, {failure.kind}"

    # -- deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self.stopper is None or not self._undecided:
            return
        self._undecided = False
        for _ in range(100):
            board = self._board()
            self._seed()
            changed = [self._apply(decision) for decision in decisions_of(self.stopper, board)]
            if not any(changed):
                return

    def _seed(self) -> None:
        """Seed the generators, so that a stopper draws the same random numbers for the same results."""
        known = len(self.ledger.points), self._standings.stopped, self._steps
        seed_for(derive(self.study.search.seed, "decide", *known))

    def _board(self) -> Board:
        self._standings.update(self.ledger.take_changed())
        coming, seed = self.asker.coming, self.study.search.seed
        return Board(self.ledger.points, self._sign, self.epochs, coming, seed, self._standings)

    def _apply(self, decision: Decision) -> bool:
        """Carry out a decision; return whether it changed anything."""
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

    def _settle(self) -> bool:
        """Decide what happens to the waiting points when nothing can be trained; return whether to continue.

        If no point has finished yet, train the best one to the end; otherwise stop them.
        """
        if self.watch.number or self.over_budget() or self.options.only is not None:
            return False
        board = self._board()
        left = [point for point in board.points if point.state == "waiting"]
        if left and not any(point.state == "finished" for point in board.points):
            self.go(board.ranked(left)[0].record, None, "the best of those that are left")
            return bool(self._queue)
        with self.ledger.transaction():
            for point in left:
                done = pluralize(point.record.granted or 0, "epoch")
                self.stop(point.record, f"not chosen to continue after {done}")
        self._undecided = True
        self._decide()
        return bool(self._queue)

    def _read_inbox(self) -> None:
        if self.inbox is not None:
            obey_commands(self, self.inbox)

    def _check_place(self) -> None:
        """Stop if the study folder was moved: continuing would create a second one at the old place."""
        if self._place.is_moved():
            raise StudyMoved(
                f"{self.folder.path} was moved or removed while the study was running; everything committed "
                "is intact: run the same command where the study is now"
            )

    def _report_progress(self, progress: Progress) -> None:
        self._reported[progress.trial] = progress.step
        if self._place.is_moved():  # before anything is written to it
            self.executor.interrupt()
            return
        with contextlib.suppress(sqlite3.OperationalError):  # recording the outcome will raise it
            self._note_time()
        if progress.parcel is not None and self.keepers is not None:
            self.keepers.take_delivery(progress)
        self.shown.progress(progress)
        self._read_inbox()

    # -- waiting, evaluating and leaving ----------------------------------------------------------

    def evaluate(self, items: Sequence[tuple[PointRecord, TrialRecord]]) -> set[str]:
        """Export and evaluate trained trials; return those for which this succeeded."""
        todo, done, lost = deque(items), set[str](), Counter[str]()
        while todo or self.dispatch.busy:
            while todo and self.dispatch.has_room() and not self.watch.number:
                item = Ready(*todo.popleft())
                self.dispatch.submit([item], purpose="evaluate", luggage=self._lend(item))
                self.dispatch.send()
            if self.watch.number:
                self.executor.interrupt()
            wake = [self.signals] if self.signals is not None and not self.watch.number else []
            is_stuck = bool(todo) and not self.executor.slots  # until a worker comes
            for outcome in self.executor.wait(None, wake) if self.dispatch.busy or is_stuck else []:
                item = self.dispatch.busy.pop(outcome.trial)
                self.dispatch.release(item.trial, outcome.failure.kind if outcome.failure else "evaluated")
                failure = self._take_evaluated(item, outcome) or outcome.failure
                if failure is None:
                    done.add(outcome.trial)
                elif (
                    failure.kind == "preempted" and not self.watch.number and lost[outcome.trial] < MOST_LOST
                ):
                    lost[outcome.trial] += 1
                    todo.append((item.point, item.trial))  # its worker was lost
                else:
                    log.warning("trial %s could not be evaluated: %s", outcome.trial, failure.message)
            if self.watch.number and not self.dispatch.busy:
                self._leave()
        return done

    def _lend(self, item: Ready) -> dict[str, Any]:
        """Return what a trial takes along to be evaluated: nothing, if workers have its folder."""
        if self.keepers is None or not self.executor.travels:
            return {}
        return {item.trial.id: self.keepers.lend(self.dispatch.as_trial(item.point, item.trial))}

    def _take_evaluated(self, item: Ready, outcome: Outcome) -> Failure | None:
        """Take over the files of an evaluation; return why they could not be written, if so."""
        if self.keepers is None:
            return None
        try:
            if outcome.output:
                self.keepers.append_output(outcome.trial, outcome.output)
            self.keepers.take_evaluated(self.dispatch.as_trial(item.point, item.trial), outcome.parcel)
        except (ManyfitError, OSError) as error:
            return failure_of(error)
        return None

    @property
    def _wake(self) -> list[int]:
        bell = self.inbox.bell if self.inbox is not None else None
        return [descriptor for descriptor in (self.signals, bell) if descriptor is not None]

    def _wait_time(self) -> float | None:
        """Return the longest time to wait: until the time budget is exhausted or the next check is due."""
        limit = seconds(self.study.search.time)
        left = max(0.1, limit - self.elapsed) if limit is not None and self.elapsed < limit else math.inf
        if self.inbox is not None:
            left = min(left, LOOK)
        return left if math.isfinite(left) else None

    def _drain(self) -> None:
        """Interrupt the running trials, so that they commit their progress, and record it."""
        self.executor.interrupt()
        while self.dispatch.busy:
            for outcome in self.executor.wait(None, ()):
                item = self.dispatch.busy.pop(outcome.trial)
                outcome = self._read_committed(outcome)
                with self.ledger.transaction():
                    item.trial.take(outcome, self._sign)
                    item.trial.state = "finished" if item.trial.over else "waiting"
                    self._close(item.point)
                    self.dispatch.release(item.trial, "interrupted", outcome.trained)
                    self.ledger.save_trial(item.trial)

    def _leave(self) -> None:
        self._drain()
        self.ledger.set("seconds", self.elapsed)
        raise Interrupted(
            f"ended by signal {self.watch.number}; the same command resumes {self.folder.path}",
            self.watch.number,
        )
