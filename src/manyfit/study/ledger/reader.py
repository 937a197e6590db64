"""Reading a ledger: its points with their trials, its facts and its decisions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from manyfit.core.errors import FolderError
from manyfit.study.ledger.database import UNREADABLE, check_format, connect
from manyfit.study.ledger.integrity import (
    MENDED,
    Seals,
    check_facts,
    check_point,
    check_progress,
    check_trial,
)
from manyfit.study.work.points import trial_name
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.units import KINDS, Failure


def read_points(db: sqlite3.Connection, is_ours: bool) -> list[PointRecord]:
    """Return every point with its trials; a ledger that this user did not write is checked row by row."""
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
                    f"trial {trial.id} does not belong to point {point.number} with seed {trial.seed}"
                )
    return list(points.values())


Read: TypeAlias = tuple[list[PointRecord], dict[str, Any], list[tuple[float, Any, str, str]]]
"""Points, facts and decisions."""


def read_only(path: Path) -> Read:
    """Read a ledger, also while a driver is writing it."""
    if not path.is_file():
        if (path.parent / "trials").is_dir():
            raise FolderError(
                f"{path.parent} has trials, but no ledger: "
                f"`manyfit sweep {path.parent}` rebuilds it from them"
            )
        raise FolderError(f"{path.parent} has no ledger: the study was never started")
    try:
        db = connect(path)
        try:
            db.execute("begin")
            if not db.execute("select count(*) from sqlite_master").fetchone()[0]:
                raise FolderError(f"{path.parent} has an empty ledger: the study is only just being started")
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
    """Return the metric of the objective; empty before the first start of the study."""
    return str((facts.get("objective") or {}).get("metric", ""))


def _failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    found: Mapping[str, Any] = json.loads(text)
    if found["kind"] not in KINDS:
        raise ValueError(f"a failure has the unknown kind {found['kind']!r}")
    if not all(isinstance(found.get(name, ""), str) for name in ("message", "traceback", "group")):
        raise ValueError("the text of a failure is not a string")
    return Failure(**found)


def is_own(path: Path) -> bool:
    """Return whether this user wrote the ledger, in this project."""
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
