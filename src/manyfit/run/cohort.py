"""The n ≥ 1 runs that one loop drives together. Each has its own folder, log and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from manyfit.config import Config
from manyfit.core.state import State
from manyfit.data import Batch, Source
from manyfit.learn.learner import Learner
from manyfit.run.plan import Boundary, Plan
from manyfit.store import checkpoint
from manyfit.store.checkpoint import Checkpoint
from manyfit.store.events import Event, EventLog
from manyfit.store.folder import RunFolder


@dataclass
class Member:
    """One run of a cohort: what it is, where it lies, and what it has measured."""

    config: Config
    folder: RunFolder
    log: EventLog
    committed: list[Event] = field(default_factory=list)
    pending: list[Event] = field(default_factory=list)

    def record(self, boundary: Boundary, values: Mapping[str, float]) -> Event:
        """Write one row to the log."""
        event = self.log.append(boundary.step, boundary.epoch, values)
        self.pending.append(event)
        return event

    def commit(self, state: State, boundary: Boundary) -> Checkpoint:
        """Write a checkpoint; from now on the rows before it will not be lost."""
        export = self.config.run.export
        metrics = self.pending[-1].values if self.pending else {}
        saved = checkpoint.save(
            self.folder.checkpoint_folder, state, boundary.step, boundary.epoch, metrics, self.log.sync()
        )
        checkpoint.prune(self.folder.checkpoint_folder, export.metric, export.mode)
        self.committed += self.pending
        self.pending.clear()
        return saved


@dataclass
class Cohort:
    """Runs that are trained together, and what they share: learner, plan and data."""

    members: Sequence[Member]
    learner: Learner
    plan: Plan
    batches: Iterator[Batch]
    validation: Source | None
    batch_size: int
    step: int = 0
