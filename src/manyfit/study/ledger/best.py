"""The best point of a study, and `best/`: its best trial as a separate run folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from manyfit.config.typed.artifacts import is_own_run, reseal_config
from manyfit.core.errors import FolderError
from manyfit.store import durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord, epochs_of, fair_epoch

COPIED: Final = (
    "config.yaml",
    "config.resolved.yaml",
    "provenance.json",
    "metrics.jsonl",
    "reports",
    "exported",
)


def rank_points(points: Sequence[PointRecord], sign: int, epochs: int) -> list[PointRecord]:
    """Return the comparable points, best first: finished ones before stopped ones.

    Of a point that was trained for more epochs than the study now has, only those epochs count.
    """
    scored = [(p.value(sign, fair_epoch(p, epochs)), p) for p in points if p.current]
    known = [(value, point) for value, point in scored if value is not None and value == value]
    found = sorted(known, key=lambda item: (item[1].state != "finished", sign * item[0], item[1].id))
    return [point for _, point in found]


def best_trial(point: PointRecord, sign: int, epochs: int) -> TrialRecord:
    """Return the trial of a point with the best value; ties go to the smallest seed."""
    limit = epochs_of(point.values, epochs)

    def score(trial: TrialRecord) -> tuple[float, int]:
        value = trial.best(limit, sign)
        return (sign * value if value is not None else math.inf), trial.seed

    return min(point.trials, key=score)


def is_current(folder: StudyFolder, trial: TrialRecord, metric: str, mode: str) -> bool:
    """Return whether `best/` holds this trial at its current step, for the current objective."""
    note = read_json(folder.best / "best.json", {})
    now = {"trial": trial.id, "step": trial.step, "metric": metric, "mode": mode}
    return all(note.get(key) == value for key, value in now.items())


def is_evaluated(folder: StudyFolder, trial: TrialRecord) -> bool:
    """Return whether a trial was exported and evaluated at its current step."""
    run = folder.trial(trial.id)
    summary = run.summary()
    return bool(summary.get("splits")) and summary.get("step") == trial.step and run.exported.is_dir()


def write_best(folder: StudyFolder, point: PointRecord, trial: TrialRecord, metric: str, mode: str) -> None:
    """Write `best/`: a copy of the trial with only its best checkpoint, usable as a run folder."""
    source = folder.trial(trial.id)
    chosen = source.select_checkpoint(metric, mode)
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
    _seal_again(source.resolved, temporary, folder.best)
    (temporary / "checkpoints").mkdir()
    chosen.copy_to(temporary / "checkpoints" / chosen.path.name)
    _end_at(RunFolder(temporary), chosen.step)
    note = {"trial": trial.id, "point": point.number, "seed": trial.seed, "values": dict(point.values),
            "metric": metric, "mode": mode, "value": trial.value, "step": trial.step}  # fmt: skip
    durable.write_file(temporary / "best.json", json.dumps(note, indent=1) + "\n")
    durable.commit_folder(temporary, folder.best)


def _seal_again(resolved: Path, temporary: Path, final: Path) -> None:
    """Seal the copied config for its new folder if the original is sealed: a seal is valid in one folder."""
    if is_own_run(resolved):
        durable.write_file(temporary / resolved.name, reseal_config(resolved, final))


def _end_at(run: RunFolder, step: int) -> None:
    """Set the step of the summary to that of the only checkpoint, so that the copy counts as finished."""
    summary = read_json(run.reports / "summary.json", {})
    if not summary:
        raise FolderError(f"{run.path} was not evaluated")
    stopped = summary.get("stopped") or "the best checkpoint of a study"
    durable.write_file(
        run.reports / "summary.json",
        json.dumps({**summary, "step": step, "stopped": stopped}, indent=1),
    )


def prune_points(
    folder: StudyFolder, points: Sequence[PointRecord], keep: int, sign: int, epochs: int
) -> list[str]:
    """Remove the checkpoints of all but the best points; return the names of the trials.

    Open points, failed points (which may be retried) and points that the study no longer has keep theirs.
    """
    kept = {point.number for point in rank_points(points, sign, epochs)[:keep]}
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
