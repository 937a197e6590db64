"""The units that the executor is working on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyfit.config.study.study import StudyConfig
from manyfit.core.position import Position
from manyfit.study.executors.base import Executor
from manyfit.study.ledger import start_weights
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.schedule import Ready
from manyfit.study.work.units import Purpose, Trial, Unit


@dataclass
class Dispatch:
    """Assigns units to an executor, and records in the ledger when they start and end."""

    study: StudyConfig
    folder: StudyFolder
    ledger: Ledger
    executor: Executor

    def __post_init__(self) -> None:
        self.busy: dict[str, Ready] = {}
        """Trials assigned to the executor, by name."""
        self._units: dict[str, int] = {}
        """The number of the unit of each of these trials."""
        self._count: dict[int, int] = {}
        """By unit: how many of its trials have no outcome yet."""
        self._outbox: list[Unit] = []
        self._first_shards: dict[str, int | None] = {}
        self.shards = 0
        """The number of shards of the training rows; 0 if they are not divided."""
        self.alone: set[str] = set()
        """Trials whose unit died with several trials in it: each is assigned a unit of its own."""
        self._absolute = StudyFolder(self.folder.path.resolve())

    def has_room(self) -> bool:
        """Return whether the executor has a free slot. Slots count units, not trials."""
        return self.count < self.executor.slots

    @property
    def count(self) -> int:
        """The number of units that the executor is working on."""
        return len(self._count)

    def submit(
        self,
        items: Sequence[Ready],
        until: int | Position | None = None,
        purpose: Purpose = "train",
        place: str = "",
        shard: int | None = None,
        luggage: Mapping[str, Any] | None = None,
    ) -> None:
        """Assign one unit with these trials to the executor; `until` is an epoch or a position.

        It is executed after `send`. `shard` is the one that its trials visit, `luggage` what they take along.
        """
        trials = [item.trial for item in items]
        assert len(trials) == 1 or not self.alone & {trial.id for trial in trials}
        # Recorded before it is submitted: after a crash, a trial that may have been trained is "running".
        with self.ledger.transaction():
            for trial in trials if purpose == "train" else ():
                trial.state = "running"
                self.ledger.save_trial(trial)
            goal = Position(until) if isinstance(until, int) else until
            number = self.ledger.begin_unit([trial.id for trial in trials], goal, purpose, place, shard)
        self.busy |= {item.trial.id: item for item in items}
        self._units |= dict.fromkeys((trial.id for trial in trials), number)
        self._count[number] = len(trials)
        made = tuple(self.as_trial(item.point, item.trial) for item in items)
        self._outbox.append(Unit(made, goal, place, number, purpose, shard, luggage or {}))

    def send(self) -> None:
        """Send the units that were assigned to the executor, once the ledger has them."""
        while self._outbox:
            self.executor.submit(self._outbox.pop(0))

    def release(self, trial: TrialRecord, outcome: str, steps: int = 0) -> None:
        """Record how a unit ended for one of its trials, and how many steps it has trained."""
        number = self._units.pop(trial.id)
        self._count[number] -= 1
        is_last = not self._count[number]
        if is_last:
            del self._count[number]
        self.ledger.end_trial(number, trial.id, outcome, steps, is_last)

    def first_shard(self, point: PointRecord, trial: TrialRecord) -> int | None:
        """Return the shard at which a trial begins: the trials of a study are spread over the shards.

        It depends on the trial alone, so that it stays the same when seeds are added or reordered. A trial
        that was trained already stays as it is, also without a first shard.
        """
        if trial.id not in self._first_shards:
            given: int | None = self.study.base.run.data.beside.get("first_shard")
            known = self.folder.trial(trial.id).snapshot() if self.executor.keeps_folders else None
            if given is None and known is not None:
                given = known.values.get("data.first_shard")
            elif given is None:
                given = (point.number + trial.seed) % self.shards
            self._first_shards[trial.id] = given
        return self._first_shards[trial.id]

    def as_trial(self, point: PointRecord, trial: TrialRecord) -> Trial:
        """Return a trial in the form that executors accept."""
        changes: dict[str, Any] = {}
        if point.parent:
            changes["train.warm_start"] = start_weights.start(
                self.folder, self.study.base.project, point, trial
            )
        if trial.split > 1:
            given = point.values.get("train.accumulate", self.study.base.run.train.accumulate)
            changes["train.accumulate"] = given * trial.split
        if self.shards and (first := self.first_shard(point, trial)) is not None:
            changes["data.first_shard"] = first
        folder = self._absolute.trial(trial.id).path
        return Trial(trial.id, str(folder), point.values, trial.seed, changes)
