"""Mirrors of a study in TensorBoard's HParams page and in MLflow, from the ledger and the run folders."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manyfit.core.errors import FolderError
from manyfit.core.lazy import import_optional
from manyfit.core.redaction import redact
from manyfit.run.callbacks.tracking import mlflow_mirror, read_committed, resolve_uri
from manyfit.store import durable
from manyfit.store.files import read_json
from manyfit.store.folder import RunFolder
from manyfit.store.tensorboard import TensorBoardMirror
from manyfit.study.ledger.reader import read_only
from manyfit.study.result import select_seeds
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, TrialRecord

log = logging.getLogger("manyfit")


def mirror(place: Path, tensorboard: bool, mlflow: Any) -> dict[str, int]:
    """Update the mirrors of a study; return the number of trials in each."""
    folder = StudyFolder(place)
    points, facts, _ = read_only(folder.ledger)
    every = [(point, trial) for point in select_seeds(points, facts) for trial in point.trials]
    trials = [(point, trial) for point, trial in every if trial.step]
    sent: dict[str, int] = {}
    if tensorboard:
        sent["tensorboard"] = to_tensorboard(folder, trials, facts)
    if mlflow is not None:
        is_over = all(_status(point, trial) != "RUNNING" for point, trial in every)
        sent["mlflow"] = to_mlflow(folder, trials, facts, resolve_uri(mlflow, RunFolder(place)), is_over)
    return sent


def to_tensorboard(
    folder: StudyFolder, trials: list[tuple[PointRecord, TrialRecord]], facts: dict[str, Any]
) -> int:
    """Write `tensorboard/`: the curves and values of every trial, for the HParams page."""
    from tensorboard.plugins.hparams import summary_v2 as hparams

    metric = facts["objective"]["metric"]
    curves = folder.path / "tensorboard"
    curves.mkdir(exist_ok=True)
    for point, trial in trials:
        place = curves / f"{point.number}-seed-{trial.seed}"
        events = read_committed(folder.trial(trial.id))
        shown = {key: _plain(value) for key, value in point.values.items()}
        first = hparams.hparams_pb({**shown, "seed": trial.seed}, trial_id=trial.id)
        written = TensorBoardMirror(place, events)
        written.add(first)
        if trial.value is not None:
            written.scalar(f"best {metric}", trial.value, trial.step)
        written.close()
    return len(trials)


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def to_mlflow(
    folder: StudyFolder,
    trials: list[tuple[PointRecord, TrialRecord]],
    facts: dict[str, Any],
    uri: str,
    is_over: bool,
) -> int:
    """Send a parent run for the study and a nested run per trial; only what is new is sent."""
    mlflow = import_optional("mlflow", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    parent = ""
    for point, trial in trials:
        run = folder.trial(trial.id)
        try:
            found = mlflow_mirror(run, uri)
        except FolderError as error:
            log.warning("trial %s is not mirrored: %s", trial.id, error)
            continue
        parent = parent or _parent(client, folder, found.experiment, facts, uri)
        tags = {**found.tags, "mlflow.parentRunId": parent, "manyfit.point": str(point.number)}
        summary = run.summary()
        over = bool(summary) and summary.get("step") == trial.step
        found.tags = tags
        found.sync(read_committed(run), summary if over else None, _status(point, trial))
    if parent:
        _best(client, parent, trials, facts)
        client.update_run(parent, status="FINISHED" if is_over else "RUNNING")
    return len(trials)


def _status(point: PointRecord, trial: TrialRecord) -> str:
    if trial.state in ("failed", "infeasible"):
        return "FAILED"
    return "FINISHED" if trial.over else "KILLED" if point.state == "stopped" else "RUNNING"


def _parent(client: Any, folder: StudyFolder, experiment: str, facts: dict[str, Any], uri: str) -> str:
    """Return the ID of the parent run of the study; it is created once and recorded in `track.json`."""
    file = folder.path / "track.json"
    known = read_json(file, {})
    id = known.get(redact(uri), {}).get("run_id", "")
    if id:
        return str(id)
    found = client.get_experiment_by_name(experiment)
    number = found.experiment_id if found is not None else client.create_experiment(experiment)
    tags = {"manyfit.study": folder.name, "manyfit.objective": json.dumps(facts["objective"])}
    made = client.create_run(number, tags=tags, run_name=folder.name)
    durable.write_file(
        file, json.dumps({**known, redact(uri): {"run_id": made.info.run_id}}, indent=1) + "\n"
    )
    return str(made.info.run_id)


def _best(
    client: Any, parent: str, trials: list[tuple[PointRecord, TrialRecord]], facts: dict[str, Any]
) -> None:
    """Log the best value so far as a metric of the parent run."""
    sign = 1 if facts["objective"]["mode"] == "min" else -1
    values = [value for value in _values(trials) if value is not None]
    if values:
        client.log_metric(parent, f"best_{facts['objective']['metric']}", min(values, key=lambda v: sign * v))


def _values(trials: list[tuple[PointRecord, TrialRecord]]) -> Iterator[float | None]:
    return (trial.value for _, trial in trials)
