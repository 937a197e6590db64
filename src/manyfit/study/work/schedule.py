"""Which trials can be trained now: pure functions of the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from manyfit.study.work.records import PointRecord, TrialRecord


@dataclass(frozen=True, slots=True)
class Ready:
    """A trial that waits for a worker."""

    point: PointRecord
    trial: TrialRecord

    @property
    def until(self) -> int | None:
        """The epoch until which it may train now."""
        return self.point.granted


def ready(points: Iterable[PointRecord], only: Collection[int] | None = None) -> list[Ready]:
    """Return trials that can be trained: the most advanced first, then by number; those that died last."""
    found = [item for point in points for item in waiting(point, only)]
    return sorted(found, key=lambda r: (r.trial.deaths > 0, -r.trial.epoch, r.point.number, r.trial.seed))


def waiting(point: PointRecord, only: Collection[int] | None = None) -> list[Ready]:
    """Return the trials of one point that can be trained."""
    if not point.current or point.state != "open" or (only is not None and point.number not in only):
        return []
    return [Ready(point, trial) for trial in point.trials if trial.state == "waiting"]


def grant(point: PointRecord, until: int | None) -> list[TrialRecord]:
    """Allow a point to train until some epoch; return the trials that have to be trained for that."""
    point.granted, point.state, point.reason = until, "open", ""
    changed = []
    for trial in point.trials:
        short = not trial.over and (until is None or trial.epoch < until)
        if trial.state in ("paused", "waiting"):
            trial.state = "waiting" if short else "paused"
            changed += [trial] if short else []
    return changed


def close(point: PointRecord) -> bool:
    """Close a point that has nothing left to train; return whether it was closed now.

    One failed seed makes a point incomparable, so its other seeds do not wait for a decision.
    """
    states = {trial.state for trial in point.trials}
    if point.state != "open" or not states:
        return False
    failed = bool(states & {"failed", "infeasible"})
    if states == {"finished"}:
        point.state = "finished"
    elif failed and not states & {"waiting", "running"}:
        point.state = "failed"
    return point.state != "open"
