"""Files of records: found by patterns, here or in a store; plain or compressed."""

from __future__ import annotations

import codecs
import contextlib
import glob
import hashlib
import itertools
import operator
import os
import posixpath
import re
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data.tfrecord.errors import RecordError
from manyfit.data.tfrecord.frames import HEADER, Readable, mask_checksum
from manyfit.store import durable

Compression: TypeAlias = Literal["", "gzip", "zlib"]
PIECE: Final = 1 << 18
"""Bytes that are read or unpacked at a time."""
IN_MEMORY: Final = 1 << 26
"""What is unpacked of a data set stays in memory up to this size; else it is kept in files."""
MAGIC: Final = "*?["
RECORDS: Final = (".tfrecord", ".tfrecords", ".tfr")
"""How names of such files may end."""
WBITS: Final = {"gzip": 31, "zlib": 15}


def cache_root() -> Path:
    """Where copies are kept that can be made again: MANYFIT_CACHE, else the user's own folder for that."""
    given = os.environ.get("MANYFIT_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "manyfit"


# -- which ----------------------------------------------------------------------------------------


def is_remote(path: str) -> bool:
    """Whether a path is an address of a store, such as s3://bucket/data."""
    return "://" in path


def match_files(patterns: str | Sequence[str]) -> list[str]:
    """The files that some patterns mean: those of each pattern in the order of their names, none twice.

    A folder means the files in it. What begins with `_` or `.` is not data.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not any(given):
        raise UsageError("file_patterns is empty: which files are to be read?")
    chosen: dict[str, None] = {}
    for pattern in given:
        here = find_files(pattern)
        if not here and len(given) > 1 and not is_data(pattern):
            continue  # the shell has expanded a pattern
        if not here:
            raise UsageError(_nothing(pattern))
        chosen |= dict.fromkeys(here)
    return list(chosen)


def canonical_pattern(pattern: str) -> str:
    """A pattern as the files that it matches are called."""
    if not is_remote(pattern):
        return os.path.abspath(os.path.expanduser(pattern))  # noqa: PTH100, PTH111 - a pattern is not a path
    fs, path = store_of(pattern)
    return str(fs.unstrip_protocol(path))


def find_files(pattern: str) -> list[str]:
    """The files that one pattern means, in the order of their names."""
    return _remote(pattern) if is_remote(pattern) else _local(pattern)


def _local(pattern: str) -> list[str]:
    pattern = canonical_pattern(pattern)
    if os.path.isdir(pattern):  # noqa: PTH112
        pattern = os.path.join(glob.escape(pattern), "*")  # noqa: PTH118
    is_pattern = any(mark in pattern for mark in MAGIC) and not Path(pattern).is_file()
    found = glob.glob(pattern, recursive=True) if is_pattern else [pattern]  # noqa: PTH207
    if is_pattern and not found and Path(folder_of(pattern)).is_dir():  # a folder with such signs in its name
        found = glob.glob(f"{glob.escape(folder_of(pattern))}/{name_of(pattern)}")  # noqa: PTH207
    return sorted(path for path in found if Path(path).is_file() and is_data(path))


def _remote(pattern: str) -> list[str]:
    fs, path = store_of(pattern)
    try:
        if fs.isdir(path):
            path = posixpath.join(path, "*")
        found = fs.glob(path) if any(mark in path for mark in MAGIC) else [path]
        return sorted(fs.unstrip_protocol(name) for name in found if is_data(name) and fs.isfile(name))
    except OSError as error:
        raise UsageError(f"{pattern}: {error.strerror or error}") from error


def store_of(address: str) -> tuple[Any, str]:
    """The store that an address names, and the path in it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{address}: {error}") from error
    return fs, path


def is_data(path: str) -> bool:
    """Whether a file can hold records: those that begin with `_` or `.` are about the others."""
    return not posixpath.basename(path).startswith(("_", "."))


def _nothing(pattern: str) -> str:
    folder = os.path.dirname(pattern) or "."  # noqa: PTH120
    if is_remote(pattern) or any(mark in folder for mark in MAGIC):
        return f"no file matches {pattern}"
    if not Path(folder).is_dir():
        return f"no file matches {pattern}: there is no folder {folder}"
    names = sorted(entry.name for entry in Path(folder).iterdir() if is_data(entry.name))
    best = nearest(os.path.basename(pattern), names)  # noqa: PTH119
    hint = f"; did you mean {best}?" if best else f"; there are {listing(names, 5)}" if names else ""
    return f"no file matches {pattern}{hint}"


def folder_of(file: str) -> str:
    """The folder, here or in a store, that a file lies in."""
    return posixpath.dirname(file)


def unescape(pattern: str) -> str:
    """A pattern in which some signs were taken literally, as a path."""
    return re.sub(r"\[([*?\[])\]", r"\1", pattern)


def name_of(file: str) -> str:
    """The name of a file within its folder."""
    return posixpath.basename(file)


def size_of(file: str) -> int:
    """How large a file is, without reading it."""
    if is_remote(file):
        fs, path = store_of(file)
        return int(fs.size(path))
    return Path(file).stat().st_size


# -- what is in them ------------------------------------------------------------------------------


def local_copy(file: str) -> Path:
    """The file itself, or a copy of what lies in a store; a copy is made once for each state of the file."""
    if not is_remote(file):
        return Path(file)
    fs, path = store_of(file)
    try:
        info = fs.info(path)
        marks = ("size", "ETag", "etag", "mtime", "LastModified", "created")
        state = [file, *(str(info.get(mark)) for mark in marks)]
        kept = cache_root() / "copies" / hashlib.sha256("\0".join(state).encode()).hexdigest()
        if not kept.is_file() or kept.stat().st_size != info["size"]:
            with _new(kept) as target, fs.open(path, "rb") as source:
                while piece := source.read(PIECE):
                    target.write(piece)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    return kept


@contextlib.contextmanager
def _new(final: Path) -> Iterator[Any]:
    """A file that is seen under its name once it is whole."""
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name[:32]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(final)
        durable.sync_folder(final.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Bytes:
    """The bytes of a file, read where they are asked for.

    Not mapped into memory: a file that somebody cuts short would end the process, and not only the read.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._size = os.fstat(self._file).st_size

    def __len__(self) -> int:
        return self._size

    def part(self, begin: int, end: int, /) -> bytes:
        """The bytes from one place to another."""
        found = os.pread(self._file, end - begin, begin)
        while len(found) < end - begin and (
            more := os.pread(self._file, end - begin - len(found), begin + len(found))
        ):
            found += more  # a large piece may come in several
        return found

    def parts(self, begins: Sequence[int], ends: Sequence[int], /) -> list[bytes]:
        """Several such pieces."""
        sizes = list(map(operator.sub, ends, begins))
        found = list(map(os.pread, itertools.repeat(self._file), sizes, begins))
        if list(map(len, found)) == sizes:
            return found
        return list(map(self.part, begins, ends))

    def __getitem__(self, part: slice, /) -> bytes:
        begin, end, _ = part.indices(self._size)
        return self.part(begin, max(begin, end))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[Bytes]:
    """The bytes of a file, while it is open."""
    data = Bytes(path)
    try:
        yield data
    finally:
        data.close()


class Sequential:
    """Reads bytes from their beginning on, in pieces that are larger than what is asked for."""

    def __init__(self, data: Any, seen: Callable[[int], None] | None = None) -> None:
        self._data = data
        self._piece = b""
        self._begin = 0
        self._at = 0
        self._seen = seen

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes."""
        inside = self._at - self._begin
        if inside + size > len(self._piece):
            self._piece, self._begin, inside = self._data[self._at : self._at + max(size, PIECE)], self._at, 0
            if self._seen is not None:
                self._seen(len(self._piece))
        found = self._piece[inside : inside + size]
        self._at += len(found)
        return found


class Inflated:
    """Unpacks what it reads, never more at once than was asked for."""

    def __init__(self, stream: Readable, compression: str, name: str) -> None:
        self._stream = stream
        self._wbits = WBITS[compression]
        self._inflate = zlib.decompressobj(self._wbits)
        self._rest = b""
        self._name = name
        self._what = f"the {compression} data is"
        self.done = 0

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
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
                    raise RecordError(self._name, f"{self._what} cut short", what="truncated")
            try:
                piece = self._inflate.decompress(self._rest, most)
            except zlib.error as error:
                raise RecordError(self._name, f"{self._what} damaged: {error}") from None
            self._rest = self._inflate.unconsumed_tail
            if piece:
                return piece


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


def stream_of(data: Any, compression: str, name: str, seen: Callable[[int], None] | None = None) -> Readable:
    """Read the records of a file from its beginning, unpacked."""
    plain = Sequential(data, seen)
    return Inflated(plain, compression, name) if compression else plain


def decompress(
    data: Any, compression: str, name: str, size: int, digest: str, in_memory: bool
) -> bytes | Path:
    """The bytes of a compressed file, which can be read anywhere: here, or in a file that is kept."""
    if in_memory:
        return b"".join(_read_limited(stream_of(data, compression, name), size, name))
    kept = cache_root() / "unpacked" / digest
    if not kept.is_file() or kept.stat().st_size != size:
        with _new(kept) as target:
            for piece in _read_limited(stream_of(data, compression, name), size, name):
                target.write(piece)
    return kept


def _read_limited(stream: Readable, size: int, name: str) -> Iterator[bytes]:
    """All of a stream, which must be as long as it was when it was indexed."""
    done = 0
    while piece := stream.read(PIECE):
        done += len(piece)
        if done > size:
            break
        yield piece
    if done != size:
        raise RecordError(name, f"unpacked it is not the {size:,} bytes that were indexed")
