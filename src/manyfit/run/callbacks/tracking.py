"""Trackers that may be slow or down: a separate thread feeds them, so they never delay a run."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from manyfit.config import Config
from manyfit.config.tree.project import project_root
from manyfit.config.typed.artifacts import HINT, is_own_run
from manyfit.core.errors import ManyfitError, RunFailed, UsageError
from manyfit.core.redaction import Secret, read_secret, redact, remember
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.store.events import Event, read_events
from manyfit.store.folder import RunFolder
from manyfit.store.lock import hold_lock
from manyfit.store.mlflow import MlflowMirror, load_client
from manyfit.store.tensorboard import TensorBoardMirror

log = logging.getLogger("manyfit")

ADDRESS = "MLFLOW_TRACKING_URI"
AUTO = "auto"
"""Instead of an address: the one of the environment, else a file in the project."""
PATIENCE = 15.0
"""Seconds that the end of a run waits for a tracker."""
RETRY = 20.0
"""Seconds before a failed tracker is tried again."""


class MirrorFeed:
    """A thread that updates a mirror whenever more is committed. Failed updates are retried later."""

    def __init__(self, mirror: MlflowMirror) -> None:
        self._mirror = mirror
        self._events: Sequence[Event] = []
        self._summary: Mapping[str, Any] | None = None
        self._status = "RUNNING"
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._told = False
        self.behind = False
        self._thread = threading.Thread(target=self._work, name="manyfit-mlflow", daemon=True)
        self._thread.start()

    def feed(
        self, events: Sequence[Event], summary: Mapping[str, Any] | None = None, status: str = "RUNNING"
    ) -> None:
        """Pass everything committed so far to the thread."""
        self._events, self._summary, self._status = list(events), summary, status
        self._wanted.set()

    def close(self) -> bool:
        """Wait a limited time for the rest; return whether everything was sent."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(PATIENCE)
        return not (self._thread.is_alive() or self.behind)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            last = self._closing.is_set()
            try:
                self._mirror.sync(self._events, self._summary, self._status)
                self.behind = False
            except Exception as error:  # a tracker may fail in any way; warn once and continue
                self.behind = True
                if not self._told:
                    text = redact(str(error)).strip().partition("\n")[0][:200]
                    log.warning("MLflow cannot be reached; it will be updated later: %s", text)
                    self._told = True
                self._closing.wait(RETRY)
                self._wanted.set()
            if last:
                return


class MlflowCallback:
    """Callback that mirrors a run to MLflow while it trains."""

    def __init__(self, config: Config, run: RunFolder) -> None:
        self._config = config
        self._run = run
        self._feeder: MirrorFeed | None = None
        self._sent = -1

    def on_start(self, cohort: Cohort) -> None:
        """Start the thread that feeds MLflow."""
        try:
            load_client()
        except Exception as error:  # importing MLflow may fail in any way
            text = f"{type(error).__name__}: {redact(str(error))}"[:200]
            log.warning(
                "MLflow cannot be imported: %s; once it can, run manyfit track sync %s", text, self._run.path
            )
            return
        self._feeder = MirrorFeed(
            mlflow_mirror(self._run, resolve_uri(self._config.run.track.mlflow, self._run))
        )
        self._feed(cohort)

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Send what was committed since the last call."""
        self._feed(cohort)

    def on_end(self, cohort: Cohort) -> None:
        """Send the last commits; the summary follows in `finish`."""
        self._feed(cohort)

    def _feed(self, cohort: Cohort) -> None:
        committed = cohort.members[0].committed
        if self._feeder is not None and len(committed) != self._sent:
            self._sent = len(committed)
            self._feeder.feed(committed)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Send the summary, which a failed run does not have, and end."""
        if self._feeder is None:
            return
        self._feeder.feed(read_committed(self._run), summary, "FINISHED" if summary else "FAILED")
        if not self._feeder.close():
            log.warning(
                "MLflow is not up to date; once it is reachable, run manyfit track sync %s", self._run.path
            )
        self._feeder = None


def mlflow_mirror(run: RunFolder, uri: str) -> MlflowMirror:
    """Return the MLflow mirror of a run folder."""
    values = run.load_trained().values
    sessions = run.sessions()
    fingerprint = sessions[-1].get("fingerprint", "") if sessions else ""
    tags = {"manyfit.fingerprint": str(fingerprint), "manyfit.folder": run.name}
    commit = sessions[-1]["code"].get("commit") if sessions else None
    tags |= {"mlflow.source.git.commit": commit} if commit else {}
    return MlflowMirror(uri, run, redact(str(values.get("project_name", "manyfit"))), values, tags)


def resolve_uri(given: Any, run: RunFolder) -> str:
    """Return the address of MLflow, with its secrets filled in."""
    if given == AUTO:
        given = os.environ.get(ADDRESS) or "sqlite:///mlflow.db"
    template = Secret(str(given))
    missing = [name for name in template.names if name not in os.environ]
    if missing:
        raise UsageError(f"the address of MLflow needs the environment variable {missing[0]}")
    address, local = template.reveal(), "sqlite:///"
    hide_credentials(address)
    if address.startswith(local):
        # A path in a config is relative to the root of the project, not to the current folder.
        return local + str(project_root(run.path).resolve() / address.removeprefix(local))
    return address


def hide_credentials(address: str) -> None:
    """Redact the credentials of a tracker from now on, also if they are not declared as secrets."""
    with contextlib.suppress(ValueError):  # not an address
        if password := urlsplit(address).password:
            remember(ADDRESS, unquote(password))
            remember(ADDRESS, password)
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        if name in os.environ:
            read_secret(name)


def is_missing(package: str) -> bool:
    """Return whether an optional package is not installed."""
    return importlib.util.find_spec(package) is None


def read_committed(run: RunFolder) -> list[Event]:
    """Return the entries of the log that a checkpoint has committed."""
    found = run.checkpoints()
    return read_events(run.metrics, found[-1].log_length) if found else []


def sync_trackers(place: Path, uri: str | None = None, trust: bool = False) -> dict[str, int]:
    """Bring the trackers of a run up to date; return how many log entries each was missing.

    A run that was not trained here must be trusted before its own address is used.
    """
    run = RunFolder(place)
    values = run.load_trained().values
    address = uri or values.get("track.mlflow")
    if address and not (trust or is_own_run(run.resolved)):
        if uri is None and address == AUTO:
            address = None  # nobody requested it on this machine
        else:
            raise UsageError(f"{place} was not trained here, and would be sent to {address}; {HINT}")
    sent: dict[str, int] = {}
    with hold_lock(run.path):
        run.check_links()
        events = read_committed(run)
        if values.get("track.tensorboard", True):
            TensorBoardMirror(run.tensorboard, events).close()
            sent["tensorboard"] = len(events)
        if address and not (address == AUTO and is_missing("mlflow")):
            sent["mlflow"] = sync_mlflow(run, address, events)
    return sent


def sync_mlflow(run: RunFolder, address: Any, events: Sequence[Event]) -> int:
    """Bring MLflow up to date with a locked run; return how many log entries it was missing."""
    summary, found = run.summary(), run.checkpoints()
    over = bool(found) and summary.get("step") == found[-1].step
    mirror = mlflow_mirror(run, resolve_uri(address, run))
    try:
        return mirror.sync(events, summary if over else None)
    except ManyfitError:
        raise
    except Exception as error:  # a tracker may fail in any way
        text = redact(str(error)).strip().partition("\n")[0][:200]
        raise RunFailed(f"MLflow could not be brought up to date: {text}") from error


def mirror_evaluation(config: Config, run: RunFolder) -> None:
    """Mirror a later evaluation of a run that is already in MLflow; if MLflow is down, log a warning."""
    address = config.run.track.mlflow
    if address is None or is_missing("mlflow") or not (run.path / "track.json").exists():
        return
    try:
        sync_mlflow(run, address, read_committed(run))
    except RunFailed as error:
        log.warning("%s; once it is reachable, run manyfit track sync %s", error, run.path)
