"""The ledger: a study's durable record of points, trials, units and decisions. One writer, the driver."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.files import check_file, read_bytes
from manyfit.core.redaction import clean, clean_file
from manyfit.study.ledger.integrity import (
    MENDED,
    Seals,
    check_facts,
    check_point,
    check_progress,
    check_trial,
)
from manyfit.study.work.points import Candidate, trial_name
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.units import KINDS, Failure

FORMAT: Final = 2
"""1 kept a row for each trial of each unit, in a table `assignments`."""
READABLE: Final = (1, FORMAT)
REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs")
"""File systems on which a write-ahead log must not lie: it needs memory that all readers share."""

OF_SEVERAL: Final = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that names another one, of several databases at once."""

UNREADABLE: Final = (
    sqlite3.DatabaseError, ValueError, KeyError, IndexError, TypeError, RecursionError,
    OverflowError,
)  # fmt: skip
"""What reading a file raises that is no ledger, or not one that manyfit wrote."""

SCHEMA: Final = """
create table meta (key text primary key, value text not null);
create table points (
  number integer primary key, id text not null unique, "values" text not null, origin text not null,
  parent text not null, attrs text not null, current integer not null, state text not null,
  reason text not null, granted integer
);
create table trials (
  id text primary key, point integer not null references points, seed integer not null, state text not null,
  step integer not null, epoch real not null, steps integer not null, seconds real not null, value real,
  curve text not null, is_over integer not null, reason text not null, deaths integer not null,
  split integer not null, failure text
);
create table decisions (
  number integer primary key, time real not null, point integer, action text not null, reason text not null
);
"""

UNITS: Final = """
create table units (
  number integer primary key, purpose text not null, until integer, place text not null,
  started real not null, ended real
);
create table unit_trials (
  unit integer not null references units, trial text not null, ended real, outcome text,
  primary key (unit, trial)
);
"""
"""What was handed out to executors, and how it ended for each trial."""
MIGRATION: Final = """
insert into units select number, purpose, until, '', started, ended from assignments;
insert into unit_trials select number, trial, ended, outcome from assignments;
drop table assignments;
"""
"""From format 1: a unit had one trial."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file as a database; anything that is no file, a pipe for one, is refused.

    So is a link, behind which SQLite would write, and a journal that names another file, which it deletes.
    """
    journal = path.with_name(f"{path.name}-journal")
    for each in (path, journal, *(path.with_name(f"{path.name}-{ending}") for ending in ("wal", "shm"))):
        check_file(each)
        if each.is_symlink():
            raise FolderError(f"{each} is a link, which would lead out of the study; remove it")
        if each.is_dir():
            raise FolderError(f"{each} is not a file, but a folder; remove it")
    if journal.exists() and read_bytes(journal).endswith(OF_SEVERAL):
        raise FolderError(f"{journal} was not written by manyfit: it names another file; remove it")
    return sqlite3.connect(path, isolation_level=None, timeout=30)


class Ledger:
    """Points and trials, held in memory and written through to SQLite."""

    def __init__(self, path: Path, journal: str | None = None) -> None:
        """Open it, or make a new one. `journal` is SQLite's mode; by default it follows the file system."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.points: list[PointRecord] = []
        self.trials: dict[str, TrialRecord] = {}
        self._by_id: dict[str, PointRecord] = {}
        try:
            self._connect(journal or ("delete" if is_on_network(path) else "wal"))
            self._load()
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
        """Bring a ledger of an older version to this one's format; it was checked before."""
        if self.get("format") != FORMAT:
            self._execute(UNITS + MIGRATION)
            self.set("format", FORMAT)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; one inside another is a part of it."""
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
        """Close it so that the one file is whole: a copy of it without its write-ahead log would be empty."""
        with contextlib.suppress(sqlite3.OperationalError):  # somebody reads it now: then its log stays
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
        """A fact about the study."""
        found = self._db.execute("select value from meta where key=?", (key,)).fetchone()
        return json.loads(found[0]) if found else None

    def point(self, id: str) -> PointRecord | None:
        """A point by its name."""
        return self._by_id.get(id)

    # -- writing ----------------------------------------------------------------------------------

    def set(self, key: str, value: Any) -> None:
        """Keep a fact about the study."""
        self._write("meta", (key, json.dumps(value)))

    def add(self, found: Candidate, granted: int | None) -> PointRecord:
        """Add a point; one that is there already is the same point."""
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
        """Add a replicate of a point."""
        id = trial_name(point.id, seed)
        trial = self.trials.get(id)
        if trial is None:
            trial = self.trials[id] = TrialRecord(id, point.number, seed)
            point.trials.append(trial)
            self.save_trial(trial)
        return trial

    def save_point(self, point: PointRecord) -> None:
        """Write a point as it is now."""
        row = (
            point.number, point.id, json.dumps(point.values), point.origin, point.parent,
            json.dumps(point.attrs), int(point.current), point.state, point.reason, point.granted,
        )  # fmt: skip
        self._write("points", row)

    def save_trial(self, trial: TrialRecord) -> None:
        """Write a trial as it is now."""
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
        with self.transaction():  # the row and its seal, or neither
            self._db.execute(f"insert or replace into {table} values ({places})", row)
            self._seals.put(table, row)

    def begin_unit(self, trials: Sequence[str], until: int | None, purpose: str, place: str = "") -> int:
        """Note that a unit begins; return its number."""
        cursor = self._db.execute(
            "insert into units (purpose, until, place, started) values (?,?,?,?)",
            (purpose, until, place, time.time()),
        )
        number = int(cursor.lastrowid or 0)
        self._db.executemany(
            "insert into unit_trials (unit, trial) values (?,?)", [(number, trial) for trial in trials]
        )
        return number

    def end_trial(self, unit: int, trial: str, outcome: str) -> None:
        """Note how a unit has ended for one of its trials; with the last of them the unit is over."""
        now = time.time()
        with self.transaction():
            self._db.execute(
                "update unit_trials set ended=?, outcome=? where unit=? and trial=?",
                (now, outcome, unit, trial),
            )
            self._db.execute(
                "update units set ended=? where number=? and not exists "
                "(select 1 from unit_trials where unit=? and ended is null)",
                (now, unit, unit),
            )

    def decide(self, point: PointRecord | None, action: str, reason: str) -> None:
        """Note a decision and why it was taken."""
        self._db.execute(
            "insert into decisions (time, point, action, reason) values (?,?,?,?)",
            (time.time(), point.number if point is not None else None, action, clean(reason)),
        )


def check_format(found: object) -> None:
    """Refuse a ledger of a version that this one does not know."""
    if found not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise ValueError(f"it has format {found}, and this version reads {known}")


def read_points(db: sqlite3.Connection, is_ours: bool) -> list[PointRecord]:
    """Every point with its trials, as it was written last; what others wrote is looked at more closely."""
    points: dict[int, PointRecord] = {}
    for row in db.execute("select * from points order by number"):
        if not is_ours:
            check_point(row)
        points[row[0]] = PointRecord(
            row[0], row[1], json.loads(row[2]), row[3], row[4], json.loads(row[5]), bool(row[6]), row[7],
            row[8], row[9],
        )  # fmt: skip
    for row in db.execute("select * from trials order by point, seed"):
        if not is_ours:
            check_trial(row)
        curve = tuple((float(epoch), float(value)) for epoch, value in json.loads(row[9]))
        points[row[1]].trials.append(
            TrialRecord(
                row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], curve, bool(row[10]),
                row[11], row[12], row[13], _failure(row[14]),
            )
        )  # fmt: skip
    if list(points) != list(range(len(points))):
        raise ValueError("points are missing")
    for point in points.values() if not is_ours else ():
        for trial in point.trials:
            if trial.id != trial_name(point.id, trial.seed):
                raise ValueError(
                    f"trial {trial.id} is not that of point {point.number} with seed {trial.seed}"
                )
    return list(points.values())


Read: TypeAlias = tuple[list[PointRecord], dict[str, Any], list[tuple[float, Any, str, str]]]
"""Points, facts and decisions."""


def read_only(path: Path) -> Read:
    """Read a ledger that somebody else may be writing."""
    if not path.is_file():
        if (path.parent / "trials").is_dir():
            raise FolderError(
                f"{path.parent} has trials, but no ledger: "
                f"`manyfit sweep {path.parent}` makes it again from them"
            )
        raise FolderError(f"{path.parent} has no ledger: the study was never started")
    try:
        db = connect(path)
        try:
            db.execute("begin")
            is_ours = Seals(db, path).check()
            facts = {key: json.loads(value) for key, value in db.execute("select key, value from meta")}
            check_format(facts.get("format"))
            decisions = list(db.execute("select time, point, action, reason from decisions order by number"))
            check_facts(facts)
            points = read_points(db, is_ours)
            if not is_ours:
                check_progress(path.parent, points, metric_of(facts))
            return points, facts, decisions
        finally:
            db.close()
    except sqlite3.OperationalError as error:
        if "no such" in str(error):  # tables or columns are missing
            raise FolderError(f"the ledger {path} cannot be read: {error}; {MENDED}") from error
        raise FolderError(f"the ledger {path} cannot be opened here: {error}") from error
    except UNREADABLE as error:
        raise FolderError(f"the ledger {path} cannot be read: {error}; {MENDED}") from error


def metric_of(facts: Mapping[str, Any]) -> str:
    """The metric that a study compares by, once it has begun."""
    return str((facts.get("objective") or {}).get("metric", ""))


def _plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in Failure.__slots__}


def _failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    found: Mapping[str, Any] = json.loads(text)
    if found["kind"] not in KINDS:
        raise ValueError(f"a failure has the kind {found['kind']!r}")
    if not all(isinstance(found.get(name, ""), str) for name in ("message", "traceback", "group")):
        raise ValueError("a failure has no message")
    return Failure(**found)


def is_own(path: Path) -> bool:
    """Whether a ledger was written by this user, where it lies."""
    try:
        db = connect(path)
    except (sqlite3.DatabaseError, FolderError):
        return False
    try:
        return Seals(db, path).are_ours()
    except sqlite3.DatabaseError:
        return False
    finally:
        db.close()


def is_on_network(path: Path) -> bool:
    """Whether a file lies on a file system that other machines see, too."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    here, best, kind = os.path.realpath(path.parent), "", ""
    for line in mounts:
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (here == point or here.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind.startswith(REMOTE)
