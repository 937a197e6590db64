"""The run folder: its paths, and the contents of its files."""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from manyfit.config.config import snapshot
from manyfit.config.identity import Snapshot, epochs_in
from manyfit.config.tree.nodes import Map, plain
from manyfit.config.tree.project import logical
from manyfit.config.tree.reader import read_file
from manyfit.core.errors import FolderError, ManyfitError
from manyfit.core.files import check_file
from manyfit.core.json_numbers import from_json
from manyfit.store import durable
from manyfit.store.checkpoint import Checkpoint, Keep, checkpoints, find_damaged
from manyfit.store.events import Event, read_events
from manyfit.store.files import check_fields, read_json, readable
from manyfit.store.lock import is_owned

SUMMARY: Final[Mapping[str, type]] = {
    "step": int,
    "epoch": float,
    "best_step": int,
    "best_epoch": float,
    "metrics": dict,
    "test": dict,
    "test_rows": int,
}
PROVENANCE: Final[Mapping[str, type]] = {"sessions": list}
SESSION: Final[Mapping[str, type]] = {
    "started": str,
    "versions": dict,
    "code": dict,
    "data": dict,
    "modules": dict,
}

FAILURE: Final[Mapping[str, type]] = {"kind": str, "message": str, "step": int, "time": str}
WRITTEN: Final = (
    ".lock", "config.resolved.yaml", "provenance.json", "metrics.jsonl", "metrics.csv", "checkpoints",
    "exported", "exported-final", "exported-top", "reports", "tensorboard", "images", "texts",
    "run.log", "failure.json", "track.json",
)  # fmt: skip
"""Names that manyfit writes into a run folder. None of them may be a link."""

COPIED: Final = "# Copied by manyfit from a config that lies elsewhere"
"""First line of a config that was copied from elsewhere. Stored in files: do not change it."""

State: TypeAlias = Literal["new", "running", "unfinished", "finished", "failed", "damaged"]


@dataclass(frozen=True)
class RunFolder:
    """The paths inside `runs/<name>/`, and the contents of the files."""

    path: Path

    @property
    def images(self) -> Path:
        """The images that training has made."""
        return self.path / "images"

    @property
    def texts(self) -> Path:
        """The texts that training has made."""
        return self.path / "texts"

    @property
    def name(self) -> str:
        """The run's name."""
        return logical(self.path).name

    @cached_property
    def config(self) -> Path:
        """The config as written."""
        return self.path / "config.yaml"

    @cached_property
    def resolved(self) -> Path:
        """The resolved config."""
        return self.path / "config.resolved.yaml"

    @cached_property
    def provenance(self) -> Path:
        """The provenance of the run: code, versions, hardware, data."""
        return self.path / "provenance.json"

    @cached_property
    def metrics(self) -> Path:
        """The event log."""
        return self.path / "metrics.jsonl"

    @cached_property
    def checkpoint_folder(self) -> Path:
        """The committed checkpoints."""
        return self.path / "checkpoints"

    @cached_property
    def reports(self) -> Path:
        """Per-row reports and their summary."""
        return self.path / "reports"

    @cached_property
    def tensorboard(self) -> Path:
        """The event files that TensorBoard reads."""
        return self.path / "tensorboard"

    @cached_property
    def exported(self) -> Path:
        """The exported model."""
        return self.path / "exported"

    @cached_property
    def final(self) -> Path:
        """The exported model of the last checkpoint, if requested."""
        return self.path / "exported-final"

    @cached_property
    def top(self) -> Path:
        """The exported models of the best checkpoints, if requested."""
        return self.path / "exported-top"

    @cached_property
    def metrics_table(self) -> Path:
        """The event log as a table."""
        return self.path / "metrics.csv"

    @cached_property
    def failure_file(self) -> Path:
        """The reason of the failure, until the run is started again."""
        return self.path / "failure.json"

    def checkpoints(self) -> list[Checkpoint]:
        """Return all committed checkpoints that can be read, the oldest first."""
        return checkpoints(self.checkpoint_folder)

    def find_damaged(self) -> dict[Path, str]:
        """Return the checkpoints that cannot be read, with the reasons."""
        return find_damaged(self.checkpoint_folder)

    def select_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Return the best checkpoint by a metric, or the last one if none has the metric."""
        found = self.checkpoints()
        if not found:
            for reason in self.find_damaged().values():
                raise FolderError(reason)
            raise FolderError(f"{self.path} has no checkpoint yet")
        return Keep(metric, "max" if mode == "max" else "min").best(found) or found[-1]

    def checkpoint(self, which: str) -> Checkpoint:
        """Return the checkpoint `best`, `last`, or that of a step number."""
        if which == "best":
            snapshot = self.load_trained()
            try:
                return self.select_checkpoint(
                    snapshot.values["export.metric"], snapshot.values["export.mode"]
                )
            except KeyError as error:
                raise FolderError(f"{self.resolved} is damaged: it has no {error}") from error
        found = {str(c.step): c for c in self.checkpoints()}
        if which == "last" and found:
            return list(found.values())[-1]
        if which not in found:
            steps = (
                f"valid are best, last and the steps {', '.join(found)}" if found else "it has no checkpoints"
            )
            raise FolderError(f"{self.path} has no checkpoint {which!r}; {steps}")
        return found[which]

    def check_links(self) -> None:
        """Raise if a link in the folder points reads or writes out of it."""
        with os.scandir(self.path) as entries:
            found = [entry for entry in entries if entry.name in WRITTEN]
        for entry in found:  # grows while it is iterated
            if entry.is_dir(follow_symlinks=False):
                with os.scandir(entry.path) as entries:
                    found += entries
            if entry.is_symlink():
                raise FolderError(
                    f"{entry.path} is a link, but manyfit writes into the folder itself; "
                    "link the whole folder instead"
                )

    def events(self) -> list[Event]:
        """Return the complete rows of the event log."""
        return read_events(self.metrics)

    def snapshot(self) -> Snapshot | None:
        """Return the resolved config of the last start, or None."""
        try:
            status = self.resolved.stat()
        except FileNotFoundError:
            return None
        return _read_snapshot(self.resolved, status.st_mtime_ns, status.st_size)

    def load_trained(self) -> Snapshot:
        """Return the resolved config of a trained run; raise if it was not trained or does not exist."""
        if not self.path.is_dir():
            meant = self.path.parent / "runs" / self.path.name
            hint = f"; did you mean {meant}?" if meant.is_dir() else ""
            raise FolderError(f"the run folder {self.path} does not exist{hint}")
        found = self.snapshot()
        if found is None:
            raise FolderError(f"{self.path} has not been trained: it has no config.resolved.yaml")
        return found

    def load_frozen(self) -> dict[str, Any]:
        """Return the derived values that were fixed at the first start."""
        if not self.resolved.exists():
            return {}
        node = read_file(self.resolved)
        derived = node.items.get("derived") if isinstance(node, Map) else None
        if not isinstance(derived, Map):
            raise FolderError(f"{self.resolved} is not a resolved config written by manyfit")
        return dict(plain(derived))

    def sessions(self) -> list[dict[str, Any]]:
        """Return the starts of the run."""
        found: list[dict[str, Any]] = read_json(self.provenance, PROVENANCE).get("sessions", [])
        for session in found:
            if isinstance(session, dict):
                session.setdefault("modules", {})
            check_fields(session, SESSION, self.provenance)
        return found

    def summary(self) -> dict[str, Any]:
        """Return the final summary; empty while the run is not finished."""
        file = self.reports / "summary.json"
        found = read_json(file, SUMMARY)
        if not isinstance(found.get("other_code", []), list):
            raise FolderError(f"{file} is damaged: other_code is not a list")
        try:
            return {**found, **{name: from_json(found[name]) for name in ("metrics", "test") if found}}
        except (ValueError, TypeError) as error:
            raise FolderError(f"{file} is damaged: {error}") from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the final summary, which marks the run as finished."""
        durable.write_file(self.reports / "summary.json", readable(summary, 2) + "\n")

    def failure(self) -> dict[str, Any]:
        """Return the failure; empty if the run did not fail or was started again since."""
        return read_json(self.failure_file, FAILURE)

    def write_failure(self, kind: str, message: str, step: int) -> None:
        """Write the reason of a failure."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = json.dumps({"kind": kind, "message": message, "step": step, "time": now}, indent=1)
        durable.write_file(self.failure_file, text + "\n")

    def _is_extended(self, summary: Mapping[str, Any]) -> bool:
        """Return whether a finished run was started again with more epochs, and has not reached them."""
        try:
            snapshot = self.snapshot()
        except ManyfitError:
            return False
        epochs = epochs_in(snapshot.values, 0) if snapshot is not None else 0
        return isinstance(epochs, int) and summary["epoch"] < epochs and not summary.get("stopped")

    def has_whole_log(self, length: int) -> bool:
        """Return whether the log has complete lines up to `length`. Their contents are not read."""
        check_file(self.metrics)
        try:
            with self.metrics.open("rb") as file:
                data = file.read(length)
        except OSError:
            return not length
        lines = data.split(b"\n")
        return (
            len(data) == length and not lines.pop() and all(each[:1] + each[-1:] == b"{}" for each in lines)
        )

    def state(self) -> State:
        """Determine the state of the run from its files alone."""
        try:
            found = self.checkpoints()
            summary = self.summary()
            failure = self.failure()
        except ManyfitError:
            return "damaged"
        if is_owned(self.path):
            return "running"
        if not found and self.find_damaged():
            return "damaged"
        if failure:
            return "failed"
        if summary and not self.checkpoint_folder.exists():
            return "finished"  # its checkpoints were removed to save disk space
        if summary and found and summary.get("step") == found[-1].step and not self._is_extended(summary):
            return "finished"
        return "unfinished" if self.resolved.exists() else "new"


@functools.lru_cache(maxsize=4)
def _read_snapshot(file: Path, changed: int, size: int) -> Snapshot:
    return snapshot(read_file(file))


def run_folders(place: Path) -> Iterator[RunFolder]:
    """Yield every run folder at or below a path."""
    if not place.is_dir():
        raise FolderError(f"the folder {place} does not exist")
    for config in sorted(
        [*place.glob("config.yaml"), *place.glob("*/config.yaml"), *place.glob("runs/*/config.yaml")]
    ):
        yield RunFolder(config.parent)
