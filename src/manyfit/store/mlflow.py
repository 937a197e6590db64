"""MLflow as a mirror of the log: every row once, with the log's own times, after any number of resumes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.config.identity import digest
from manyfit.core.lazy import optional
from manyfit.core.secrets import redact
from manyfit.store import durable
from manyfit.store.events import Event
from manyfit.store.files import check_fields, read_json
from manyfit.store.folder import RunFolder

METRICS_AT_ONCE: Final = 900
PARAMS_AT_ONCE: Final = 90
LONGEST_PARAM: Final = 5_000
RECORD: Final[Mapping[str, type]] = {
    "run_id": str,
    "params": str,
    "rows": int,
    "evaluation_id": str,
    "evaluated": int,
}


@dataclass
class MlflowMirror:
    """One run of manyfit as a run of MLflow, and its evaluation as another one.

    What has been sent where is kept in `track.json`. Sending a row twice does no harm: it has the same time.
    """

    uri: str
    folder: RunFolder
    experiment: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]

    def sync(
        self, events: Sequence[Event], summary: Mapping[str, Any] | None = None, status: str = "RUNNING"
    ) -> int:
        """Bring MLflow up to date with the committed log, and with the evaluation; return the rows sent."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        mlflow = optional("mlflow", "mlflow")
        for noisy in ("alembic", "mlflow", "urllib3.connectionpool"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        client = mlflow.MlflowClient(tracking_uri=self.uri)
        record = self._record()
        if not record["run_id"] or self._is_gone(client, record["run_id"]) or self._is_another(record):
            record = {**self._empty(), "run_id": self._create(client, self.folder.name, self.tags)}
            self._keep(record)
        if not record["params"]:
            self._send_params(client, record["run_id"])
            record["params"] = digest(self._texts())
            self._keep(record)
        fresh = events[record["rows"] :]
        self._send(client, record["run_id"], [(e, e.values) for e in fresh])
        record["rows"] = max(record["rows"], len(events))
        self._keep(record)
        if summary and events and record["evaluated"] != summary["step"]:
            self._evaluation(client, record, events[-1], summary)
            record["evaluated"] = summary["step"]
            self._keep(record)
        if summary:
            status = "FINISHED"
        if client.get_run(record["run_id"]).info.status != status:
            client.update_run(record["run_id"], status=status)
        return len(fresh)

    def _evaluation(
        self, client: Any, record: dict[str, Any], last: Event, summary: Mapping[str, Any]
    ) -> None:
        if not record["evaluation_id"]:
            tags = {**self.tags, "manyfit.evaluates": record["run_id"]}
            record["evaluation_id"] = self._create(client, f"{self.folder.name}-evaluation", tags)
            self._keep(record)
        values = {f"test_{name}": value for name, value in summary["test"].items()}
        for split, found in summary.get("splits", {}).items():
            for name, column in found["columns"].items():
                values[f"{split}_{name}"] = column["mean"]
            values |= {f"{split}_{name}": value for name, value in found.get("whole", {}).items()}
        at = Event(summary["best_step"], summary["best_epoch"], last.time, values)
        self._send(client, record["evaluation_id"], [(at, {k: float(v) for k, v in values.items()})])
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

        params = [Param(key, value) for key, value in self._texts().items()]
        for begin in range(0, len(params), PARAMS_AT_ONCE):
            client.log_batch(run_id, params=params[begin : begin + PARAMS_AT_ONCE])

    def _texts(self) -> dict[str, str]:
        return {key: redact(str(value))[:LONGEST_PARAM] for key, value in self.params.items()}

    def _is_another(self, record: Mapping[str, Any]) -> bool:
        """Whether nothing was sent but the parameters of a run that was then begun anew with others."""
        return not record["rows"] and bool(record["params"]) and record["params"] != digest(self._texts())

    def _create(self, client: Any, name: str, tags: Mapping[str, str]) -> str:
        found = client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found is not None else client.create_experiment(self.experiment)
        created = client.create_run(number, tags=dict(tags), run_name=name)
        return str(created.info.run_id)

    def _is_gone(self, client: Any, run_id: str) -> bool:
        """Whether another server is asked than before, or the run was deleted there."""
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
        durable.write(self._file, json.dumps(every, indent=1) + "\n")

    @property
    def _file(self) -> Path:
        return self.folder.path / "track.json"
