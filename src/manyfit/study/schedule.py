"""What can be trained now: a pure function of what the ledger holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from manyfit.study.records import PointRecord, TrialRecord


@dataclass(frozen=True, slots=True)
class Ready:
    """A trial that waits for a worker."""

    point: PointRecord
    trial: TrialRecord

    @property
    def until(self) -> int | None:
        """Epochs until which it may be trained now."""
        return self.point.granted


def ready(points: Iterable[PointRecord], only: Collection[int] | None = None) -> list[Ready]:
    """Trials that can be trained: those that are far first, then by number; those that died come last."""
    found = [item for point in points for item in waiting(point, only)]
    return sorted(found, key=lambda r: (r.trial.deaths > 0, -r.trial.epoch, r.point.number, r.trial.seed))


def waiting(point: PointRecord, only: Collection[int] | None = None) -> Iterator[Ready]:
    """Trials of one point that can be trained."""
    if not point.current or point.state != "open" or (only is not None and point.number not in only):
        return
    for trial in point.trials:
        if trial.state == "waiting":
            yield Ready(point, trial)


def grant(point: PointRecord, until: int | None) -> list[TrialRecord]:
    """Let a point be trained until some epoch; return the trials that have to be trained for that."""
    point.granted, point.state, point.reason = until, "open", ""
    changed = []
    for trial in point.trials:
        short = not trial.over and (until is None or trial.epoch < until)
        if trial.state == "paused" and short:
            trial.state = "waiting"
            changed.append(trial)
    return changed
