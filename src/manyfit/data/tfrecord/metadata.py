"""`_tfrecord_metadata.json`: what a folder of records held when it was indexed.

For every file: how many records, how many bytes, a digest of them, where each record begins, its checksum,
and the features. With it a file can be read anywhere, and whatever happened to it since is found.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import fnmatch
import glob
import hashlib
import json
import logging
import posixpath
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.data.tfrecord import files
from manyfit.data.tfrecord.errors import DataChanged, NotIndexed, RecordError
from manyfit.data.tfrecord.frames import AROUND, Frames, records
from manyfit.data.tfrecord.wire import Buffer, Malformed, find_schema
from manyfit.store import durable

log = logging.getLogger("manyfit")

FILE: Final = "_tfrecord_metadata.json"
LOCK: Final = "._tfrecord_metadata.lock"
VERSION: Final = 2
TOGETHER: Final = 4096
"""Records whose features are looked at together, at most."""
AT_ONCE: Final = 1 << 24
"""Bytes of them, more or less."""
DENSE: Final = 1100
"""More bytes than this are never packed into one."""
MOST_FEATURES: Final = 1 << 16
MOST_EMPTY: Final = 1 << 16
"""Records without a single byte in one file."""
LARGEST: Final = 1 << 30
"""Bytes of a metadata file that are read."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class FileEntry:
    """What is known of one file."""

    records: int
    size: int
    digest: str = ""
    """SHA-256 of the file, as it lies there."""
    md5: str = ""
    """Of a file that another program has indexed."""
    compression: str = ""
    frames: Frames | None = None
    features: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        assert self.frames is not None
        return {
            "records": self.records,
            "size": self.size,
            "sha256": self.digest,
            "compression": self.compression,
            "offsets": _pack(np.diff(self.frames.offsets).astype("<i8")),
            "checksums": _pack(self.frames.checksums.astype("<u4")),
            "features": dict(self.features),
        }

    @staticmethod
    def of(found: Any) -> FileEntry:
        """Read one, whichever program wrote it."""
        if "md5_hash" in found:
            return FileEntry(
                _count(found["total_records"]), _count(found["file_size"]), md5=str(found["md5_hash"])
            )
        count, size = _count(found["records"]), _count(found["size"])
        compression, digest = found["compression"], str(found["sha256"])
        if compression not in ("", "gzip", "zlib"):
            raise ValueError(f"the compression {compression!r}")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("a digest that is none")
        if count * AROUND > size * (DENSE if compression else 1):
            raise ValueError("more records than the file has room for")
        lengths = np.frombuffer(_unpack(found["offsets"], 8 * count), "<i8").astype(np.int64)
        checksums = np.frombuffer(_unpack(found["checksums"], 4 * count), "<u4").astype(np.uint32)
        most = size * DENSE if compression else size
        if ((lengths < AROUND) | (lengths > most)).any() or (not compression and int(lengths.sum()) != size):
            raise ValueError("the places of the records do not fit the size of the file")
        frames = Frames(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), checksums)
        features = {str(name): str(kind) for name, kind in found["features"].items()}
        return FileEntry(count, size, digest, "", compression, frames, features)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def _pack(array: Any) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()


def _unpack(text: Any, size: int) -> bytes:
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text, validate=True), size + 1)
    if len(data) != size:
        raise ValueError("a list has not as many items as there are records")
    return data


# -- reading and writing --------------------------------------------------------------------------


def load_index(folder: str) -> dict[str, FileEntry]:
    """What is known of the files in a folder; nothing if it was never indexed."""
    text = _read(folder)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        if found["version"] not in (1, VERSION):
            raise ValueError(f"a version that is not known: {found['version']!r}")
        return {str(name): FileEntry.of(entry) for name, entry in found["files"].items()}
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        ArithmeticError,
        zlib.error,
    ) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise DataChanged(
            f"{_place(folder)} cannot be read ({reason}); if the data is right, index it anew: "
            f"manyfit data index --force '{posixpath.join(folder, '*')}'"
        ) from error


def _place(folder: str) -> str:
    return posixpath.join(folder, FILE)


def _read(folder: str) -> bytes | None:
    try:
        if files.is_remote(folder):
            fs, path = files.store_of(_place(folder))
            return bytes(fs.cat_file(path)) if fs.isfile(path) else None
        place = Path(_place(folder))
        if not place.is_file():
            return None
        if place.stat().st_size > LARGEST:
            raise DataChanged(f"{place} is too large to be metadata")
        return place.read_bytes()
    except OSError as error:
        raise UsageError(f"{_place(folder)}: {error.strerror or error}") from error


def save_index(folder: str, entries: Mapping[str, FileEntry]) -> None:
    """Write what is known of a folder, whole or not at all."""
    document = {"version": VERSION, "files": {name: entries[name].plain() for name in sorted(entries)}}
    text = json.dumps(document, indent=1) + "\n"
    if files.is_remote(folder):
        fs, path = files.store_of(_place(folder))
        fs.pipe_file(path, text.encode())
    else:
        durable.write_file(Path(_place(folder)), text)


# -- looking at files -----------------------------------------------------------------------------


def examine_file(file: str, compression: str | None = None, progress: Progress | None = None) -> FileEntry:
    """Read all of a file: check every record, and note what there is to know."""
    with files.open_bytes(files.local_copy(file)) as data:
        found = files.check_compression(data[:16], compression, file)
        offsets, checksums, features = [0], list[int](), dict[str, set[str]]()
        waiting: list[bytes] = []
        size = empty = 0
        for position, crc, record in records(files.stream_of(data, found, file, progress), file):
            empty += not record
            if empty > MOST_EMPTY:
                raise RecordError(file, f"more than {MOST_EMPTY:,} records are empty", len(checksums))
            offsets.append(position + AROUND + len(record))
            checksums.append(crc)
            waiting.append(record)
            size += len(record)
            if len(waiting) == TOGETHER or size > AT_ONCE:
                _collect(file, waiting, len(checksums), features)
                size = 0
        _collect(file, waiting, len(checksums), features)
        frames = Frames(np.array(offsets, np.int64), np.array(checksums, np.uint32))
        kinds = {name: "|".join(sorted(kinds)) for name, kinds in sorted(features.items())}
        return FileEntry(len(frames), len(data), hash_file(data), "", found, frames, kinds)


def _collect(file: str, waiting: list[bytes], end: int, features: dict[str, set[str]]) -> None:
    try:
        for name, kinds in find_schema(Buffer.of(waiting)).items():
            known = features.setdefault(name, set())
            known |= kinds
            if len(known) > 1:
                known.discard("nothing")
        if len(features) > MOST_FEATURES:
            reason = f"the file has more than {MOST_FEATURES:,} features, which no feeder could list"
            raise RecordError(file, reason, end - 1)
    except Malformed as error:
        raise RecordError(file, error.reason, end - len(waiting) + error.row) from None
    waiting.clear()


def hash_file(data: Any, algorithm: str = "sha256") -> str:
    """A hash of a file."""
    found = hashlib.new(algorithm, usedforsecurity=False)
    for begin in range(0, len(data), 1 << 24):
        found.update(data[begin : begin + (1 << 24)])
    return found.hexdigest()


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
            yield FileProblem(_place(folder), "missing", "nobody has indexed this folder")
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
    return files.find_strangers(paths, patterns, indexed)


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
        with files.open_bytes(files.local_copy(path)) as data:
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


# -- the verbs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Indexed:
    """What indexing did with one file."""

    file: str
    entry: FileEntry
    is_new: bool


def index_files(
    paths: Sequence[str],
    force: bool = False,
    compression: str | None = None,
    progress: Progress | None = None,
) -> Iterator[Indexed]:
    """Index every file that has not been indexed; a file that has changed is refused, unless forced.

    The metadata of a folder is written when all of its files have been read.
    """
    for folder, inside in by_folder(paths).items():
        known = {} if force and _is_unreadable(folder) else load_index(folder)
        gone = [name for name in known if not _exists(posixpath.join(folder, name))]
        if gone and not force:
            shown = listing(gone)
            raise DataChanged(f"{folder}: files that were indexed are gone: {shown}; {_how(folder)}")
        made: dict[str, FileEntry] = {}
        for path in inside:
            name = files.name_of(path)
            before = known.get(name)
            if before is not None and not force:
                for change in compare_file(path, before, True, progress):
                    raise DataChanged(f"{change}; {_how(folder)}")
            if before is None or force or before.frames is None:
                made[name] = examine_file(path, compression, progress)
            yield Indexed(path, made.get(name) or known[name], name in made)
        for name, entry in known.items():
            if entry.frames is None and name not in made and name not in gone:
                made[name] = examine_file(
                    posixpath.join(folder, name)
                )  # of another program, not asked for now
        if made or gone:
            merge_index(folder, made, gone, force)


def merge_index(
    folder: str, made: Mapping[str, FileEntry], gone: Collection[str] = (), force: bool = False
) -> None:
    """Add files to what is known of a folder: somebody may have indexed others of its files meanwhile."""
    with _alone(folder):
        known = {} if force and _is_unreadable(folder) else load_index(folder)
        kept = {name: entry for name, entry in known.items() if name not in gone and entry.frames is not None}
        save_index(folder, {**kept, **made})


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Let no other process on this machine write the metadata of a folder."""
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


def _how(folder: str) -> str:
    again = f"manyfit data index --force '{posixpath.join(folder, '*')}'"
    return f"put the old data back, or index it anew: {again}"


def find_entries(
    patterns: str | Sequence[str], generate: bool = False, compression: str | None = None
) -> dict[str, FileEntry]:
    """The files of a data set with what is known of them, after a look at their names and sizes.

    Raises if one was deleted, added or resized. With `generate`, what was never indexed is indexed now.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    paths = files.match_files(given)
    known = {folder: load_index(folder) for folder in by_folder(paths)}
    strange = find_unindexed(paths, given, known)
    if strange and len(strange) < len(paths):
        log.info("no files of records, and not read: %s", listing(strange))
        paths = [path for path in paths if path not in strange]
    missing = [folder for folder, entries in known.items() if not entries]
    fresh = [
        folder
        for folder, inside in by_folder(paths).items()
        if not any(files.name_of(path) in known[folder] for path in inside)
    ]
    if missing and not generate:
        raise NotIndexed(
            f"{missing[0]} has no {FILE}, by which changes of the data are found: write it with "
            f"manyfit data index '{posixpath.join(missing[0], '*')}', or set auto_generate_meta: true"
        )
    if generate and fresh:  # a file beside others that are known is one that was added
        log.warning("indexing files of %s, because nobody has yet", ", ".join(fresh))
        unknown = [path for path in paths if files.folder_of(path) in fresh]
        for _ in index_files(unknown, compression=compression):
            pass
        known |= {folder: load_index(folder) for folder in fresh}
    findings = list(verify_files(given, known=known))
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings[:10])
        more = f"\n  and {len(findings) - 10} more" if len(findings) > 10 else ""
        raise DataChanged(
            f"the data is not what was indexed:\n{lines}{more}\n{_how(files.folder_of(findings[0].file))}"
        )
    found = {path: known[files.folder_of(path)][files.name_of(path)] for path in paths}
    log.debug(
        "%d files of records: %s", len(found), listing([f"{p} ({e.records:,})" for p, e in found.items()])
    )
    for path, entry in found.items():
        if compression is not None and entry.digest and entry.compression != compression:
            with files.open_bytes(files.local_copy(path)) as data:
                files.check_compression(data[:16], compression, path)
    return found
