"""Locks on folders: one owner at a time, released by the operating system when the owner dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from manyfit.core.errors import FolderError, RunConflict
from manyfit.core.files import check_file

_held: list[TextIO] = []


def _let_go() -> None:
    """Close the lock files in a forked child, which may outlive its parent for a moment."""
    while _held:
        _held.pop().close()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Lock a folder, or raise an error that names its owner.

    The folder is created if necessary, but not its parents: a study may have been moved away with its trials.
    """
    folder.mkdir(exist_ok=True)
    with _open(folder / ".lock") as file:
        if not _acquire(file):
            file.seek(0)
            raise RunConflict(
                f"{folder} is in use by another process (pid {file.read().strip() or 'unknown'})"
            )
        if os.fstat(file.fileno()).st_nlink == 1:  # a hard link: the other file must not be changed
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        _held.append(file)
        try:
            yield
        finally:
            _held.remove(file)


def _open(path: Path) -> TextIO:
    """Open the lock file; raise if it is a link, which could point out of the folder."""
    check_file(path)
    if path.is_dir():
        raise FolderError(f"{path} is not a file, but a folder; remove it")
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FolderError(f"{path} is a link; remove it") from None
        raise


def _acquire(file: TextIO) -> bool:
    """Acquire the lock, with short retries: `is_owned` of another process holds it for a moment."""
    for pause in (0.05, 0.2, None):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if pause is not None:
                time.sleep(pause)
    return False


def is_owned(folder: Path) -> bool:
    """Return whether a process holds the folder now."""
    try:
        with os.fdopen(os.open(folder / ".lock", os.O_RDONLY | os.O_NONBLOCK), "r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file
        return False
    return False
