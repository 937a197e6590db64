"""Trials that hop: their keepers, where they are, and which visit comes next."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ManyfitError
from manyfit.core.position import Position
from manyfit.run.travel.keeper import Keeper, Start
from manyfit.run.travel.luggage import Luggage
from manyfit.store.checkpoint import Note
from manyfit.study.executors.base import Executor
from manyfit.study.work.failures import failure_of
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.hops import Hop, Hops, Stage, Worker, pick, place_shards
from manyfit.study.work.points import trial_config
from manyfit.study.work.records import TrialRecord, epochs_of
from manyfit.study.work.schedule import Ready
from manyfit.study.work.training import OURS, STUDY_FILE, curve_of, text_of
from manyfit.study.work.units import Failure, Outcome, Trial

log = logging.getLogger("manyfit")

MOST_OPEN: Final = 256
"""The number of runs whose folders are open at once; each needs open files and a thread."""
FILES: Final = 8
"""Open files of such a run: its lock, its log, and states in memory that wait to be written."""
OTHER_FILES: Final = 256
SHARE: Final = 4
"""States in memory occupy at most this part of the machine's memory: a quarter."""


@dataclass
class Hopping:
    """The trials of one study that hop over the shards of its data."""

    study: StudyConfig
    folder: StudyFolder
    executor: Executor
    shards: int
    measured: int = 0
    """The number of shards of the validation rows; 0 if they are measured as a whole."""
    allowed: Collection[str] = ()
    stages: dict[str, Stage] = field(default_factory=dict)
    """Where each trial is, as far as it is known."""

    def __post_init__(self) -> None:
        names = list(self.executor.places) or [""] * self.executor.slots
        self.is_named = bool(self.executor.places)
        self.workers = place_shards(names, self.shards if self.is_named else 1, self.executor.speeds)
        if not self.is_named:  # any worker can read any shard
            self.workers = [replace(worker, shards=tuple(range(self.shards))) for worker in self.workers]
        self._hops = Hops(self.shards)
        self._items: dict[str, Ready] = {}
        self._taken: dict[str, tuple[int, Worker]] = {}
        self._numbers = {worker.name: number for number, worker in enumerate(self.workers)}
        self.sent: dict[str, Hop] = {}
        """The visits that workers are working on, by trial."""
        self._cost: dict[str, float] = {}
        """Seconds of a visit on a worker of speed 1, by trial."""
        self._keepers: OrderedDict[str, Keeper] = OrderedDict()
        self._free = dict(enumerate(self.workers))
        """The workers without a visit, by number; those without names are all alike."""
        self._most_open = count_open_runs()
        self._is_uniform = len({worker.speed for worker in self.workers}) == 1

    # -- choosing ---------------------------------------------------------------------------------

    def enlist(self, item: Ready, first: int, base: int) -> None:
        """Let a trial wait for its next visit. `base` is the number of epochs of the base config."""
        trial = item.trial
        if trial.id not in self.stages:
            note = None
            if trial.step and self.executor.keeps_folders:
                note = Keeper.read_note(self.folder.trial(trial.id))
            self.stages[trial.id] = read_stage(note)
        stage = self.stages[trial.id]
        visits = (epochs_of(item.point.values, base) - stage.epoch) * self.shards - len(stage.path)
        cost = self._cost.get(trial.id, math.inf)  # unknown, and possibly the longest: found out first
        self._items[trial.id] = item
        order = self.study.execute.order
        next_ = stage.next_shards(self.shards, first % self.shards, order, self.measured)
        self._hops.put(trial.id, next_, max(1, visits) * cost)

    def pick(self) -> tuple[Ready, Hop] | None:
        """Return the next visit, if a worker is free for one."""
        free: Iterable[Worker] = self._free.values()
        if not self._is_uniform:
            free = sorted(free, key=lambda worker: -worker.speed)
        found = pick(self._hops, free)
        return None if found is None else (self._items[found.trial], found)

    def drop(self, trial: str) -> None:
        """Let a trial no longer wait."""
        self._hops.remove(trial)

    def begin(self, hop: Hop) -> None:
        """Note that a visit was assigned to a worker."""
        self._hops.remove(hop.trial)
        self.sent[hop.trial] = hop
        number = self._numbers[hop.worker] if self.is_named else next(iter(self._free))
        self._taken[hop.trial] = number, self._free.pop(number)

    # -- keeping ----------------------------------------------------------------------------------

    def until(self, trial: str) -> Position:
        """Return the position at the end of the next visit of a trial."""
        return self.stages[trial].until(self.shards, self.measured)

    def pack(self, trial: Trial, shard: int) -> Luggage | None:
        """Return what a trial takes along to its next worker.

        None means that its newest checkpoint is damaged, so that it resumes from another position.
        """
        keeper, stage = self._keeper(trial), self.stages[trial.id]
        found = read_stage(keeper.note)
        if (found.epoch, found.path, found.is_within) != (stage.epoch, stage.path, stage.is_within):
            self.stages[trial.id] = found
            return None
        luggage = keeper.pack(stage.visits(shard), self.measured > 1)
        if not stage.measures(self.measured):
            return luggage
        return replace(luggage, measures_at=shard, measured=stage.measured)

    def flush(self, trial: str) -> None:
        """Write the newest state of a trial to disk, before others read it."""
        if trial in self._keepers:
            self._keepers[trial].flush()

    def _keeper(self, trial: Trial) -> Keeper:
        keeper = self._keepers.get(trial.id)
        if keeper is None:
            config = trial_config(self.study.base, trial.values, trial.seed, trial.changes)
            start = Start(STUDY_FILE, text_of(config, trial), (*self.allowed, *OURS))
            keeper = Keeper(config, self.folder.trial(trial.id), start)
            self._keepers[trial.id] = keeper
            self._make_room()
        self._keepers.move_to_end(trial.id)
        return keeper

    def _make_room(self) -> None:
        """Close the runs that were used least recently; their states are on disk."""
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE
        idle = [trial for trial in self._keepers if trial not in self.sent]
        size = sum(keeper.size for keeper in self._keepers.values())
        while len(idle) > 1 and (len(self._keepers) > self._most_open or size > most):
            size -= self._keepers[idle[0]].size
            self.close(idle.pop(0))

    def take(self, outcome: Outcome) -> Outcome:
        """Take over what a visit returned; return the outcome with the progress of the trial."""
        hop = self.sent.pop(outcome.trial)
        number, worker = self._taken.pop(outcome.trial)
        self._free[number] = worker
        if not self.executor.keeps_folders:
            if outcome.failure is None:
                self._advance(hop, outcome, worker)
            return outcome
        keeper = self._keepers[outcome.trial]
        measured = outcome.parcel.measured if outcome.parcel is not None and outcome.failure is None else b""
        try:
            if outcome.parcel is not None:
                reached = keeper.take(outcome.parcel, outcome.failure is None)
                outcome = replace(outcome, trained=reached.trained, over=reached.over, reason=reached.reason)
        except (ManyfitError, OSError) as error:
            self.abandon(outcome.trial)
            return replace(outcome, parcel=None, failure=failure_of(error))
        stage = self.stages.get(outcome.trial)
        if stage is not None and stage.measures(self.measured) and measured:
            self.stages[outcome.trial] = replace(stage, visited=stage.visited + 1, measured=measured)
        else:
            if outcome.failure is None and not (stage and stage.measures(self.measured)):
                self._cost[outcome.trial] = outcome.seconds * worker.speed
            self.stages[outcome.trial] = read_stage(keeper.note)
        is_measured = keeper.note is None or keeper.note.measured
        epoch = keeper.epoch if is_measured else math.nextafter(keeper.epoch, 0.0)  # not complete yet
        return replace(
            outcome, parcel=None, step=keeper.step, epoch=epoch,
            curve=curve_of(keeper.events, self.study.objective.metric),
        )  # fmt: skip

    def _advance(self, hop: Hop, outcome: Outcome, worker: Worker) -> None:
        self._cost[outcome.trial] = outcome.seconds * worker.speed
        self.stages[outcome.trial] = self.stages[outcome.trial].after(hop.shard, self.shards)

    def note_failure(self, trial: TrialRecord, failure: Failure) -> None:
        """Record in the folder of a trial why it cannot continue; one that is retried is opened again."""
        keeper = self._keepers.get(trial.id)
        if keeper is not None and trial.state in ("failed", "infeasible"):
            keeper.fail(failure.kind, failure.message)
        elif keeper is not None and failure.kind == "out of memory":
            self.abandon(trial.id)  # its config has changed

    def close(self, trial: str) -> None:
        """Write the state of a trial to disk, and give its folder back."""
        keeper = self._keepers.pop(trial, None)
        if keeper is not None:
            keeper.close()

    def abandon(self, trial: str) -> None:
        """Give the folder of a trial back after an error: it resumes from what is on disk."""
        self.stages.pop(trial, None)
        with contextlib.suppress(ManyfitError, OSError):
            self.close(trial)

    def close_all(self) -> None:
        """Write the states of all trials to disk."""
        for trial in list(self._keepers):
            try:
                self.close(trial)
            except ManyfitError as error:
                log.warning("%s", error)


def count_open_runs() -> int:
    """Return how many runs can be open at once, after raising the limit on open files if necessary."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OTHER_FILES + FILES * MOST_OPEN
    if resource.RLIM_INFINITY in (soft, hard) or hard >= wanted:
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return MOST_OPEN
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(4, (hard - min(OTHER_FILES, hard // 2)) // FILES)


def read_stage(note: Note | None) -> Stage:
    """Return the stage of a state; None is the start."""
    return Stage.read(note.position, note.measured) if note is not None else Stage()
