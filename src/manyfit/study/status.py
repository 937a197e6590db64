"""The status of a study, read from its folder: while it is running, after it has ended, or after a crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from manyfit.core.errors import ManyfitError
from manyfit.store.lock import is_owned
from manyfit.study.ledger.reader import Read, read_only
from manyfit.study.result import select_seeds
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord


def status(place: Path, read: Read | None = None) -> dict[str, Any]:
    """Return the state, counts, running trials and failures. `read` is the ledger, if already read."""
    folder = StudyFolder(place)
    points, facts, decisions = read or read_only(folder.ledger)
    current, running = select_seeds(points, facts), is_owned(folder.path)
    trials = [trial for point in current for trial in point.trials]
    asked = sum(point.origin == "asked" for point in current)
    planned = max(0, (facts.get("trials") or 0) - asked) if asked else 0
    counts = Counter(_state(point, trial, running) for point in current for trial in point.trials)
    counts["planned"] = planned * len(facts.get("seeds") or [0])
    left = sum(counts[state] for state in ("waiting", "running", "interrupted", "paused", "planned"))
    return {
        "study": folder.name,
        "folder": str(folder.path),
        "state": "running" if running else "unfinished" if left or not trials else "finished",
        "objective": facts.get("objective"),
        "points": len(current),
        "trials": {state: count for state, count in counts.items() if count},
        "steps": sum(trial.step for trial in trials),
        "repeated_steps": int(facts.get("repeated_steps") or 0),
        "execution": facts.get("execution"),
        "trained": dict(Counter((facts.get("trained") or {}).values())),
        "seconds": round(float(facts.get("seconds") or 0.0), 1),
        "training": [_live(folder, t, facts) for t in trials if t.state == "running" and running],
        "failures": group_failures(current),
        "decisions": len(decisions),
    }


def _live(folder: StudyFolder, trial: TrialRecord, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a running trial with the last epoch of its own log, which is ahead of the ledger."""
    epoch, value = trial.epoch, trial.value
    try:
        for event in folder.trial(trial.id).events()[-1:]:
            epoch, value = event.epoch, event.values.get(facts["objective"]["metric"], value)
    except ManyfitError:  # the log is being written, or damaged, which the driver will report
        pass
    return {"point": trial.point, "trial": trial.id, "seed": trial.seed, "epoch": epoch, "value": value}


def _state(point: PointRecord, trial: Any, running: bool) -> str:
    if trial.state == "running" and not running:
        return "interrupted"
    if point.state in ("stopped", "failed") and trial.state in ("paused", "waiting"):
        return "stopped"
    return str(trial.state)


def group_failures(points: list[PointRecord]) -> list[dict[str, Any]]:
    """Group the failures by their location in the code, with their trials; the most frequent first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for point in points:
        for trial in point.trials:
            if trial.failure is None or trial.state not in ("failed", "infeasible"):
                continue
            key = (trial.failure.kind, trial.failure.group or trial.failure.message)
            group = groups.setdefault(
                key,
                {
                    "kind": trial.failure.kind,
                    "count": 0,
                    "message": trial.failure.message,
                    "traceback": trial.failure.traceback,
                    "points": [],
                    "trials": [],
                },
            )
            group["count"] += 1
            group["trials"].append(trial.id)
            if point.number not in group["points"]:
                group["points"].append(point.number)
    return sorted(groups.values(), key=lambda group: -group["count"])
