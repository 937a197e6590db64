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
    """Something that is wrong with a file, in one word and in a sentence."""

    file: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}: {self.detail}"


def by_folder(paths: Sequence[str]) -> dict[str, list[str]]:
    """Files by the folder that they lie in."""
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
    """Compare files with what is known of them: their names and sizes, or, `deep`, all that is in them."""
    given = [
        files.canonical_pattern(each) for each in ([patterns] if isinstance(patterns, str) else patterns)
    ]
    here = dict.fromkeys(present(given))
    inside = by_folder(list(here))
    folders = dict.fromkeys([*inside, *(folder for pattern in given for folder in _folders(pattern))])
    read = known or {}
    known = {folder: read[folder] if folder in read else load_index(folder) for folder in folders}
    if not here and not any(known.values()):
        files.match_files(given)  # which says what is wrong
    strange = find_unindexed(list(here), given, known)
    for folder, entries in known.items():
        if not entries and folder in inside:
            yield FileProblem(index_path(folder), "missing", "nobody has indexed this folder")
            continue
        for name in entries:
            path = posixpath.join(folder, name)
            if path not in here and _fits(path, given):
                yield FileProblem(path, "deleted", "it was indexed, but is not there any more")
        for path in inside.get(folder, ()):
            entry = entries.get(files.name_of(path))
            if entry is None and path in strange:
                continue
            if entry is None:
                yield FileProblem(path, "added", "it is there, but was not indexed")
            else:
                yield from compare_file(path, entry, deep, progress)


def find_unindexed(
    paths: Sequence[str], patterns: Sequence[str], known: Mapping[str, Mapping[str, FileEntry]]
) -> list[str]:
    """Files beside the records that hold none, and that nobody has indexed."""
    indexed = {posixpath.join(folder, name) for folder, entries in known.items() for name in entries}
    return detection.find_strangers(paths, patterns, indexed)


def list_indexed(patterns: Sequence[str]) -> list[str]:
    """Those of the files that are there which somebody has indexed."""
    paths = present([files.canonical_pattern(each) for each in patterns])
    known = {folder: load_index(folder) for folder in by_folder(paths)}
    return [path for path in paths if files.name_of(path) in known[files.folder_of(path)]]


def present(patterns: Sequence[str]) -> list[str]:
    """The files that are there; patterns that match nothing are passed over."""
    found: dict[str, None] = {}
    for pattern in patterns:
        found |= dict.fromkeys(files.find_files(pattern))
    return list(found)


def _folders(pattern: str) -> list[str]:
    """The folders in which a pattern looks."""
    if files.is_remote(pattern):
        folder = files.folder_of(pattern)
        return [] if any(mark in folder for mark in files.MAGIC) else [folder]
    if Path(pattern).is_dir():
        return [pattern]
    folder = files.folder_of(pattern)
    found = [folder] if Path(folder).is_dir() else glob.glob(folder, recursive=True)  # noqa: PTH207
    return [str(path) for path in found if Path(path).is_dir()]


def _fits(path: str, patterns: Sequence[str]) -> bool:
    """Whether one of some patterns would match a file, if it were there."""
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
    """What has happened to a file since it was indexed; `deep` or not, a file of another size is read."""
    size = files.size_of(path)
    if not deep and size == entry.size:
        return
    if size == entry.size:
        with streams.open_bytes(files.local_copy(path)) as data:
            is_same = entry.digest and hash_file(data) == entry.digest
            is_same = is_same or (entry.md5 and hash_file(data, "md5") == entry.md5)
        if is_same:
            yield from _misread(path, entry, progress)
            return
    what, detail = _explain_change(path, entry, progress)
    if deep:
        yield FileProblem(path, what, detail)
    else:
        sizes = f"{size:,} bytes; when it was indexed, {entry.size:,}"
        yield FileProblem(path, "resized", f"{sizes} ({what}: {detail})")


def _misread(path: str, entry: FileEntry, progress: Progress | None) -> Iterator[FileProblem]:
    """A file that is what it was, but of which the index says something else."""
    found = examine_file(path, None, progress)
    wrong = found.records != entry.records
    if entry.frames is not None and found.frames is not None and not wrong:
        wrong = _first(entry, found) != found.records or dict(entry.features) != dict(found.features)
        wrong = wrong or entry.compression != found.compression
    if wrong:
        yield FileProblem(
            path, "wrongly indexed", "the file is unchanged, but the index does not describe it"
        )


def _explain_change(path: str, entry: FileEntry, progress: Progress | None) -> tuple[str, str]:
    """In one word and in a sentence, what has become of a file that is not what it was."""
    try:
        found = examine_file(path, entry.compression if entry.digest else None, progress)
    except RecordError as error:
        return error.what, error.reason if error.record is None else f"record {error.record}: {error.reason}"
    first = _first(entry, found)
    if first is not None and first == found.records < entry.records:
        return "truncated", f"it ends before record {first}, but {entry.records:,} records were indexed"
    if entry.features and found.features != entry.features:
        return "schema changed", _schemas(entry.features, found.features)
    count = "" if entry.records == found.records else f"{found.records:,} records, not {entry.records:,}"
    since = "" if first is None else f"from record {first} on it is another"
    return "changed", "; ".join(filter(None, (since, count))) or "its bytes are others"


def _first(before: FileEntry, now: FileEntry) -> int | None:
    """The first record that is not what it was; None if that cannot be known."""
    if before.frames is None or now.frames is None:
        return None
    shared = min(len(before.frames), len(now.frames))
    same = (before.frames.checksums[:shared] == now.frames.checksums[:shared]) & (
        np.diff(before.frames.offsets)[:shared] == np.diff(now.frames.offsets)[:shared]
    )
    return int(np.argmin(same)) if not same.all() else shared


def _schemas(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    parts = [f"{name} is gone" for name in before if name not in now]
    parts += [f"{name} is new" for name in now if name not in before]
    parts += [f"{n} was {before[n]}, is {now[n]}" for n in before if n in now and now[n] != before[n]]
    return listing(parts, 6)
