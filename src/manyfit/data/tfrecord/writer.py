"""Writers of records: one record, one file, or the names of a set of shards."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.data.tfrecord.frames import frame_record
from manyfit.store import durable

SUFFIX: Final = {"": "", "gzip": ".gz", "zlib": ".zz"}


def encode(row: Mapping[str, Any]) -> bytes:
    """Encode values by name as a `tf.train.Example`: text, bytes, integers or floats; single or several.

    >>> encode({"label": 3}).hex()
    '0a100a0e0a056c6162656c12051a030a0103'
    """
    entries = []
    for name, value in row.items():
        feature = _feature(name, value)
        key = name.encode()
        entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(feature)) + feature
        entries.append(b"\x0a" + _varint(len(entry)) + entry)
    body = b"".join(entries)
    return b"\x0a" + _varint(len(body)) + body


def _feature(name: str, value: Any) -> bytes:
    if value is None or (isinstance(value, list | tuple) and not value):
        return b""  # a feature without a kind, which is read as an empty list of any kind
    if isinstance(value, str | bytes):
        return _texts([value])
    if isinstance(value, list | tuple) and value and isinstance(value[0], str | bytes):
        if not all(isinstance(item, str | bytes) for item in value):
            raise UsageError(f"the feature {name!r} mixes text and other values")
        return _texts(value)
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise UsageError(f"the feature {name!r} cannot be written: {value!r:.60}")
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        packed, tag = flat.astype("<f4").tobytes(), b"\x12"
    elif array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UsageError(f"the feature {name!r} has a number that does not fit into int64")
    else:
        packed, tag = (
            b"".join(_varint(v & 0xFFFF_FFFF_FFFF_FFFF) for v in flat.astype(np.int64).tolist()),
            b"\x1a",
        )
    body = b"\x0a" + _varint(len(packed)) + packed if packed else b""
    return tag + _varint(len(body)) + body


def _texts(values: Sequence[str | bytes]) -> bytes:
    data = [value.encode() if isinstance(value, str) else value for value in values]
    body = b"".join(b"\x0a" + _varint(len(item)) + item for item in data)
    return b"\x0a" + _varint(len(body)) + body


_SMALL = [bytes([number]) for number in range(128)]


def _varint(value: int) -> bytes:
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class RecordWriter:
    """A writer of records to a file, which appears under its name once it is complete.

    >>> with RecordWriter(Path("train-00000-of-00001")) as file:    # doctest: +SKIP
    ...     file.write(encode({"label": 3}))
    """

    def __init__(self, path: Path, compression: str = "") -> None:
        self.path = path
        self.count = 0
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: Any = self._temporary.open("wb")
        self._deflate = zlib.compressobj(wbits={"gzip": 31, "zlib": 15}[compression]) if compression else None

    def write(self, record: bytes) -> None:
        """Write one record."""
        data = frame_record(record)
        self._file.write(self._deflate.compress(data) if self._deflate is not None else data)
        self.count += 1

    def close(self) -> None:
        """Finish the file."""
        if self._deflate is not None:
            self._file.write(self._deflate.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)
        durable.sync_folder(self.path.parent)

    def discard(self) -> None:
        """Delete the incomplete file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def write_records(path: Path, rows: Iterable[Mapping[str, Any]], compression: str = "") -> int:
    """Write rows as Examples to one file and return their number."""
    with RecordWriter(path, compression) as file:
        for row in rows:
            file.write(encode(row))
    return file.count


def shard_names(prefix: str, count: int, compression: str = "") -> list[str]:
    """Return the file names of the shards of a data set.

    >>> shard_names("train", 2)
    ['train-00000-of-00002', 'train-00001-of-00002']
    """
    return [f"{prefix}-{i:05d}-of-{count:05d}{SUFFIX[compression]}" for i in range(count)]
