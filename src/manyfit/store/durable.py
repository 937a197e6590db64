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
        write_new(temporary, data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, data: bytes | str) -> None:
    """Write a file that nobody looks at yet, and flush it to disk."""
    with path.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def commit_folder(temporary: Path, final: Path) -> None:
    """Make a finished folder visible under its name, all of it at once."""
    sync_folder(temporary)
    if final.exists() or final.is_symlink():
        discard(final)
    temporary.rename(final)
    sync_folder(final.parent)


def discard(path: Path) -> None:
    """Remove a folder in such a way that a part of it is never seen under its name."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.name.startswith("."):
        hidden = path.with_name(f".{path.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        path = hidden
    shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
