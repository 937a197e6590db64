"""Trials that hop: where they are, and which visit comes next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from manyfit.config.study.study import StudyConfig
from manyfit.core.position import Position
from manyfit.run.travel.keeper import Keeper
from manyfit.run.travel.luggage import Luggage
from manyfit.store.manifest import Note
from manyfit.study.drive.keepers import Keepers
from manyfit.study.executors.base import Executor
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.hops import Hop, Hops, Stage, Worker, pick, place_shards
from manyfit.study.work.records import epochs_of
from manyfit.study.work.schedule import Ready
from manyfit.study.work.units import Outcome, Trial

RATE: Final = 0.25
"""How much a single visit changes what is known about the speed of its worker."""


@dataclass
class _Crew:
    """The trials of one visit."""

    away: set[str]
    """Those that have not returned yet."""
    size: int


@dataclass
class Hopping:
    """The trials of one study that hop over the shards of its data."""

    study: StudyConfig
    folder: StudyFolder
    executor: Executor
    shards: int
    measured: int = 0
    """The number of shards of the validation rows; 0 if they are measured as a whole."""
    keepers: Keepers | None = None
    """The owners of the run folders; None if there are none."""
    stages: dict[str, Stage] = field(default_factory=dict)
    """Where each trial is, as far as it is known."""

    def __post_init__(self) -> None:
        self.is_named = bool(self.executor.places)
        self._hops = Hops(self.shards)
        self._items: dict[str, Ready] = {}
        self._taken: dict[str, tuple[str, Worker]] = {}
        """The workers with a visit, by trial."""
        self.sent: dict[str, Hop] = {}
        """The visits that workers are working on, by trial."""
        self._crews: dict[str, _Crew] = {}
        """The trials of each of these visits."""
        self._held: dict[str, _Crew] = {}
        """Trials that have ended a visit in one pass with others, which go on with them."""
        self._cost: dict[str, float] = {}
        """Seconds of a visit on a worker of speed 1, by trial: its share of it in a group."""
        self._sizes: dict[str, int] = {}
        """The number of trials of these visits."""
        self._speeds: dict[str, float] = {}
        """The speeds of workers as far as they were observed."""
        self._known: list[str] = []
        """The names of all workers so far: one that comes back gets its shards again."""
        self._here: dict[str, Worker] = {}
        """The workers, by name; those without names are all alike, and are numbered."""
        self._free: dict[str, Worker] = {}
        """Those of them without a visit."""
        self.meet_workers()

    @property
    def workers(self) -> list[Worker]:
        """The workers, and the shards that they have."""
        return list(self._here.values())

    def meet_workers(self) -> None:
        """Distribute the shards over the workers that there are now, if some have come or gone."""
        names = list(self.executor.places) if self.is_named else [str(i) for i in range(self.executor.slots)]
        if names == list(self._here):
            return
        self._known += [name for name in names if name not in self._known]
        speeds = {**self._speeds, **self.executor.speeds}
        if self.is_named:
            workers = place_shards(
                self._known, self.shards, speeds, replicas=self.executor.replicas, present=names,
                holds=self.executor.holds,
            )  # fmt: skip
        else:  # any worker can read any shard
            workers = [Worker("", tuple(range(self.shards))) for _ in names]
        self._here = dict(zip(names, workers, strict=True))
        busy = {key for key, _ in self._taken.values()}
        self._free = {key: worker for key, worker in self._here.items() if key not in busy}
        self._is_uniform = len({worker.speed for worker in workers}) <= 1

    # -- choosing ---------------------------------------------------------------------------------

    def enlist(self, item: Ready, first: int, base: int) -> None:
        """Let a trial wait for its next visit. `base` is the number of epochs of the base config."""
        trial = item.trial
        if trial.id not in self.stages:
            note = None
            if trial.step and self.keepers is not None:
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

    @property
    def waiting(self) -> int:
        """How many trials wait for a visit."""
        return self._hops.count

    def find_mates(self, hop: Hop) -> list[Ready]:
        """Return the other trials that wait for the same visit, at the same stage."""
        stage = replace(self.stages[hop.trial], measured=b"")
        there = (trial for trial in self._hops.list_waiting(hop.shard) if trial != hop.trial)
        return [self._items[trial] for trial in there if replace(self.stages[trial], measured=b"") == stage]

    def is_held(self, trial: str) -> bool:
        """Return whether a trial waits for those with which it has trained, to go on with them."""
        crew = self._held.get(trial)
        if crew is not None and not crew.away:
            del self._held[trial]
        return trial in self._held

    @property
    def workers_per_shard(self) -> int:
        """How many workers share the work on one shard."""
        return max(1, len(self._here) // self.shards)

    def begin(self, hop: Hop, trials: Collection[str]) -> None:
        """Note that a visit of some trials was assigned to a worker."""
        key = hop.worker if self.is_named else next(iter(self._free))
        worker, crew = self._free.pop(key), _Crew(set(trials), len(trials))
        for trial in trials:
            self._hops.remove(trial)
            self.sent[trial] = replace(hop, trial=trial)
            self._taken[trial] = key, worker
            self._crews[trial] = crew

    # -- keeping ----------------------------------------------------------------------------------

    def until(self, trial: str) -> Position:
        """Return the position at the end of the next visit of a trial."""
        return self.stages[trial].until(self.shards, self.measured)

    def pack(self, trial: Trial, shard: int) -> Luggage | None:
        """Return what a trial takes along to its next worker.

        None means that its newest checkpoint is damaged, so that it resumes from another position.
        """
        assert self.keepers is not None
        keeper, stage = self.keepers.open(trial), self.stages[trial.id]
        found = read_stage(keeper.note)
        if (found.epoch, found.path, found.is_within) != (stage.epoch, stage.path, stage.is_within):
            self.stages[trial.id] = found
            return None
        luggage = keeper.pack(stage.visits(shard), self.measured > 1)
        if not stage.measures(self.measured):
            return luggage
        return replace(luggage, measures_at=shard, measured=stage.measured)

    def take(self, outcome: Outcome, before: int) -> Outcome:
        """Take over what a visit returned; return the outcome with the progress of the trial.

        `before` is the step at which the ledger has it.
        """
        hop = self.sent.pop(outcome.trial)
        key, worker = self._taken.pop(outcome.trial)
        if key in self._here and not any(key == taken for taken, _ in self._taken.values()):
            self._free[key] = self._here[key]
        crew = self._crews.pop(outcome.trial)
        crew.away.discard(outcome.trial)
        if crew.away and not outcome.how.startswith("alone"):
            self._held[outcome.trial] = crew
        if self.keepers is None:
            if outcome.failure is None:
                self._advance(hop, outcome, worker)
            return outcome
        measured = outcome.parcel.measured if outcome.parcel is not None and outcome.failure is None else b""
        outcome = self.keepers.take(outcome, before)
        keeper, stage = self.keepers.get(outcome.trial), self.stages.get(outcome.trial)
        if keeper is None:  # its folder could not be written
            self.stages.pop(outcome.trial, None)
            return outcome
        if stage is not None and stage.measures(self.measured) and measured:
            self.stages[outcome.trial] = replace(stage, visited=stage.visited + 1, measured=measured)
        else:
            if outcome.failure is None and not (stage and stage.measures(self.measured)):
                self._learn_speed(hop, outcome, worker, crew.size)
            self.stages[outcome.trial] = read_stage(keeper.note)
        return outcome

    def _learn_speed(self, hop: Hop, outcome: Outcome, worker: Worker, size: int) -> None:
        """Note how long a visit took: for the trial, and for the worker in comparison with the others.

        Visits are compared with those of as many trials.
        """
        known, seconds = self._cost.get(outcome.trial), max(outcome.seconds / size, 1e-9)
        known = known if self._sizes.get(outcome.trial, size) == size else None
        self._sizes[outcome.trial] = size
        speed = worker.speed
        if known is not None and hop.worker and not self.executor.speeds:
            speed += RATE * (known / seconds - speed)
            self._speeds[hop.worker] = speed
            self._set_speed(hop.worker, speed)
        self._cost[outcome.trial] = seconds * speed if known is None else (known + seconds * speed) / 2

    def _set_speed(self, name: str, speed: float) -> None:
        for there in (self._here, self._free):
            if name in there:
                there[name] = replace(there[name], speed=speed)
        self._is_uniform = False

    def _advance(self, hop: Hop, outcome: Outcome, worker: Worker) -> None:
        self._cost[outcome.trial] = outcome.seconds * worker.speed
        self.stages[outcome.trial] = self.stages[outcome.trial].after(hop.shard, self.shards)

    def abandon(self, trial: str) -> None:
        """Give the folder of a trial back after an error: it resumes from what is on disk."""
        self.stages.pop(trial, None)
        if self.keepers is not None:
            self.keepers.abandon(trial)


def read_stage(note: Note | None) -> Stage:
    """Return the stage of a state; None is the start."""
    return Stage.read(note.position, note.measured) if note is not None else Stage()
