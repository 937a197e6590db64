"""Operations on the points of a study: add, continue, stop."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyfit.config.study.space import to_patch
from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import UsageError
from manyfit.study.drive.dispatch import Dispatch
from manyfit.study.drive.display import Display, Silent
from manyfit.study.executors.base import Executor
from manyfit.study.ledger import best, start_weights
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.asker import Asker
from manyfit.study.search.decisions import Stopper, next_pause
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import STUDY, Candidate, candidate
from manyfit.study.work.records import PointRecord, epochs_of
from manyfit.study.work.schedule import Ready, close, grant, waiting

log = logging.getLogger("manyfit")


@dataclass
class PointControl:
    """Adds, continues and stops points: in the ledger, in the queue and on the executor."""

    study: StudyConfig
    folder: StudyFolder
    ledger: Ledger
    executor: Executor
    shown: Display = field(default_factory=Silent, kw_only=True)

    def __post_init__(self) -> None:
        stop = self.study.search.stop
        self.stopper: Stopper | None = stop.build() if stop is not None else None
        self.asker = Asker(self.study, self.ledger)
        self.dispatch = Dispatch(self.study, self.folder, self.ledger, self.executor)
        self.epochs = self.study.base.run.train.epochs
        self._sign = self.study.objective.sign
        self._queue: deque[Ready] = deque()

    def point(self, number: int) -> PointRecord:
        """Return a point by its number."""
        if not 0 <= number < len(self.ledger.points):
            raise UsageError(f"there is no point {number}; the study has {len(self.ledger.points)} points")
        return self.ledger.points[number]

    def add(self, found: Candidate) -> PointRecord:
        """Add a point to the ledger, with one trial per seed."""
        until = next_pause(self.stopper, 0, epochs_of(found.values, self.epochs))
        known = self.ledger.point(found.id)
        if known is None or not known.current:
            self.asker.note_added(found)
        point = self.ledger.add(found, until)
        if point.state != "stopped":  # a stopped point gets no further seeds
            for seed in self.study.seeds:
                self.ledger.add_trial(point, seed)
        return point

    def add_point(
        self, values: Mapping[str, Any], parent: int | None, origin: str, reason: str
    ) -> PointRecord | None:
        """Add a point that the search did not propose; return None if it already exists."""
        begun = ""
        if "seed" in values:
            raise UsageError("seeds are replicates, not values of a point: increase search.seeds")
        if parent is not None:
            source = self.point(parent)
            values = {**source.values, **values}
            self._flush(source)
            begun = start_weights.keep_weights(self.folder, source)
        found = candidate(self.study, to_patch(values, STUDY), origin, begun)
        known = self.ledger.point(found.id)
        if known is not None and known.current:
            log.info("point %d already exists; nothing was added", known.number)
            return None
        with self.ledger.transaction():
            point = self.add(found)
            point.origin = origin  # also for a point that an earlier version of the study file contained
            self.ledger.save_point(point)
            self.ledger.decide(point, "add", reason or origin)
        self._queue.extend(waiting(point))
        self.shown.show_added(point)
        return point

    def _flush(self, point: PointRecord) -> None:
        """Write the newest states of a point to disk, if they are in memory."""

    def go(self, point: PointRecord, until: int | None, reason: str) -> None:
        """Continue the training of a point until an epoch; None means to the end."""
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
        """Stop a point with all its trials; those being trained commit their progress first."""
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
        running = [trial.id for trial in point.trials if trial.id in self.dispatch.busy]
        if running:
            self.executor.interrupt(running)
        self.shown.show_stopped(point)
        return True

    def _close(self, point: PointRecord) -> None:
        """Close a point that has nothing left to train; prune checkpoints if `execute.keep` is set."""
        if not close(point):
            return
        self.ledger.save_point(point)
        if self.study.execute.keep is not None:
            keep = self.study.execute.keep
            best.prune_points(self.folder, self.ledger.points, keep, self._sign, self.epochs)
