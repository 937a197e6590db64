"""The framing of records: length, checksum of the length, data, checksum of the data.

Both checksums are always verified: a read returns exactly what was written, or raises an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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
"""The largest length of a record in bytes; a longer one is an error, even with a valid checksum."""

Positions = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]

_crc: Any = google_crc32c.value


class Readable(Protocol):
    """A stream of bytes that is read sequentially."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        ...


def mask_checksum(data: bytes) -> int:
    """Return the checksum of a frame: CRC-32C, rotated and offset, as the format requires."""
    crc: int = _crc(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFF_FFFF


def frame_record(data: bytes) -> bytes:
    """Return a record with its frame.

    >>> len(frame_record(b"abc"))
    19
    """
    length = len(data).to_bytes(8, "little")
    return b"".join((length, FOOTER.pack(mask_checksum(length)), data, FOOTER.pack(mask_checksum(data))))


@dataclass(frozen=True, eq=False)
class Frames:
    """The positions and checksums of the records in a file."""

    offsets: Positions
    """The start of each frame, and the end of the last one."""
    checksums: Checksums

    def __len__(self) -> int:
        return len(self.checksums)

    @property
    def size(self) -> int:
        """The number of bytes of all frames."""
        return int(self.offsets[-1])


def records(stream: Readable, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Read a stream from the beginning; yield the position, checksum and data of each record.

    Memory use is bounded by the actual file size: a wrong length is detected before memory is allocated.
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
            raise _truncation_error(name, number)
        (wanted,) = FOOTER.unpack(footer)
        if mask_checksum(data) != wanted:
            raise _damage_error(name, number)
        yield position, wanted, data
        position += AROUND + length
        number += 1


def first_wrong(data: bytes, starts: Positions, ends: Positions, known: Checksums) -> int | None:
    """Return the first of some frames that differs from the index in length, data or a checksum, or None.

    Only the checksum of the data is computed frame by frame; all other comparisons are vectorized.
    """
    view = np.frombuffer(data, np.uint8)
    heads = view[starts[:, None] + np.arange(HEADER.size)]
    feet = view[ends[:, None] + np.arange(-FOOTER.size, 0)]
    lengths = ends - starts - AROUND
    good = heads[:, :8].copy().view("<u8")[:, 0] == lengths.astype(np.uint64)
    good &= heads[:, 8:].copy().view("<u4")[:, 0] == _mask_checksums(_crc_of_lengths(lengths))
    good &= feet.view("<u4")[:, 0] == known
    begins, stops = (starts + HEADER.size).tolist(), (ends - FOOTER.size).tolist()
    records = [data[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
    good &= _mask_checksums(np.fromiter(map(_crc, records), np.uint64, len(records))) == known
    return None if good.all() else int(np.argmin(good))


def _mask_checksums(crc: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the mask of `mask_checksum` to an array of CRCs."""
    turned = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return (turned + np.uint64(0xA282EAD8)) & np.uint64(0xFFFF_FFFF)


def _crc_of_lengths(lengths: Positions) -> npt.NDArray[np.uint64]:
    """Return the CRCs of the eight bytes of each length. A CRC is linear: each byte contributes its part."""
    tables, crc = _tables(), np.full(len(lengths), _crc(bytes(8)), np.uint64)
    for place, table in enumerate(tables):
        crc ^= table[(lengths >> 8 * place) & 0xFF]
    return crc


@cache
def _tables() -> list[npt.NDArray[np.uint64]]:
    """Return the contribution of each byte of a length to its CRC; a record has less than 1 << 32 bytes."""
    none = _crc(bytes(8))

    def table(place: int) -> npt.NDArray[np.uint64]:
        lengths = ((byte << 8 * place).to_bytes(8, "little") for byte in range(256))
        return np.fromiter((_crc(length) ^ none for length in lengths), np.uint64, 256)

    return [table(place) for place in range(4)]


def _header(header: bytes, name: str, number: int) -> int:
    if len(header) < HEADER.size:
        raise _truncation_error(name, number)
    length, crc = HEADER.unpack(header)
    if mask_checksum(header[:8]) != crc:
        raise RecordError(name, "the length of the record is damaged", number)
    if length > MOST:
        raise RecordError(name, f"the record has {length:,} bytes, but the limit is {MOST:,}", number)
    return int(length)


def why(frame: bytes, size: int, number: int, name: str) -> RecordError:
    """Return the error that explains why a frame differs from the index."""
    if len(frame) < size:
        return _truncation_error(name, number)
    try:
        length = _header(frame[: HEADER.size], name, number)
    except RecordError as error:
        return error
    if length != size - AROUND or mask_checksum(frame[12:-4]) == FOOTER.unpack(frame[-4:])[0]:
        return RecordError(name, "this is not the record that was indexed", number, "changed")
    return _damage_error(name, number)


def _truncation_error(name: str, number: int) -> RecordError:
    return RecordError(name, "the file ends inside this record: it was truncated", number, "truncated")


def _damage_error(name: str, number: int) -> RecordError:
    return RecordError(name, "the data of the record is damaged (its checksum is wrong)", number)
