"""Durable, atomic writes: after a crash a file is complete or absent. Text is written without secrets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Final

from manyfit.core.errors import UsageError
from manyfit.core.redaction import clean_file

STAGED: Final = ".new-"
"""Name prefix of a folder under construction, followed by the process ID."""

BUILT: Final = (".exported.tmp", ".saved_model.tmp", ".best.tmp")
"""Folders under construction with fixed names."""

before: Callable[[str, Path], None] | None = None
"""Called before every disk operation: `manyfit check --resume` ends the process at one of them."""


def _about_to(operation: str, path: Path) -> None:
    if before is not None:
        before(operation, path)


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file atomically: write a temporary file beside it, flush it to disk, then rename it."""
    write_all({path: data})


def write_all(files: Mapping[Path, bytes | str]) -> None:
    """Replace several files, each one atomically; every folder is flushed once."""
    folders = {path.parent for path in files}
    for folder in folders:
        if not folder.is_dir():
            # Not its parents: a run that is moved away while it trains must not be created here again.
            folder.mkdir(exist_ok=True)
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        write_new_all({temporary[path]: data for path, data in files.items()})
        for path in files:
            _about_to("replace", path)
            temporary[path].replace(path)
    except BaseException:
        for left in temporary.values():
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
        raise
    for folder in folders:
        sync_folder(folder)


def make_place(folder: Path) -> None:
    """Create the parents of a folder."""
    for above in (folder, *folder.parents):
        if above.is_file():
            raise UsageError(f"the folder {folder} cannot be created: {above} is a file")
    folder.parent.mkdir(parents=True, exist_ok=True)


def tidy(folder: Path) -> None:
    """Remove what killed processes have left behind; the caller must own the folder.

    A folder that was hidden to be replaced, and never was, is restored. Checkpoints are handled elsewhere.
    """
    inner = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    for place in (folder, *(entry for entry in inner if entry.name not in ("checkpoints", "trials"))):
        if place.name.startswith("."):
            continue
        for left in place.glob(".*"):
            written = re.fullmatch(r"\..+\.(\d+)\.tmp", left.name)
            hidden = re.fullmatch(r"\.(.+)\.old", left.name)
            if written is not None:
                if not _is_alive(int(written[1])):
                    left.unlink(missing_ok=True)
            elif hidden is not None and not os.path.lexists(place / hidden[1]):
                left.rename(place / hidden[1])
            elif hidden is not None or left.name in BUILT or left.name.startswith(".tmp-"):
                discard(left)


def make_own(path: Path) -> None:
    """Break the hard links of a file that is written in place: its other names keep their content."""
    try:
        if path.stat().st_nlink == 1:
            return
    except FileNotFoundError:
        return
    write_file(path, path.read_bytes())


def write_new(path: Path, data: bytes | str) -> None:
    """Write a file that is not visible to readers yet, and flush it to disk."""
    write_new_all({path: data})


def write_new_all(files: Mapping[Path, bytes | str]) -> None:
    """Write files that are not visible to readers yet, and flush them to disk together, which is faster."""
    with contextlib.ExitStack() as stack:
        written: dict[Path, FileIO] = {}
        for path, data in files.items():
            _about_to("open", path)
            file = written[path] = stack.enter_context(FileIO(_new(path), "wb"))
            _about_to("write", path)
            rest = memoryview(clean_file(data).encode() if isinstance(data, str) else data)
            while rest:
                rest = rest[file.write(rest) :]
            write_out(file.fileno())
        for path, file in written.items():
            _about_to("sync", path)
            os.fsync(file.fileno())


def _new(path: Path) -> int:
    """Create a new file; whatever exists there, such as a link, is removed and not written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, 0o666)


def write_out(descriptor: int) -> None:
    """Start to flush a file to disk without waiting: flushing several files together is faster."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def commit_folder(temporary: Path, final: Path) -> None:
    """Make a finished folder visible under its final name, atomically.

    An existing folder is first hidden under another name; `tidy` restores it if a crash follows.
    """
    sync_folder(temporary)
    old = final.with_name(f".{final.name}.old")
    if os.path.lexists(final):
        shutil.rmtree(old, ignore_errors=True)
        _about_to("hide", final)
        final.rename(old)
    _about_to("rename", final)
    temporary.rename(final)
    sync_folder(final.parent)
    if os.path.lexists(old):
        discard(old)


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Create a temporary folder inside of another; it is removed afterwards.

    Folders that killed processes have left behind are removed, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{STAGED}*"):
        number = left.name.removeprefix(STAGED).partition("-")[0]
        if number.isdecimal() and not _is_alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(dir=folder, prefix=f"{STAGED}{os.getpid()}-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # owned by another user
    try:
        # A zombie is listed until its parent reaps it, which may take long in a container.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def discard(path: Path) -> None:
    """Remove a folder so that a partial one is never visible under its name."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    if not path.name.startswith("."):
        hidden = path.with_name(f".{path.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        _about_to("hide", path)
        path.rename(hidden)
        path = hidden
    _about_to("remove", path)
    shutil.rmtree(path, ignore_errors=True)


def remove_file(path: Path) -> None:
    """Remove a file for good; it may be missing."""
    _about_to("remove", path)
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    _about_to("sync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
