"""Every durable write goes through here: whole or not there, also after a crash."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def write(path: Path, data: bytes | str) -> None:
    """Replace a file by new content: a temporary beside it, flushed to disk, then one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def commit_folder(temporary: Path, final: Path) -> None:
    """Make a finished folder visible under its name, all of it at once."""
    sync_folder(temporary)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    sync_folder(final.parent)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
