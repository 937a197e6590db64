"""Safe reading of untrusted paths: a pipe in place of a file must not block the reader."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from manyfit.core.errors import FolderError


def check_file(path: Path) -> None:
    """Raise if a path is a pipe, a socket or a device; it may also not exist."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FolderError(f"{path} is not a file, but {_kind(mode)}; remove it")


def read_bytes(path: Path) -> bytes:
    """Read a whole file; raise at once if the path is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise FolderError(f"{path} is not a file, but {_kind(mode)}; remove it")
        try:
            return file.read()
        except MemoryError:
            size = os.fstat(descriptor).st_size
            raise FolderError(f"{path} is too large to read: {size} bytes") from None


def read_text(path: Path) -> str:
    """Read a whole file as text; invalid UTF-8 is replaced."""
    return read_bytes(path).decode("utf-8", "replace")


def make_folder(path: Path) -> None:
    """Create a folder unless it exists; raise if the path is anything else, such as a link."""
    if path.is_symlink():
        raise FolderError(f"{path} is a link to another place; remove it")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise FolderError(f"{path} is not a folder, but {_kind(path.stat().st_mode)}; remove it") from None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
             stat.S_IFREG: "a file"}  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "a device")
