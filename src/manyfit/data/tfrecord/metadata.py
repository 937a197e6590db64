"""The index of a folder of record files, `_tfrecord_metadata.json`.

For every file: the number of records, the size, a digest, the position and checksum of each record, and the
features. The index provides random access and detects changes of the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.data.tfrecord import detection, files, streams
from manyfit.data.tfrecord.errors import DataChanged, RecordError
from manyfit.data.tfrecord.frames import AROUND, Frames, records
from manyfit.data.tfrecord.wire import Buffer, Malformed, find_schema
from manyfit.store import durable

FILE: Final = "_tfrecord_metadata.json"
VERSION: Final = 2
TOGETHER: Final = 4096
"""The largest number of records whose features are examined at once."""
AT_ONCE: Final = 1 << 24
"""The approximate limit of the bytes that are examined at once."""
DENSE: Final = 1100
"""An upper limit of the compression ratio of gzip and zlib."""
MOST_FEATURES: Final = 1 << 16
MOST_EMPTY: Final = 1 << 16
"""The largest number of empty records in a file."""
LARGEST: Final = 1 << 30
"""The largest size of a metadata file in bytes."""
Progress = Callable[[int], None]


@dataclass(frozen=True)
class FileEntry:
    """The index entry of one file."""

    records: int
    size: int
    digest: str = ""
    """The SHA-256 of the file as stored (compressed)."""
    md5: str = ""
    """The MD5 of a file that another program indexed."""
    compression: str = ""
    frames: Frames | None = None
    features: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the entry as JSON data.

        `offsets` are stored as frame lengths, which compress better than positions.
        """
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
        """Create an entry from JSON data, written by manyfit or by another program."""
        if "md5_hash" in found:
            return FileEntry(
                _count(found["total_records"]), _count(found["file_size"]), md5=str(found["md5_hash"])
            )
        count, size = _count(found["records"]), _count(found["size"])
        compression, digest = found["compression"], str(found["sha256"])
        if compression not in ("", "gzip", "zlib"):
            raise ValueError(f"unknown compression {compression!r}")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("invalid digest")
        if count * AROUND > size * (DENSE if compression else 1):
            raise ValueError("more records than fit into the file")
        lengths = np.frombuffer(_unpack(found["offsets"], 8 * count), "<i8").astype(np.int64)
        checksums = np.frombuffer(_unpack(found["checksums"], 4 * count), "<u4").astype(np.uint32)
        most = size * DENSE if compression else size
        if ((lengths < AROUND) | (lengths > most)).any() or (not compression and int(lengths.sum()) != size):
            raise ValueError("the positions of the records do not match the size of the file")
        frames = Frames(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), checksums)
        features = {str(name): str(kind) for name, kind in found["features"].items()}
        return FileEntry(count, size, digest, "", compression, frames, features)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _pack(array: Any) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 6)).decode()


def _unpack(text: Any, size: int) -> bytes:
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text, validate=True), size + 1)
    if len(data) != size:
        raise ValueError("the length of a list is not the number of records")
    return data


def load_index(folder: str) -> dict[str, FileEntry]:
    """Return the index entries of the files in a folder; none if it was never indexed."""
    text = _read(folder)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        if found["version"] not in (1, VERSION):
            raise ValueError(f"unknown version {found['version']!r}")
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
            f"{index_path(folder)} cannot be read ({reason}); if the data is correct, index it again: "
            f"manyfit data index --force '{posixpath.join(folder, '*')}'"
        ) from error


def index_path(folder: str) -> str:
    """Return the path of the index of a folder."""
    return posixpath.join(folder, FILE)


def _read(folder: str) -> bytes | None:
    try:
        if files.is_remote(folder):
            fs, path = files.store_of(index_path(folder))
            return bytes(fs.cat_file(path)) if fs.isfile(path) else None
        place = Path(index_path(folder))
        if not place.is_file():
            return None
        if place.stat().st_size > LARGEST:
            raise DataChanged(f"{place} is too large to be metadata")
        return place.read_bytes()
    except OSError as error:
        raise UsageError(f"{index_path(folder)}: {error.strerror or error}") from error


def save_index(folder: str, entries: Mapping[str, FileEntry]) -> None:
    """Write the index of a folder atomically."""
    document = {"version": VERSION, "files": {name: entries[name].plain() for name in sorted(entries)}}
    text = json.dumps(document, indent=1) + "\n"
    if files.is_remote(folder):
        fs, path = files.store_of(index_path(folder))
        fs.pipe_file(path, text.encode())
    else:
        durable.write_file(Path(index_path(folder)), text)


def examine_file(file: str, compression: str | None = None, progress: Progress | None = None) -> FileEntry:
    """Read a whole file, check every record, and return its index entry."""
    with streams.open_bytes(files.local_copy(file)) as data:
        found = detection.check_compression(data[:16], compression, file)
        offsets, checksums, features = [0], list[int](), dict[str, set[str]]()
        waiting: list[bytes] = []
        size = empty = 0
        for position, crc, record in records(streams.stream_of(data, found, file, progress), file):
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
            reason = f"the file has more than {MOST_FEATURES:,} features"
            raise RecordError(file, reason, end - 1)
    except Malformed as error:
        raise RecordError(file, error.reason, end - len(waiting) + error.row) from None
    waiting.clear()


def hash_file(data: Any, algorithm: str = "sha256") -> str:
    """Return the hash of a file."""
    found = hashlib.new(algorithm, usedforsecurity=False)
    for begin in range(0, len(data), 1 << 24):
        found.update(data[begin : begin + (1 << 24)])
    return found.hexdigest()
