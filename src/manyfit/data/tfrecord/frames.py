"""The frame around a record: its length, a checksum of that, the data, a checksum of that.

Both checksums are always looked at. What is read is either exactly what was written, or an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from manyfit.data.tfrecord.errors import RecordError

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
AROUND: Final = HEADER.size + FOOTER.size
"""Bytes of a frame that are not data."""
MOST: Final = 1 << 28
"""A record that is longer than this is an error, whatever its checksum says."""

Positions = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]

_crc: Any = google_crc32c.value


class Anywhere(Protocol):
    """Bytes that can be read anywhere."""

    def part(self, begin: int, end: int, /) -> bytes:
        """Those from one place to another; fewer where there are fewer."""
        ...


class Readable(Protocol):
    """Something that bytes are read from, one piece after the other."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        ...


def masked(data: bytes) -> int:
    """The checksum of a frame: CRC-32C, rotated and shifted, as the format wants it."""
    crc: int = _crc(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFF_FFFF


def framed(data: bytes) -> bytes:
    """A record with its frame.

    >>> len(framed(b"abc"))
    19
    """
    length = len(data).to_bytes(8, "little")
    return b"".join((length, FOOTER.pack(masked(length)), data, FOOTER.pack(masked(data))))


@dataclass(frozen=True, eq=False)
class Frames:
    """Where the records of a file lie, and the checksum of each."""

    offsets: Positions
    """Where each frame begins, and where the last one ends."""
    checksums: Checksums

    def __len__(self) -> int:
        return len(self.checksums)

    @property
    def size(self) -> int:
        """Bytes of all frames together."""
        return int(self.offsets[-1])


def records(stream: Readable, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Read a stream from its beginning: the place of each frame, the checksum and the data.

    Memory is bounded by what is really there: a length that lies is found out before anything is reserved.
    """
    position, number = 0, 0
    while True:
        header = stream.read(HEADER.size)
        if not header:
            return
        length = _header(header, name, number)
        data = stream.read(length)
        footer = stream.read(FOOTER.size) if len(data) == length else b""
        if len(data) < length or len(footer) < FOOTER.size:
            raise _cut(name, number)
        (wanted,) = FOOTER.unpack(footer)
        if masked(data) != wanted:
            raise _damaged(name, number)
        yield position, wanted, data
        position += AROUND + length
        number += 1


def read(data: Anywhere, frames: Frames, rows: npt.NDArray[np.int64], name: str) -> list[bytes]:
    """Read some records of a file, in any order, each as it was when the file was indexed."""
    found = []
    begins, ends = frames.offsets[rows].tolist(), frames.offsets[rows + 1].tolist()
    known = frames.checksums[rows].tolist()
    if len(rows) > 1 and (np.diff(rows) == 1).all():  # one piece of the file
        first = begins[0]
        piece = data.part(first, ends[-1])
        pieces = [piece[begin - first : end - first] for begin, end in zip(begins, ends, strict=True)]
    else:
        pieces = list(map(data.part, begins, ends))
    unpack, pack, crc_of = FOOTER.unpack, HEADER.unpack, _crc
    for i, (frame, begin, end, wanted) in enumerate(zip(pieces, begins, ends, known, strict=True)):
        record = frame[12:-4]
        crc = crc_of(record)
        crc = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFF_FFFF
        if crc != wanted or len(frame) != end - begin or unpack(frame[-4:])[0] != crc:
            raise _wrong(frame, end - begin, int(rows[i]), name)
        length, head = pack(frame[:12])
        if length != len(record) or head != masked(frame[:8]):
            raise _wrong(frame, end - begin, int(rows[i]), name)
        found.append(record)
    return found


def _header(header: bytes, name: str, number: int) -> int:
    if len(header) < HEADER.size:
        raise _cut(name, number)
    length, crc = HEADER.unpack(header)
    if masked(header[:8]) != crc:
        raise RecordError(name, "the length of the record is damaged", number)
    if length > MOST:
        raise RecordError(name, f"a record of {length:,} bytes, but at most {MOST:,} are read", number)
    return int(length)


def _wrong(frame: bytes, size: int, number: int, name: str) -> RecordError:
    """Why a frame is not what the index says."""
    if len(frame) < size:
        return _cut(name, number)
    try:
        length = _header(frame[: HEADER.size], name, number)
    except RecordError as error:
        return error
    if length != size - AROUND or masked(frame[12:-4]) == FOOTER.unpack(frame[-4:])[0]:
        return RecordError(name, "this is another record than the one that was indexed", number, "changed")
    return _damaged(name, number)


def _cut(name: str, number: int) -> RecordError:
    return RecordError(name, "the file ends inside this record: it was cut short", number, "truncated")


def _damaged(name: str, number: int) -> RecordError:
    return RecordError(name, "the data of the record is damaged (its checksum is wrong)", number)
