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
"""How names of such files may end."""


def compression_of(head: bytes) -> Compression | None:
    """How a file is compressed, by its first bytes; None if they are those of no file of records."""
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
    """Files that a pattern has found and that hold no records, such as labels.txt, or a README.

    What was named alone is none, nor what is `known`. Raises for one that is called like those that hold
    records: it is damaged, and not something else.
    """
    asked = {canonical_pattern(patterns[0])} if len(patterns) == 1 else set()
    found = [path for path in paths if path not in asked and path not in known and not holds_records(path)]
    shards = {_shape(path): path for path in paths if path not in found}
    for path in found:
        like = shards.get(_shape(path))
        if like is not None or path.endswith(RECORDS):
            told = f"like {name_of(like)}, which does" if like is not None else "as files of records are"
            raise RecordError(path, f"this holds no records, but it is called {told}: it is damaged", 0)
    return found


def _shape(file: str) -> str:
    """A name in which all numbers are the same."""
    return re.sub(r"\d+", "0", name_of(file))


def holds_records(file: str) -> bool:
    """Whether a file begins as a file of records does."""
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
        return not _is_text(head)  # which is damaged, and that is to be said
    return compression_of(inside) == "" or (len(inside) < HEADER.size and not _is_text(inside))


def _is_text(head: bytes) -> bool:
    """Whether this is the beginning of a text: some of them look as if they were compressed."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and all(letter.isprintable() or letter.isspace() for letter in text)


def check_compression(head: bytes, wanted: str | None, name: str) -> Compression:
    """The compression of a file, as it is and as it was said to be."""
    found = compression_of(head)
    if wanted is not None and found != wanted:
        said = f"compressed with {wanted}" if wanted else "not compressed"
        real = {None: "is not", "": "is not compressed", "gzip": "is gzip", "zlib": "is zlib"}[found]
        raise RecordError(name, f"it was said to be {said}, but {real}", 0, "wrongly compressed")
    if found is None:
        raise RecordError(name, "this is not a file of records: the length of its first one is damaged", 0)
    return found
