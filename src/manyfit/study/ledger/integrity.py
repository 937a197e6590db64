"""Integrity of a ledger: rows are sealed when they are written and verified when they are read.

The seals of a ledger that was written elsewhere are not valid here. Its rows are then checked for valid
values, and its progress is compared with the run folders.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from manyfit.config.dialects.table import EPOCHS
from manyfit.config.tree.nodes import plain
from manyfit.config.tree.project import project_root
from manyfit.config.tree.reader import read_file
from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import ConfigError, FolderError
from manyfit.core.seal import sealer
from manyfit.store.folder import RunFolder
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, PointState, TrialState
from manyfit.study.work.training import read_committed_step

SCHEMA: Final = "create table if not exists seals (row text primary key, seal text not null)"
COUNT: Final = "count"
"""The name of the seal over the number of other seals, so that a deleted row is noticed."""
OWNER: Final = "owner"
"""The name of the seal that shows whether all others were made with this key, for this project."""
NAME: Final = re.compile(r"[0-9a-f]{12}")
MENDED: Final = "move it away, and manyfit sweep rebuilds it from the run folders"


class Seals:
    """The seals of the rows of one ledger."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._sealer = sealer(project_root(path))
        self._written: dict[str, tuple[str, Sequence[Any]]] = {}
        self._known: set[str] = set()

    def put(self, table: str, row: Sequence[Any]) -> None:
        """Register a written row, named by its first column; it is sealed at the end of the transaction."""
        self._written[f"{table} {row[0]}"] = table, row

    def seal(self) -> None:
        """Seal the rows that the transaction wrote, and the number of rows, so that a deletion is noticed."""
        written, self._written = self._written, {}
        if not self._sealer.can_seal:
            return
        new = written.keys() - self._known
        if new:
            written[f"{COUNT} {COUNT}"] = COUNT, (COUNT, len(self._known) + len(new))
        self._db.executemany(
            "insert or replace into seals values (?, ?)",
            [(name, self._sealer.seal(_text(table, row))) for name, (table, row) in written.items()],
        )
        self._known |= new

    def forget(self) -> None:
        """Discard the registered rows of a transaction that was rolled back."""
        self._written = {}

    def begin(self) -> None:
        """Make this user the owner of the ledger: seal all rows, unless they are sealed already."""
        self._db.execute(SCHEMA)
        if self.are_ours():
            self._known = {row for (row,) in self._db.execute("select row from seals")} - {f"{COUNT} {COUNT}"}
            return
        self._db.execute("delete from seals")
        self.put(OWNER, (OWNER,))
        for table, row in _rows(self._db):
            self.put(table, row)

    def are_ours(self) -> bool:
        """Return whether this user sealed the ledger, in this project."""
        if not self._db.execute("select 1 from sqlite_master where name='seals'").fetchone():
            return False
        found = self._db.execute("select seal from seals where row=?", (f"{OWNER} {OWNER}",)).fetchone()
        return found is not None and self._sealer.holds(found[0], _text(OWNER, (OWNER,)))

    def check(self) -> bool:
        """Raise if a row was changed, added or removed; return whether this user wrote the ledger."""
        for kind, name in self._db.execute("select type, name from sqlite_master"):
            if kind not in ("table", "index"):  # SQLite would execute triggers and views
                raise ValueError(f"it has a {kind}, {name!r:.40}, which manyfit did not make")
        if not self.are_ours():
            return False
        known = dict(self._db.execute("select row, seal from seals"))
        count = known.pop(f"{COUNT} {COUNT}", None)
        known.pop(f"{OWNER} {OWNER}")
        rows = list(_rows(self._db))
        is_whole = self._sealer.holds(count, _text(COUNT, (COUNT, len(known) + 1)))
        named = {f"{table} {row[0]}" for table, row in rows}
        if not is_whole or len(rows) != len(known) or named != known.keys():
            raise ValueError("rows are missing or were added")
        for table, row in rows:
            if not self._sealer.holds(known.get(f"{table} {row[0]}"), _text(table, row)):
                what = {"meta": "fact", "points": "point", "trials": "trial"}[table]
                raise ValueError(f"{what} {row[0]} was changed after manyfit wrote it")
        return True


def _rows(db: sqlite3.Connection) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for table in ("meta", "points", "trials"):
        for row in db.execute(f"select * from {table}"):
            yield table, row


def _text(table: str, row: Sequence[Any]) -> str:
    """Serialize a row for its seal; numbers as floats, as SQLite returns integers of real columns."""
    plain = [float(cell) if isinstance(cell, int | float) else cell for cell in row]
    return json.dumps([table, *plain])


def check_point(row: Sequence[Any]) -> None:
    """Raise if a row is not a valid point."""
    number, id, values, _, _, attrs, current, state, _, granted = row
    _check(isinstance(number, int) and number >= 0, "the number of a point is invalid")
    _check(_is_name(id), f"a point has the invalid name {id!r:.40}")
    found = json.loads(values)
    _check(isinstance(found, dict), f"the values of point {number} are not a mapping")
    _check(_is_unicode(found), f"the values of point {number} are not valid Unicode")
    for key in EPOCHS:
        _check(key not in found or _is_amount(found[key]), f"point {number} has an invalid number of epochs")
    _check(isinstance(json.loads(attrs), dict), f"the attributes of point {number} are not a mapping")
    _check(current in (0, 1), f"'current' of point {number} is neither 0 nor 1")
    _check(state in get_args(PointState), f"a point has the unknown state {state!r:.40}")
    _check(
        granted is None or isinstance(granted, int),
        f"'granted' of point {number} is {granted!r:.40}, not a number of epochs",
    )
    _check(
        all(isinstance(cell, str) for cell in (row[3], row[4], row[8])),
        f"origin, parent or reason of point {number} is not text",
    )


def check_trial(row: Sequence[Any]) -> None:
    """Raise if a row is not a valid trial."""
    id, point, seed, state, step, epoch, steps, seconds, value = row[:9]
    _check(_is_name(id), f"a trial has the invalid name {id!r:.40}")
    _check(isinstance(point, int) and isinstance(seed, int), f"trial {id} has an invalid point or seed")
    _check(state in get_args(TrialState), f"a trial has the unknown state {state!r:.40}")
    _check(
        all(_is_count(cell) for cell in (step, steps, row[12], row[13])),
        f"trial {id} has an invalid count of steps, deaths or splits",
    )
    _check(all(_is_amount(cell) for cell in (epoch, seconds)), f"trial {id} has an invalid epoch or time")
    _check(value is None or isinstance(value, int | float), f"trial {id} has the invalid value {value!r:.40}")
    _check(isinstance(row[11], str), f"the reason of trial {id} is not text")


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise if the facts of a ledger are not valid."""
    objective, seeds = facts.get("objective"), facts.get("seeds")
    if objective is not None:
        fits = isinstance(objective, dict) and isinstance(objective.get("metric"), str)
        _check(fits and objective.get("mode") in ("min", "max"), "its objective is invalid")
    whole = isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds)
    _check(seeds is None or whole, "its seeds are not a list of integers")
    for key in ("epochs", "trials", "seconds", "folds", "repeated_steps"):
        _check(facts.get(key) is None or _is_amount(facts[key]), f"{key!r} is not a number")
    for key in ("base_values", "base", "modules", "sampler"):
        _check(facts.get(key) is None or isinstance(facts[key], dict), f"{key!r} is not a mapping")
    reported = facts.get("reported", {})
    whole = isinstance(reported, dict) and all(isinstance(step, int) for step in reported.values())
    _check(whole, "its reported steps are not integers")
    for key in ("budget", "stop", "aim"):
        fits = isinstance(facts.get(key), dict) and "value" in facts[key]
        _check(facts.get(key) is None or fits, f"{key!r} has no value")
    for key in ("rehearsed", "rehearsing", "space"):
        texts = isinstance(facts.get(key), list) and all(isinstance(item, str) for item in facts[key])
        _check(facts.get(key) is None or texts, f"{key!r} is not a list of texts")
    base = facts.get("base")
    base = {"values": {}, "kinds": {}, "given": {}} if base is None else base
    parts = [base.get(name) for name in ("values", "kinds", "given")]
    _check(all(isinstance(part, dict) for part in parts), "its base is invalid")
    _check(all(kind in list(Kind) for kind in base["kinds"].values()), "its base has an unknown kind of key")
    _check(facts.get("isolates") in (None, True, False), "'isolates' is neither true nor false")


def check_progress(folder: Path, points: Sequence[PointRecord], metric: str) -> None:
    """Raise if a ledger contradicts its run folders, the source of truth about progress."""
    here = StudyFolder(folder)
    if not here.trials.is_dir():
        return
    for point, trial in ((each, trial) for each in points for trial in each.trials if trial.step):
        run = here.trial(trial.id)
        if not run.path.is_dir():
            continue  # the trial is trained again
        try:
            found = run.events()
        except FolderError:
            continue  # reported when the trial resumes
        measured = {(event.epoch, repr(event.values[metric])) for event in found if metric in event.values}
        claimed = {(epoch, repr(value)) for epoch, value in trial.curve}
        if trial.value is not None and trial.value not in [value for _, value in trial.curve]:
            claimed.add((math.inf, repr(trial.value)))
        last = max((event.step for event in found), default=0)
        step = read_committed_step(run) if run.checkpoint_folder.is_dir() else last
        is_behind = step > trial.step and trial.state in ("finished", "paused")
        if step < trial.step or is_behind:
            difference = f"is at step {trial.step}, but its folder is at step {step}"
        elif not claimed <= measured:
            difference = f"has a {metric} that its folder does not have"
        else:
            difference = _other_values(point, run)
        if difference:
            raise FolderError(
                f"the ledger {here.ledger} does not agree with its run folders: trial {trial.id} "
                f"{difference}; {MENDED}"
            )


def _other_values(point: PointRecord, run: RunFolder) -> str:
    """Describe the first value of a point that differs from the config of its trial; empty if none does."""
    try:
        given = plain(read_file(run.config))
    except (FolderError, ConfigError, OSError):
        return ""  # reported when the trial resumes
    for key, value in point.values.items():
        found = given
        for part in key.split("."):
            found = found.get(part, value) if isinstance(found, dict) else value
        if found != value:
            return f"has {key} {value!r:.40}, but was trained with {found!r:.40}"
    return ""


def _is_name(text: object) -> bool:
    return isinstance(text, str) and NAME.fullmatch(text) is not None


def _is_unicode(value: object) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _check(fits: bool, message: str) -> None:
    if not fits:
        raise ValueError(message)
