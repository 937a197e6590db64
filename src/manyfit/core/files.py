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
        return file.read()


def read_text(path: Path) -> str:
    """Read a whole file as text; what is not UTF-8 is replaced."""
    return read_bytes(path).decode("utf-8", "replace")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")
