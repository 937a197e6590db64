"""The ledger: the durable record of a study, with its points, trials, units and decisions.

The driver is its only writer.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.position import Position
from manyfit.core.redaction import clean, clean_file
from manyfit.study.ledger.database import (
    FORMAT,
    MIGRATIONS,
    SCHEMA,
    UNITS,
    UNREADABLE,
    check_format,
    connect,
    is_on_network,
)
from manyfit.study.ledger.integrity import MENDED, Seals, check_facts, check_progress
from manyfit.study.ledger.reader import metric_of, read_points
from manyfit.study.work.points import Candidate, trial_name
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.units import Failure


class Ledger:
    """Points and trials, held in memory and written through to SQLite."""

    def __init__(self, path: Path, journal: str | None = None) -> None:
        """Open or create a ledger. The default of `journal`, SQLite's mode, depends on the file system."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.points: list[PointRecord] = []
        self.trials: dict[str, TrialRecord] = {}
        self._by_id: dict[str, PointRecord] = {}
        self._changed: set[int] = set()
        try:
            self._connect(journal or ("delete" if is_on_network(path) else "wal"))
            self._load()  # checks the rows, before `begin` seals them as this user's
            with self.transaction():
                self._seals.begin()
                self._migrate()
        except sqlite3.OperationalError as error:
            if "no such" in str(error) or "already exists" in str(error):  # tables or columns are missing
                raise FolderError(f"the ledger {path} cannot be read: {error}; {MENDED}") from error
            raise RunFailed(f"the ledger {path} cannot be opened or written: {error}") from error
        except UNREADABLE as error:
            raise FolderError(f"the ledger {path} cannot be read: {error}; {MENDED}") from error

    def _connect(self, journal: str) -> None:
        self._db = connect(self.path)
        self._seals = Seals(self._db, self.path)
        self._db.execute(f"pragma journal_mode={journal}")
        self._db.execute(f"pragma synchronous={'normal' if journal == 'wal' else 'full'}")
        if not self._db.execute("select 1 from sqlite_master where name='meta'").fetchone():
            with self.transaction():
                self._execute(SCHEMA + UNITS)
                self._seals.begin()
                self.set("format", FORMAT)
        check_format(self.get("format"))

    def _execute(self, statements: str) -> None:
        for statement in statements.split(";"):
            self._db.execute(statement)

    def _migrate(self) -> None:
        """Migrate the ledger of an older version to the current format. Call it after the checks."""
        found = self.get("format")
        if found != FORMAT:
            self._execute(MIGRATIONS[found])
            self.set("format", FORMAT)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes in the block, or none; a nested transaction joins the outer one."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("begin immediate")
        try:
            yield
            self._seals.seal()
        except BaseException:
            self._db.execute("rollback")
            self._seals.forget()
            raise
        self._db.execute("commit")

    def close(self) -> None:
        """Merge the write-ahead log into the file and close it, so that copying the file alone is enough."""
        with contextlib.suppress(sqlite3.OperationalError):  # with another reader, the log stays
            self._db.execute("pragma busy_timeout=1000")
            if self._db.execute("pragma journal_mode").fetchone()[0] == "wal":
                self._db.execute("pragma wal_checkpoint(truncate)")
                self._db.execute("pragma journal_mode=delete")
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reading ----------------------------------------------------------------------------------

    def _load(self) -> None:
        is_ours = self._seals.check()
        points = read_points(self._db, is_ours)
        if not is_ours and points:
            rows = self._db.execute("select key, value from meta")
            facts = {key: json.loads(value) for key, value in rows}
            check_facts(facts)
            check_progress(self.path.parent, points, metric_of(facts))
        for point in points:
            self.points.append(point)
            self._by_id[point.id] = point
            self.trials |= {trial.id: trial for trial in point.trials}

    def get(self, key: str) -> Any:
        """Return a fact about the study; None if it is not recorded."""
        found = self._db.execute("select value from meta where key=?", (key,)).fetchone()
        return json.loads(found[0]) if found else None

    def point(self, id: str) -> PointRecord | None:
        """Return a point by its name; None if there is none."""
        return self._by_id.get(id)

    # -- writing ----------------------------------------------------------------------------------

    def set(self, key: str, value: Any) -> None:
        """Record a fact about the study."""
        self._write("meta", (key, json.dumps(value)))

    def add(self, found: Candidate, granted: int | None) -> PointRecord:
        """Add a point, or return the existing one with the same name."""
        known = self._by_id.get(found.id)
        if known is not None:
            if not known.current:
                known.current, known.origin, known.attrs = True, found.origin, found.attrs
                self.save_point(known)
            return known
        point = PointRecord(
            len(self.points), found.id, found.values, found.origin, found.parent, found.attrs, granted=granted
        )
        self.points.append(point)
        self._by_id[point.id] = point
        self.save_point(point)
        return point

    def add_trial(self, point: PointRecord, seed: int) -> TrialRecord:
        """Add a replicate of a point, or return the existing one."""
        id = trial_name(point.id, seed)
        trial = self.trials.get(id)
        if trial is None:
            trial = self.trials[id] = TrialRecord(id, point.number, seed)
            point.trials.append(trial)
            self.save_trial(trial)
        return trial

    def take_changed(self) -> Collection[int]:
        """Return the numbers of the points that have changed since the last call."""
        found, self._changed = self._changed, set()
        return found

    def save_point(self, point: PointRecord) -> None:
        """Write the current state of a point."""
        self._changed.add(point.number)
        row = (
            point.number, point.id, json.dumps(point.values), point.origin, point.parent,
            json.dumps(point.attrs), int(point.current), point.state, point.reason, point.granted,
        )  # fmt: skip
        self._write("points", row)

    def save_trial(self, trial: TrialRecord) -> None:
        """Write the current state of a trial."""
        self._changed.add(trial.point)
        failure = json.dumps(_plain(trial.failure)) if trial.failure is not None else None
        row = (
            trial.id, trial.point, trial.seed, trial.state, trial.step, trial.epoch, trial.steps,
            trial.seconds, trial.value, json.dumps(trial.curve), int(trial.over), trial.reason, trial.deaths,
            trial.split, failure,
        )  # fmt: skip
        self._write("trials", row)

    def _write(self, table: str, row: tuple[Any, ...]) -> None:
        row = tuple(clean_file(cell) if isinstance(cell, str) else cell for cell in row)
        places = ",".join("?" * len(row))
        with self.transaction():  # the row and its seal together
            self._db.execute(f"insert or replace into {table} values ({places})", row)
            self._seals.put(table, row)

    def begin_unit(
        self,
        trials: Sequence[str],
        until: Position | None,
        purpose: str,
        place: str = "",
        shard: int | None = None,
    ) -> int:
        """Record the start of a unit; return its number."""
        epoch = None if until is None else until.epoch
        visit = None if until is None or shard is None else until.visit
        cursor = self._db.execute(
            "insert into units (purpose, until, place, started, visit, shard) values (?,?,?,?,?,?)",
            (purpose, epoch, place, time.time(), visit, shard),
        )
        number = int(cursor.lastrowid or 0)
        self._db.executemany(
            "insert into unit_trials (unit, trial) values (?,?)", [(number, trial) for trial in trials]
        )
        return number

    def end_trial(self, unit: int, trial: str, outcome: str, steps: int = 0, is_last: bool = True) -> None:
        """Record how a unit ended for one of its trials; it ends with the last of them."""
        now = time.time()
        with self.transaction():
            self._db.execute(
                "update unit_trials set ended=?, outcome=?, steps=? where unit=? and trial=?",
                (now, outcome, steps, unit, trial),
            )
            if is_last:
                self._db.execute("update units set ended=? where number=?", (now, unit))

    def count_repeated(self, steps: int) -> None:
        """Add to the number of steps that were trained, lost, and must be trained again."""
        if steps:
            self.set("repeated_steps", int(self.get("repeated_steps") or 0) + steps)

    def decide(self, point: PointRecord | None, action: str, reason: str) -> None:
        """Record a decision and its reason."""
        self._db.execute(
            "insert into decisions (time, point, action, reason) values (?,?,?,?)",
            (time.time(), point.number if point is not None else None, action, clean(reason)),
        )


def _plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in Failure.__slots__}
