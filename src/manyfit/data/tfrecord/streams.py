"""Bytes of record files: random access, sequential reading, decompression."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from manyfit.data.tfrecord.errors import RecordError
from manyfit.data.tfrecord.files import PIECE, cache_root, open_new
from manyfit.data.tfrecord.frames import Readable

WBITS: Final = {"gzip": 31, "zlib": 15}


class Bytes:
    """The bytes of a file, with random access.

    Not memory-mapped: truncating a mapped file would kill the process instead of failing the read.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._file).st_size

    def __len__(self) -> int:
        return self._size

    def part(self, begin: int, end: int, /) -> bytes:
        """Return the bytes from `begin` to `end`."""
        found = os.pread(self._file, end - begin, begin)
        while len(found) < end - begin and (
            more := os.pread(self._file, end - begin - len(found), begin + len(found))
        ):
            found += more  # pread may return a large range in several parts
        return found

    def parts(self, begins: Sequence[int], ends: Sequence[int], /) -> list[bytes]:
        """Return several ranges of bytes."""
        sizes = list(map(operator.sub, ends, begins))
        found = list(map(os.pread, itertools.repeat(self._file), sizes, begins))
        if list(map(len, found)) == sizes:
            return found
        return list(map(self.part, begins, ends))

    def __getitem__(self, part: slice, /) -> bytes:
        begin, end, _ = part.indices(self._size)
        return self.part(begin, max(begin, end))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[Bytes]:
    """Open a file for random access."""
    data = Bytes(path)
    try:
        yield data
    finally:
        data.close()


class Sequential:
    """A sequential reader of bytes that reads in large pieces."""

    def __init__(self, data: Any, seen: Callable[[int], None] | None = None) -> None:
        self._data = data
        self._piece = b""
        self._begin = 0
        self._at = 0
        self._seen = seen

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        inside = self._at - self._begin
        if inside + size > len(self._piece):
            self._piece, self._begin, inside = self._data[self._at : self._at + max(size, PIECE)], self._at, 0
            if self._seen is not None:
                self._seen(len(self._piece))
        found = self._piece[inside : inside + size]
        self._at += len(found)
        return found


class Inflated:
    """A decompressing reader that never decompresses more at once than was requested."""

    def __init__(self, stream: Readable, compression: str, name: str) -> None:
        self._stream = stream
        self._wbits = WBITS[compression]
        self._inflate = zlib.decompressobj(self._wbits)
        self._rest = b""
        self._name = name
        self._what = f"the {compression} data is"
        self.done = 0

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        parts, missing = [], size
        while missing:
            piece = self._piece(min(missing, PIECE))
            if not piece:
                break
            parts.append(piece)
            missing -= len(piece)
        self.done += size - missing
        return b"".join(parts)

    def _piece(self, most: int) -> bytes:
        while True:
            if self._inflate.eof:
                self._rest = self._inflate.unused_data or self._stream.read(PIECE)
                if not self._rest:
                    return b""
                self._inflate = zlib.decompressobj(self._wbits)
            if not self._rest:
                self._rest = self._stream.read(PIECE)
                if not self._rest:
                    raise RecordError(self._name, f"{self._what} truncated", what="truncated")
            try:
                piece = self._inflate.decompress(self._rest, most)
            except zlib.error as error:
                raise RecordError(self._name, f"{self._what} damaged: {error}") from None
            self._rest = self._inflate.unconsumed_tail
            if piece:
                return piece


def stream_of(data: Any, compression: str, name: str, seen: Callable[[int], None] | None = None) -> Readable:
    """Return a stream of the decompressed bytes of a file, from the beginning."""
    plain = Sequential(data, seen)
    return Inflated(plain, compression, name) if compression else plain


def decompress(
    data: Any, compression: str, name: str, size: int, digest: str, in_memory: bool
) -> bytes | Path:
    """Return the decompressed bytes of a file, or the path of a cached file that holds them."""
    if in_memory:
        return b"".join(_read_limited(stream_of(data, compression, name), size, name))
    kept = cache_root() / "unpacked" / digest
    if not kept.is_file() or kept.stat().st_size != size:
        with open_new(kept) as target:
            for piece in _read_limited(stream_of(data, compression, name), size, name):
                target.write(piece)
    return kept


def _read_limited(stream: Readable, size: int, name: str) -> Iterator[bytes]:
    """Yield all of a stream; raise unless it is as long as it was when it was indexed."""
    done = 0
    while piece := stream.read(PIECE):
        done += len(piece)
        if done > size:
            break
        yield piece
    if done != size:
        raise RecordError(name, f"its decompressed size is not the {size:,} bytes that were indexed")
