"""Record files: file patterns, local and remote paths, local copies of remote files."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.store import durable

PIECE: Final = 1 << 18
"""The number of bytes that are read or decompressed at a time."""
IN_MEMORY: Final = 1 << 26
"""The size up to which a decompressed data set is kept in memory; a larger one is cached in files."""
MAGIC: Final = "*?["


def cache_root() -> Path:
    """Return the folder of cached copies: MANYFIT_CACHE, else the user's cache folder."""
    given = os.environ.get("MANYFIT_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "manyfit"


def is_remote(path: str) -> bool:
    """Return whether a path is remote, such as s3://bucket/data."""
    return "://" in path


def match_files(patterns: str | Sequence[str]) -> list[str]:
    """Return the files that match some patterns, without duplicates, sorted by name within each pattern.

    A folder stands for the files in it. Files that begin with `_` or `.` are not data.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not any(given):
        raise UsageError("file_patterns is empty: name the files to read")
    chosen: dict[str, None] = {}
    for pattern in given:
        here = find_files(pattern)
        if not here and len(given) > 1 and not is_data(pattern):
            continue  # a metadata file among the names to which the shell expanded a pattern
        if not here:
            raise UsageError(_explain_no_match(pattern))
        chosen |= dict.fromkeys(here)
    return list(chosen)


def canonical_pattern(pattern: str) -> str:
    """Return a pattern in the form of the paths that it matches: absolute, or with its protocol."""
    if not is_remote(pattern):
        return os.path.abspath(os.path.expanduser(pattern))  # noqa: PTH100, PTH111 - a pattern is not a path
    fs, path = store_of(pattern)
    return str(fs.unstrip_protocol(path))


def find_files(pattern: str) -> list[str]:
    """Return the files that match one pattern, sorted by name."""
    return _remote(pattern) if is_remote(pattern) else _local(pattern)


def _local(pattern: str) -> list[str]:
    pattern = canonical_pattern(pattern)
    if os.path.isdir(pattern):  # noqa: PTH112
        pattern = os.path.join(glob.escape(pattern), "*")  # noqa: PTH118
    is_pattern = any(mark in pattern for mark in MAGIC) and not Path(pattern).is_file()
    found = glob.glob(pattern, recursive=True) if is_pattern else [pattern]  # noqa: PTH207
    if is_pattern and not found and Path(folder_of(pattern)).is_dir():  # wildcards in the folder's name
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
    """Return the file system of a remote path, and the path in it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{address}: {error}") from error
    return fs, path


def is_data(path: str) -> bool:
    """Return whether a file can hold records: names that begin with `_` or `.` are metadata."""
    return not posixpath.basename(path).startswith(("_", "."))


def _explain_no_match(pattern: str) -> str:
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
    """Return the folder of a file, local or remote."""
    return posixpath.dirname(file)


def unescape(pattern: str) -> str:
    """Return a pattern with escaped wildcards as a path."""
    return re.sub(r"\[([*?\[])\]", r"\1", pattern)


def name_of(file: str) -> str:
    """Return the name of a file within its folder."""
    return posixpath.basename(file)


def size_of(file: str) -> int:
    """Return the size of a file, without reading it."""
    if is_remote(file):
        fs, path = store_of(file)
        return int(fs.size(path))
    return Path(file).stat().st_size


def local_copy(file: str) -> Path:
    """Return a local file itself, or a local copy of a remote one, made once for each version of the file."""
    if not is_remote(file):
        return Path(file)
    fs, path = store_of(file)
    try:
        info = fs.info(path)
        marks = ("size", "ETag", "etag", "mtime", "LastModified", "created")
        state = [file, *(str(info.get(mark)) for mark in marks)]
        kept = cache_root() / "copies" / hashlib.sha256("\0".join(state).encode()).hexdigest()
        if not kept.is_file() or kept.stat().st_size != info["size"]:
            with open_new(kept) as target, fs.open(path, "rb") as source:
                while piece := source.read(PIECE):
                    target.write(piece)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    return kept


@contextlib.contextmanager
def open_new(final: Path) -> Iterator[Any]:
    """Open a new file that appears under its name once it is complete."""
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
