"""Comparison of record files with the index."""

from __future__ import annotations

import fnmatch
import glob
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyfit.core.names import listing
from manyfit.data.tfrecord import detection, files, streams
from manyfit.data.tfrecord.errors import RecordError
from manyfit.data.tfrecord.metadata import (
    FileEntry,
    Progress,
    examine_file,
    hash_file,
    index_path,
    load_index,
)


@dataclass(frozen=True)
class FileProblem:
    """A problem with a file: a keyword and a detailed description."""

    file: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}: {self.detail}"


def by_folder(paths: Sequence[str]) -> dict[str, list[str]]:
    """Group files by folder."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(files.folder_of(path), []).append(path)
    return found


def verify_files(
    patterns: str | Sequence[str],
    deep: bool = False,
    progress: Progress | None = None,
    known: Mapping[str, Mapping[str, FileEntry]] | None = None,
) -> Iterator[FileProblem]:
    """Compare files with the index: names and sizes, or, with `deep`, the complete contents."""
    given = [
        files.canonical_pattern(each) for each in ([patterns] if isinstance(patterns, str) else patterns)
    ]
    here = dict.fromkeys(present(given))
    inside = by_folder(list(here))
    folders = dict.fromkeys([*inside, *(folder for pattern in given for folder in _folders(pattern))])
    read = known or {}
    known = {folder: read[folder] if folder in read else load_index(folder) for folder in folders}
    if not here and not any(known.values()):
        files.match_files(given)  # raises an error that explains which pattern matches nothing
    strange = find_unindexed(list(here), given, known)
    for folder, entries in known.items():
        if not entries and folder in inside:
            yield FileProblem(index_path(folder), "missing", "this folder has not been indexed")
            continue
        for name in entries:
            path = posixpath.join(folder, name)
            if path not in here and _would_match(path, given):
                yield FileProblem(path, "deleted", "it was indexed, but no longer exists")
        for path in inside.get(folder, ()):
            entry = entries.get(files.name_of(path))
            if entry is None and path in strange:
                continue
            if entry is None:
                yield FileProblem(path, "added", "it exists, but was not indexed")
            else:
                yield from compare_file(path, entry, deep, progress)


def find_unindexed(
    paths: Sequence[str], patterns: Sequence[str], known: Mapping[str, Mapping[str, FileEntry]]
) -> list[str]:
    """Return files that hold no records and are not indexed."""
    indexed = {posixpath.join(folder, name) for folder, entries in known.items() for name in entries}
    return detection.find_strangers(paths, patterns, indexed)


def list_indexed(patterns: Sequence[str]) -> list[str]:
    """Return the existing files that match some patterns and are indexed."""
    paths = present([files.canonical_pattern(each) for each in patterns])
    known = {folder: load_index(folder) for folder in by_folder(paths)}
    return [path for path in paths if files.name_of(path) in known[files.folder_of(path)]]


def present(patterns: Sequence[str]) -> list[str]:
    """Return the existing files; patterns without matches are skipped."""
    found: dict[str, None] = {}
    for pattern in patterns:
        found |= dict.fromkeys(files.find_files(pattern))
    return list(found)


def _folders(pattern: str) -> list[str]:
    """Return the folders that a pattern searches."""
    if files.is_remote(pattern):
        folder = files.folder_of(pattern)
        return [] if any(mark in folder for mark in files.MAGIC) else [folder]
    if Path(pattern).is_dir():
        return [pattern]
    folder = files.folder_of(pattern)
    found = [folder] if Path(folder).is_dir() else glob.glob(folder, recursive=True)  # noqa: PTH207
    return [str(path) for path in found if Path(path).is_dir()]


def _would_match(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern would match a file if it existed."""
    return any(
        path == pattern
        or files.folder_of(path) == pattern
        or fnmatch.fnmatch(path, pattern)
        or (
            files.folder_of(path) == files.folder_of(pattern)
            and fnmatch.fnmatch(files.name_of(path), files.name_of(pattern))
        )
        for pattern in patterns
    )


def compare_file(
    path: str, entry: FileEntry, deep: bool, progress: Progress | None = None
) -> Iterator[FileProblem]:
    """Yield the changes of a file since it was indexed; a file of another size is read even if not `deep`."""
    size = files.size_of(path)
    if not deep and size == entry.size:
        return
    if size == entry.size:
        with streams.open_bytes(files.local_copy(path)) as data:
            is_same = entry.digest and hash_file(data) == entry.digest
            is_same = is_same or (entry.md5 and hash_file(data, "md5") == entry.md5)
        if is_same:
            yield from _check_entry(path, entry, progress)
            return
    what, detail = _explain_change(path, entry, progress)
    if deep:
        yield FileProblem(path, what, detail)
    else:
        sizes = f"{size:,} bytes, but {entry.size:,} when it was indexed"
        yield FileProblem(path, "resized", f"{sizes} ({what}: {detail})")


def _check_entry(path: str, entry: FileEntry, progress: Progress | None) -> Iterator[FileProblem]:
    """Yield a problem if the index does not describe an unchanged file correctly."""
    found = examine_file(path, None, progress)
    wrong = found.records != entry.records
    if entry.frames is not None and found.frames is not None and not wrong:
        wrong = _first_difference(entry, found) != found.records or dict(entry.features) != dict(
            found.features
        )
        wrong = wrong or entry.compression != found.compression
    if wrong:
        yield FileProblem(
            path, "wrongly indexed", "the file is unchanged, but the index does not describe it"
        )


def _explain_change(path: str, entry: FileEntry, progress: Progress | None) -> tuple[str, str]:
    """Return a keyword and a description of how a changed file differs from the index."""
    try:
        found = examine_file(path, entry.compression if entry.digest else None, progress)
    except RecordError as error:
        return error.what, error.reason if error.record is None else f"record {error.record}: {error.reason}"
    first = _first_difference(entry, found)
    if first is not None and first == found.records < entry.records:
        return "truncated", f"it ends before record {first}, but {entry.records:,} records were indexed"
    if entry.features and found.features != entry.features:
        return "schema changed", _schemas(entry.features, found.features)
    count = "" if entry.records == found.records else f"{found.records:,} records, not {entry.records:,}"
    since = "" if first is None else f"it differs from record {first} on"
    return "changed", "; ".join(filter(None, (since, count))) or "its bytes differ"


def _first_difference(before: FileEntry, now: FileEntry) -> int | None:
    """Return the first record that differs; None if an entry has no positions."""
    if before.frames is None or now.frames is None:
        return None
    shared = min(len(before.frames), len(now.frames))
    same = (before.frames.checksums[:shared] == now.frames.checksums[:shared]) & (
        np.diff(before.frames.offsets)[:shared] == np.diff(now.frames.offsets)[:shared]
    )
    return int(np.argmin(same)) if not same.all() else shared


def _schemas(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    parts = [f"{name} is missing" for name in before if name not in now]
    parts += [f"{name} is new" for name in now if name not in before]
    parts += [f"{n} was {before[n]}, is {now[n]}" for n in before if n in now and now[n] != before[n]]
    return listing(parts, 6)
