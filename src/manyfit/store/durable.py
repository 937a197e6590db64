"""Every durable write goes through here: whole or not there, also after a crash; text without secrets."""

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
"""How a folder is called that is not ready yet; the number of its process follows."""

BUILT: Final = (".exported.tmp", ".saved_model.tmp", ".best.tmp")
"""Folders in which something is made ready that always has the same name."""

before: Callable[[str, Path], None] | None = None
"""Called before every operation on the disk: `manyfit check --resume` ends the process at one of them."""


def _about_to(operation: str, path: Path) -> None:
    if before is not None:
        before(operation, path)


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file by new content: a temporary beside it, flushed to disk, then one rename."""
    write_all({path: data})


def write_all(files: Mapping[Path, bytes | str]) -> None:
    """Replace several files of one folder; each is whole or as it was, and the folder is flushed once."""
    folders = {path.parent for path in files}
    for folder in folders:
        if not folder.is_dir():
            # Not the folders above it: who moves a run away while it trains does not want another one here.
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
    """Make whatever lies above a folder, so that it can be made."""
    for above in (folder, *folder.parents):
        if above.is_file():
            raise UsageError(f"there cannot be a folder {folder}: {above} is a file")
    folder.parent.mkdir(parents=True, exist_ok=True)


def tidy(folder: Path) -> None:
    """Clear away what processes have left that were killed; whoever calls this owns the folder.

    What was hidden to be replaced, and never was, comes back. Checkpoints have a way of their own.
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
    """Make a file that is written in place one with a single name: what else has its content keeps it."""
    try:
        if path.stat().st_nlink == 1:
            return
    except FileNotFoundError:
        return
    write_file(path, path.read_bytes())


def write_new(path: Path, data: bytes | str) -> None:
    """Write a file that nobody looks at yet, and flush it to disk."""
    write_new_all({path: data})


def write_new_all(files: Mapping[Path, bytes | str]) -> None:
    """Write files that nobody looks at yet, and flush them to disk: together, which is quicker."""
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
    """Open a file that is new: what lies there, a link for one, is removed and not written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, 0o666)


def write_out(descriptor: int) -> None:
    """Begin to flush a file to disk, but do not wait: what is flushed together is flushed more quickly."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def commit_folder(temporary: Path, final: Path) -> None:
    """Make a finished folder visible under its name, all of it at once."""
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
    """A new folder inside of another, in which something is made ready; it is gone afterwards.

    What processes have left that were killed meanwhile is removed, too.
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
        return True  # of somebody else
    try:
        # One that has ended is listed until its parent asks for it; in a container that takes its time.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def discard(path: Path) -> None:
    """Remove a folder in such a way that a part of it is never seen under its name."""
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


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    _about_to("sync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
