"""The units that the executor is working on."""

from __future__ import annotations

from collections.abc import Sequence
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
        self.alone: set[str] = set()
        """Trials whose unit died with several trials in it: each is assigned a unit of its own."""
        self._absolute = StudyFolder(self.folder.path.resolve())

    def has_room(self) -> bool:
        """Return whether the executor has a free slot. Slots count units, not trials."""
        return len(set(self._units.values())) < self.executor.slots

    def submit(
        self, items: Sequence[Ready], until: int | None = None, purpose: Purpose = "train", place: str = ""
    ) -> None:
        """Assign one unit with these trials to the executor."""
        trials = [item.trial for item in items]
        assert len(trials) == 1 or not self.alone & {trial.id for trial in trials}
        # Recorded before it is submitted: after a crash, a trial that may have been trained is "running".
        with self.ledger.transaction():
            for trial in trials if purpose == "train" else ():
                trial.state = "running"
                self.ledger.save_trial(trial)
            number = self.ledger.begin_unit([trial.id for trial in trials], until, purpose, place)
        self.busy |= {item.trial.id: item for item in items}
        self._units |= dict.fromkeys((trial.id for trial in trials), number)
        made = tuple(self.as_trial(item.point, item.trial) for item in items)
        goal = None if until is None else Position(until)
        self.executor.submit(Unit(made, goal, place, number, purpose))

    def release(self, trial: TrialRecord, outcome: str) -> None:
        """Record how a unit ended for one of its trials."""
        self.ledger.end_trial(self._units.pop(trial.id), trial.id, outcome)

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
        folder = self._absolute.trial(trial.id).path
        return Trial(trial.id, str(folder), point.values, trial.seed, changes)
