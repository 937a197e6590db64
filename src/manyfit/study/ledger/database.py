"""The SQLite database of a ledger: its tables, its formats, and opening the file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from manyfit.core.errors import FolderError
from manyfit.core.files import check_file, read_bytes

FORMAT: Final = 3
"""Format 1 had a table `assignments`, with one row per unit, each of a single trial; units of format 2 had no
shards, and did not record their steps."""
READABLE: Final = (1, 2, FORMAT)
REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs")
"""Network file systems, which cannot hold a write-ahead log: it requires shared memory among all readers."""

OF_SEVERAL: Final = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names a super-journal, as transactions over several databases write."""

UNREADABLE: Final = (
    sqlite3.DatabaseError, ValueError, KeyError, IndexError, TypeError, RecursionError,
    OverflowError,
)  # fmt: skip
"""What reading raises for a file that is not a ledger, or that manyfit did not write."""

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
  started real not null, ended real, visit integer, shard integer
);
create table unit_trials (
  unit integer not null references units, trial text not null, ended real, outcome text, steps integer,
  primary key (unit, trial)
);
"""
"""The units that were assigned to executors, and how they ended for each trial."""
MIGRATIONS: Final = {
    1: f"""
{UNITS}
insert into units select number, purpose, until, '', started, ended, null, null from assignments;
insert into unit_trials select number, trial, ended, outcome, null from assignments;
drop table assignments;
""",
    2: """
alter table units add column visit integer;
alter table units add column shard integer;
alter table unit_trials add column steps integer;
""",
}
"""By format: what turns a ledger into the current one."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file as a database; raise if it is not a regular file, for example a pipe.

    Symbolic links are refused, because SQLite would write to their target, and so is a journal that names
    another file, because SQLite would delete that file.
    """
    journal = path.with_name(f"{path.name}-journal")
    for each in (path, journal, *(path.with_name(f"{path.name}-{ending}") for ending in ("wal", "shm"))):
        check_file(each)
        if each.is_symlink():
            raise FolderError(f"{each} is a link, which could point outside the study; remove it")
        if each.is_dir():
            raise FolderError(f"{each} is a folder, not a file; remove it")
    if journal.exists() and read_bytes(journal).endswith(OF_SEVERAL):
        raise FolderError(f"{journal} was not written by manyfit: it names another file; remove it")
    return sqlite3.connect(path, isolation_level=None, timeout=30)


def check_format(found: object) -> None:
    """Raise if this version of manyfit cannot read the format of a ledger."""
    if found not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise ValueError(f"it has format {found}, but this version reads {known}")


def is_on_network(path: Path) -> bool:
    """Return whether a file is on a network file system."""
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
