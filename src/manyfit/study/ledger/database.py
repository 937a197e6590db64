"""The database file of a ledger: its tables, its formats, and how it is opened."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from manyfit.core.errors import FolderError
from manyfit.core.files import check_file, read_bytes

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


def check_format(found: object) -> None:
    """Refuse a ledger of a version that this one does not know."""
    if found not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise ValueError(f"it has format {found}, and this version reads {known}")


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
