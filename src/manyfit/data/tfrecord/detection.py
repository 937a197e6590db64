"""Detection of record files and of their compression, by their first bytes."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from manyfit.data.tfrecord.errors import RecordError
from manyfit.data.tfrecord.files import PIECE, canonical_pattern, is_remote, name_of, store_of
from manyfit.data.tfrecord.frames import HEADER, mask_checksum
from manyfit.data.tfrecord.streams import WBITS, open_bytes

Compression: TypeAlias = Literal["", "gzip", "zlib"]
RECORDS: Final = (".tfrecord", ".tfrecords", ".tfr")
"""Common suffixes of record files."""
COMPRESSED: Final = re.compile(r"\.(gz|gzip|zlib|z)$")
"""Suffixes that may follow them."""


def compression_of(head: bytes) -> Compression | None:
    """Return the compression of a file by its first bytes; None if it is not a record file."""
    if not head:
        return ""
    if len(head) >= HEADER.size:
        _, crc = HEADER.unpack(head[: HEADER.size])
        if mask_checksum(head[:8]) == crc:
            return ""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return None


def find_strangers(paths: Sequence[str], patterns: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Return matched files that are not record files, such as labels.txt or a README.

    A file that is the only pattern, or that is `known`, is never returned. Raises for a file that is named
    like a record file: it is damaged.
    """
    asked = {canonical_pattern(patterns[0])} if len(patterns) == 1 else set()
    found = [path for path in paths if path not in asked and path not in known and not holds_records(path)]
    shards = {_shape(path): path for path in paths if path not in found}
    for path in found:
        like = shards.get(_shape(path))
        if like is not None or COMPRESSED.sub("", path).endswith(RECORDS):
            told = f"like {name_of(like)}, which does" if like is not None else "like a record file"
            raise RecordError(path, f"this file holds no records, but is named {told}: it is damaged", 0)
    return found


def _shape(file: str) -> str:
    """Return the name of a file with all numbers replaced by 0."""
    return re.sub(r"\d+", "0", name_of(file))


def holds_records(file: str) -> bool:
    """Return whether a file begins like a record file."""
    if is_remote(file):
        fs, path = store_of(file)
        head = bytes(fs.cat_file(path, 0, PIECE))
    else:
        with open_bytes(Path(file)) as data:
            head = data[:PIECE]
    found = compression_of(head)
    if not found:
        return found is not None
    try:
        inside = zlib.decompressobj(WBITS[found]).decompress(head, HEADER.size)
    except zlib.error:
        return not _is_text(head)  # a damaged record file, which the reader reports
    return compression_of(inside) == "" or (len(inside) < HEADER.size and not _is_text(inside))


def _is_text(head: bytes) -> bool:
    """Return whether bytes are the beginning of a text, which can look like zlib data."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(letter.isprintable() or letter.isspace() for letter in text)


def check_compression(head: bytes, wanted: str | None, name: str) -> Compression:
    """Return the compression of a file; raise if it is not the one that is expected."""
    found = compression_of(head)
    if wanted is not None and found != wanted:
        said = f"compressed with {wanted}" if wanted else "uncompressed"
        real = {None: "is not", "": "is uncompressed", "gzip": "is gzip", "zlib": "is zlib"}[found]
        raise RecordError(name, f"the file should be {said}, but {real}", 0, "wrongly compressed")
    if found is None:
        raise RecordError(name, "this is not a record file: the length of its first record is damaged", 0)
    return found
