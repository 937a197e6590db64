"""Descriptions of many runs, cached for each user: a folder of thousands of runs is listed at once.

The cache holds what was read from a run folder, with the sizes and dates of the files that it was read from.
If one of them has changed, or the run is being trained, the folder is read again. The cache can be deleted at
any time.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import ManyfitError
from manyfit.core.json_numbers import as_json_tree, from_json
from manyfit.store.describe import describe_run
from manyfit.store.folder import RunFolder
from manyfit.store.lock import is_owned

VERSION: Final = 1
LOOKED_AT: Final = ("config.yaml", "config.resolved.yaml", "metrics.jsonl", "failure.json", "checkpoints")


def describe_runs(folders: Iterable[RunFolder]) -> list[dict[str, Any]]:
    """Return the facts of each run, with its config and its dates."""
    with _open_cache() as cache:
        return [_describe(run, cache) for run in folders]


def _describe(run: RunFolder, cache: sqlite3.Connection | None) -> dict[str, Any]:
    key, mark = str(run.path.resolve()), _read_mark(run)
    if cache is not None and not is_owned(run.path):
        found = cache.execute("select facts from runs where path = ? and mark = ?", (key, mark)).fetchone()
        if found is not None:
            known: dict[str, Any] = json.loads(found[0])
            return known | {"folder": str(run.path)} | {n: from_json(known[n]) for n in ("metrics", "test")}
    facts = describe_run(run) | read_config(run) | read_dates(run)
    if cache is not None and facts["state"] != "running":
        with contextlib.suppress(sqlite3.Error):  # another process writes, or the disk is full
            text = json.dumps(as_json_tree(facts))
            cache.execute("insert or replace into runs values (?, ?, ?)", (key, mark, text))
    return facts


def read_config(run: RunFolder) -> dict[str, Any]:
    """Return the values of the resolved config by key; none if the run was never started or is damaged."""
    try:
        snapshot = run.snapshot()
    except ManyfitError:
        snapshot = None
    return {"config": dict(snapshot.values) if snapshot is not None else {}}


def read_dates(run: RunFolder) -> dict[str, Any]:
    """Return when the run was first started and last changed, in UTC."""
    files = [run.resolved, run.metrics, run.reports / "summary.json"]
    times = [file.stat().st_mtime for file in files if file.exists()]
    try:
        sessions = run.sessions()
    except ManyfitError:
        sessions = []
    started = sessions[0]["started"] if sessions else ""
    last = datetime.datetime.fromtimestamp(max(times), datetime.UTC) if times else None
    return {"started": started, "changed": last.isoformat(timespec="seconds") if last else ""}


def _read_mark(run: RunFolder) -> str:
    found = []
    for file in (*(run.path / name for name in LOOKED_AT), run.reports / "summary.json"):
        try:
            status = file.stat()
            found.append(f"{status.st_mtime_ns}:{status.st_size}")
        except OSError:
            found.append("-")
    return ",".join(found)


@contextlib.contextmanager
def _open_cache() -> Iterator[sqlite3.Connection | None]:
    """Open the cache of the user; None if it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    file = Path(base) / "manyfit" / f"runs-{VERSION}.db"
    cache = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        cache = sqlite3.connect(file, timeout=1.0)
        cache.execute("create table if not exists runs (path text primary key, mark text, facts text)")
    except (OSError, sqlite3.Error, RuntimeError):
        cache = None
    try:
        yield cache
    finally:
        if cache is not None:
            with contextlib.suppress(sqlite3.Error):
                cache.commit()
            cache.close()
