"""Indexing of record files, and the indexed files of a data set."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from manyfit.core.names import listing
from manyfit.data.tfrecord import detection, files, streams
from manyfit.data.tfrecord.errors import DataChanged, NotIndexed
from manyfit.data.tfrecord.metadata import FILE, FileEntry, Progress, examine_file, load_index, save_index
from manyfit.data.tfrecord.verification import by_folder, compare_file, find_unindexed, verify_files

log = logging.getLogger("manyfit")
LOCK: Final = "._tfrecord_metadata.lock"


@dataclass(frozen=True)
class Indexed:
    """The result of indexing one file."""

    file: str
    entry: FileEntry
    is_new: bool


def index_files(
    paths: Sequence[str],
    force: bool = False,
    compression: str | None = None,
    progress: Progress | None = None,
) -> Iterator[Indexed]:
    """Index every file that is not indexed yet; raise for a changed file unless `force`.

    The index of a folder is written after all of its files have been read.
    """
    for folder, inside in by_folder(paths).items():
        known = {} if force and _is_unreadable(folder) else load_index(folder)
        gone = [name for name in known if not _exists(posixpath.join(folder, name))]
        if gone and not force:
            shown = listing(gone)
            raise DataChanged(f"{folder}: indexed files are missing: {shown}; {_remedy(folder)}")
        made: dict[str, FileEntry] = {}
        for path in inside:
            name = files.name_of(path)
            before = known.get(name)
            if before is not None and not force:
                for change in compare_file(path, before, True, progress):
                    raise DataChanged(f"{change}; {_remedy(folder)}")
            if before is None or force or before.frames is None:
                made[name] = examine_file(path, compression, progress)
            yield Indexed(path, made.get(name) or known[name], name in made)
        for name, entry in known.items():
            # Indexed by another program, and not among `paths`.
            if entry.frames is None and name not in made and name not in gone:
                made[name] = examine_file(posixpath.join(folder, name))
        if made or gone:
            merge_index(folder, made, gone, force)


def merge_index(
    folder: str, made: Mapping[str, FileEntry], gone: Collection[str] = (), force: bool = False
) -> None:
    """Add files to the index of a folder, keeping entries that other processes added meanwhile."""
    with _lock_index(folder):
        known = {} if force and _is_unreadable(folder) else load_index(folder)
        kept = {name: entry for name, entry in known.items() if name not in gone and entry.frames is not None}
        save_index(folder, {**kept, **made})


@contextlib.contextmanager
def _lock_index(folder: str) -> Iterator[None]:
    """Prevent other processes on this machine from writing the index of a folder."""
    if files.is_remote(folder):
        yield
        return
    with (Path(folder) / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_unreadable(folder: str) -> bool:
    try:
        load_index(folder)
    except DataChanged:
        return True
    return False


def _exists(path: str) -> bool:
    if files.is_remote(path):
        fs, inner = files.store_of(path)
        return bool(fs.isfile(inner))
    return Path(path).is_file()


def _remedy(folder: str) -> str:
    again = f"manyfit data index --force '{posixpath.join(folder, '*')}'"
    return f"restore the old data, or index it again: {again}"


def find_entries(
    patterns: str | Sequence[str], generate: bool = False, compression: str | None = None
) -> dict[str, FileEntry]:
    """Return the files of a data set with their index entries, after comparing names and sizes.

    Raises if a file was deleted, added or resized. With `generate`, folders without an index are indexed.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    paths = files.match_files(given)
    known = {folder: load_index(folder) for folder in by_folder(paths)}
    strange = find_unindexed(paths, given, known)
    if strange and len(strange) < len(paths):
        log.info("ignoring files that are not record files: %s", listing(strange))
        paths = [path for path in paths if path not in strange]
    missing = [folder for folder, entries in known.items() if not entries]
    fresh = [
        folder
        for folder, inside in by_folder(paths).items()
        if not any(files.name_of(path) in known[folder] for path in inside)
    ]
    if missing and not generate:
        raise NotIndexed(
            f"{missing[0]} has no {FILE}, which is required to detect changes of the data: write it with "
            f"manyfit data index '{posixpath.join(missing[0], '*')}', or set auto_generate_meta: true"
        )
    if generate and fresh:  # an unknown file among indexed ones is not indexed: it was added
        log.warning("indexing files of %s, which have no index yet", ", ".join(fresh))
        unknown = [path for path in paths if files.folder_of(path) in fresh]
        for _ in index_files(unknown, compression=compression):
            pass
        known |= {folder: load_index(folder) for folder in fresh}
    findings = list(verify_files(given, known=known))
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings[:10])
        more = f"\n  and {len(findings) - 10} more" if len(findings) > 10 else ""
        raise DataChanged(
            f"the data has changed since it was indexed:\n{lines}{more}\n"
            f"{_remedy(files.folder_of(findings[0].file))}"
        )
    found = {path: known[files.folder_of(path)][files.name_of(path)] for path in paths}
    log.debug("%d record files: %s", len(found), listing([f"{p} ({e.records:,})" for p, e in found.items()]))
    for path, entry in found.items():
        if compression is not None and entry.digest and entry.compression != compression:
            with streams.open_bytes(files.local_copy(path)) as data:
                detection.check_compression(data[:16], compression, path)
    return found
