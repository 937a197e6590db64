"""Reading files that somebody may have prepared: a pipe in the place of a file must not hang a reader."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from manyfit.core.errors import FolderError


def check_file(path: Path) -> None:
    """Refuse a pipe, a socket or a device in the place of a file; nothing at all is no problem."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FolderError(f"{path} is not a file, but {_kind(mode)}; remove it")


def read_bytes(path: Path) -> bytes:
    """Read a whole file; whatever is not a file is refused at once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise FolderError(f"{path} is not a file, but {_kind(mode)}; remove it")
        try:
            return file.read()
        except MemoryError:
            size = os.fstat(descriptor).st_size
            raise FolderError(f"{path} is too large to be read: {size} bytes") from None


def read_text(path: Path) -> str:
    """Read a whole file as text; what is not UTF-8 is replaced."""
    return read_bytes(path).decode("utf-8", "replace")


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there; what else lies there, a link for one, is refused."""
    if path.is_symlink():
        raise FolderError(f"{path} is a link, which would lead elsewhere; remove it")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise FolderError(f"{path} is not a folder, but {_kind(path.stat().st_mode)}; remove it") from None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
             stat.S_IFREG: "a file"}  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "a device")
