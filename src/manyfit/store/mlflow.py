"""MLflow as a mirror of the log: every row once, with the times of the log, after any number of resumes."""

from __future__ import annotations

import datetime
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.config.identity import hash_data
from manyfit.core.json_numbers import as_json_tree
from manyfit.core.lazy import import_optional
from manyfit.core.redaction import redact
from manyfit.store import durable
from manyfit.store.events import Event
from manyfit.store.files import check_fields, read_json
from manyfit.store.folder import RunFolder

METRICS_AT_ONCE: Final = 900
PARAMS_AT_ONCE: Final = 90
LONGEST_PARAM: Final = 5_000
LARGEST_FILE: Final = 1 << 26
"""Maximum size in bytes of a report that is sent."""
ARTIFACTS: Final = "mlflow-artifacts"
"""The folder of artifacts, beside a local database."""
RECORD: Final[Mapping[str, type]] = {
    "run_id": str,
    "params": str,
    "rows": int,
    "evaluation_id": str,
    "evaluated": int,
}


def load_client() -> Any:
    """Import the MLflow client, with quiet loggers and short timeouts.

    Call it in the main thread before a thread mirrors anything: the main thread may itself be importing
    modules or changing the environment.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    mlflow = import_optional("mlflow", "mlflow")
    for noisy in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return mlflow.MlflowClient


@dataclass
class MlflowMirror:
    """One run of manyfit as a run of MLflow: parameters, metrics, and its config and reports as artifacts.
    Its evaluation is also a separate MLflow run, with the same parameters.

    `track.json` records what has been sent to which address. Sending a row twice is harmless: its time is the
    same.
    """

    uri: str
    folder: RunFolder
    experiment: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]

    def sync(
        self, events: Sequence[Event], summary: Mapping[str, Any] | None = None, status: str = "RUNNING"
    ) -> int:
        """Send MLflow what it has missed of the committed log and the evaluation; return the rows sent."""
        client = load_client()(tracking_uri=self.uri)
        record = self._record()
        if not record["run_id"] or self._is_gone(client, record["run_id"]) or self._is_another(record):
            made = self._create(client, self.folder.name, self.tags, self._read_start())
            record = {**self._empty(), "run_id": made}
            self._keep(record)
        if record["params"] != hash_data(self._texts()):
            for run_id in filter(None, (record["run_id"], record["evaluation_id"])):
                self._send_params(client, run_id)
            record["params"] = hash_data(self._texts())
            self._keep(record)
        fresh = events[record["rows"] :]
        self._send(client, record["run_id"], [(e, e.values) for e in fresh])
        record["rows"] = max(record["rows"], len(events))
        self._keep(record)
        found = hash_data(as_json_tree(dict(summary))) if summary else ""
        if summary and events and record.get("summary") != found:
            self._evaluation(client, record, events[-1], summary)
            self._send_files(client, record["run_id"])
            record |= {"evaluated": summary["step"], "summary": found}
            self._keep(record)
        self._end(client, record["run_id"], "FINISHED" if summary else status, events)
        return len(fresh)

    def _end(self, client: Any, run_id: str, status: str, events: Sequence[Event]) -> None:
        """Set the status of a run; the end time of a finished run is that of the last row of its log."""
        if client.get_run(run_id).info.status == status:
            return
        if status == "RUNNING":
            client.update_run(run_id, status=status)
        else:
            last = int(events[-1].time * 1000) if events else 0
            client.set_terminated(run_id, status, max(last, client.get_run(run_id).info.start_time))

    def _send_files(self, client: Any, run_id: str) -> None:
        """Send the config and the reports as artifacts."""
        for file in (self.folder.config, self.folder.resolved):
            if file.is_file():
                client.log_artifact(run_id, str(file))
        for file in sorted(self.folder.reports.glob("*")):
            if file.suffix in (".csv", ".json", ".parquet") and file.stat().st_size <= LARGEST_FILE:
                client.log_artifact(run_id, str(file), "reports")

    def _evaluation(
        self, client: Any, record: dict[str, Any], last: Event, summary: Mapping[str, Any]
    ) -> None:
        if not record["evaluation_id"]:
            tags = {**self.tags, "manyfit.evaluates": record["run_id"]}
            record["evaluation_id"] = self._create(client, f"{self.folder.name}-evaluation", tags)
            self._send_params(client, record["evaluation_id"])
            self._keep(record)
        values = {f"test_{name}": value for name, value in summary["test"].items()}
        for split, found in summary.get("splits", {}).items():
            for name, column in found["columns"].items():
                values[f"{split}_{name}"] = column["mean"]
            values |= {f"{split}_{name}": value for name, value in found.get("whole", {}).items()}
        at = Event(summary["best_step"], summary["best_epoch"], last.time, values)
        for run_id in (record["run_id"], record["evaluation_id"]):
            self._send(client, run_id, [(at, {k: float(v) for k, v in values.items()})])
        client.set_terminated(record["evaluation_id"], "FINISHED")

    def _send(self, client: Any, run_id: str, rows: Sequence[tuple[Event, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(event.time * 1000), event.step)
            for event, values in rows
            for name, value in values.items()
        ]
        for begin in range(0, len(metrics), METRICS_AT_ONCE):
            client.log_batch(run_id, metrics=metrics[begin : begin + METRICS_AT_ONCE])

    def _send_params(self, client: Any, run_id: str) -> None:
        from mlflow.entities import Param

        known = client.get_run(run_id).data.params
        params = [Param(key, value) for key, value in self._texts().items() if key not in known]
        for key, value in self._texts().items():
            if known.get(key, value) != value:  # MLflow parameters are immutable; tags are not
                client.set_tag(run_id, f"manyfit.{key}", value)
        for begin in range(0, len(params), PARAMS_AT_ONCE):
            client.log_batch(run_id, params=params[begin : begin + PARAMS_AT_ONCE])

    def _texts(self) -> dict[str, str]:
        return {key: redact(str(value))[:LONGEST_PARAM] for key, value in self.params.items()}

    def _is_another(self, record: Mapping[str, Any]) -> bool:
        """Return whether only parameters were sent, of a run that was then restarted with other ones."""
        return not record["rows"] and bool(record["params"]) and record["params"] != hash_data(self._texts())

    def _read_start(self) -> int | None:
        """Return the time of the first start in milliseconds."""
        sessions = self.folder.sessions()
        if not sessions:
            return None
        return int(datetime.datetime.fromisoformat(sessions[0]["started"]).timestamp() * 1000)

    def _create(self, client: Any, name: str, tags: Mapping[str, str], started: int | None = None) -> str:
        found = client.get_experiment_by_name(self.experiment)
        if found is not None:
            number = found.experiment_id
        else:
            local = "sqlite:///"
            place = (
                Path(self.uri.removeprefix(local)).parent / ARTIFACTS if self.uri.startswith(local) else None
            )
            number = client.create_experiment(
                self.experiment, artifact_location=place.as_uri() if place is not None else None
            )
        created = client.create_run(number, start_time=started, tags=dict(tags), run_name=name)
        return str(created.info.run_id)

    def _is_gone(self, client: Any, run_id: str) -> bool:
        """Return whether the server does not know the run, or has deleted it."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(client.get_run(run_id).info.lifecycle_stage == "deleted")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return True
            raise

    def _record(self) -> dict[str, Any]:
        found = read_json(self._file, {}).get(redact(self.uri))
        return check_fields(found, RECORD, self._file) if found is not None else self._empty()

    def _empty(self) -> dict[str, Any]:
        return {"run_id": "", "params": "", "rows": 0, "evaluation_id": "", "evaluated": 0}

    def _keep(self, record: Mapping[str, Any]) -> None:
        every = {**read_json(self._file, {}), redact(self.uri): record}
        durable.write_file(self._file, json.dumps(every, indent=1) + "\n")

    @property
    def _file(self) -> Path:
        return self.folder.path / "track.json"
