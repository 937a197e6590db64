"""The best point of a study, and `best/`: its best trial as a run folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Final

from manyfit.core.errors import FolderError
from manyfit.store import durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.study.folder import StudyFolder
from manyfit.study.records import PointRecord, TrialRecord

COPIED: Final = (
    "config.yaml",
    "config.resolved.yaml",
    "provenance.json",
    "metrics.jsonl",
    "reports",
    "exported",
)


def ranked(points: Sequence[PointRecord], sign: int) -> list[PointRecord]:
    """Points that can be compared, the best first: finished ones before those that were given up."""
    scored = [(point.value(sign), point) for point in points if point.current]
    known = [(value, point) for value, point in scored if value is not None and value == value]
    found = sorted(known, key=lambda item: (item[1].state != "finished", sign * item[0], item[1].id))
    return [point for _, point in found]


def best_trial(point: PointRecord, sign: int) -> TrialRecord:
    """The trial of a point whose weights are taken."""
    return min(point.trials, key=lambda t: (sign * t.value if t.value is not None else float("inf"), t.seed))


def is_current(folder: StudyFolder, trial: TrialRecord) -> bool:
    """Whether `best/` holds this trial as it is now."""
    note = read_json(folder.best / "best.json", {})
    return note.get("trial") == trial.id and note.get("step") == trial.step


def is_evaluated(folder: StudyFolder, trial: TrialRecord) -> bool:
    """Whether a trial was exported and evaluated as it is now."""
    run = folder.trial(trial.id)
    summary = run.summary()
    return bool(summary.get("splits")) and summary.get("step") == trial.step and run.exported.is_dir()


def write_best(folder: StudyFolder, point: PointRecord, trial: TrialRecord, metric: str, mode: str) -> None:
    """Copy the trial, with its best checkpoint alone, so that it can be used and passed on."""
    source = folder.trial(trial.id)
    chosen = source.chosen(metric, mode)
    temporary = folder.path / ".best.tmp"
    if temporary.exists():
        durable.discard(temporary)
    temporary.mkdir(parents=True)
    for name in COPIED:
        path = source.path / name
        if path.is_dir():
            shutil.copytree(path, temporary / name)
        elif path.is_file():
            shutil.copy2(path, temporary / name)
    shutil.copytree(chosen.path, temporary / "checkpoints" / chosen.path.name)
    _end_at(RunFolder(temporary), chosen.step)
    note = {"trial": trial.id, "point": point.number, "seed": trial.seed, "values": dict(point.values),
            "metric": metric, "value": trial.value, "step": trial.step}  # fmt: skip
    durable.write(temporary / "best.json", json.dumps(note, indent=1) + "\n")
    durable.commit_folder(temporary, folder.best)


def _end_at(run: RunFolder, step: int) -> None:
    """The copy ends at the checkpoint that it has; otherwise it would count as unfinished."""
    summary = read_json(run.reports / "summary.json", {})
    if not summary:
        raise FolderError(f"{run.path} was not evaluated")
    durable.write(
        run.reports / "summary.json", json.dumps({**summary, "step": step, "chosen": True}, indent=1)
    )


def prune(folder: StudyFolder, points: Sequence[PointRecord], keep: int, sign: int) -> list[str]:
    """Remove the checkpoints of all but the best points. Return whose.

    What is open keeps its own, so does what failed and may be tried again, and what the study once had.
    """
    kept = {point.number for point in ranked(points, sign)[:keep]}
    removed = []
    for point in points:
        if point.number in kept or point.state not in ("finished", "stopped") or not point.current:
            continue
        for trial in point.trials:
            checkpoints = folder.trial(trial.id).checkpoint_folder
            if checkpoints.is_dir() and trial.state not in ("running", "waiting"):
                durable.discard(checkpoints)
                removed.append(trial.id)
    return removed
