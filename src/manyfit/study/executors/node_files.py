"""The files of a project on the node of a cluster: unpacked once, and shared by the workers of the node."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError

KEPT: Final = 7 * 24 * 3600.0
"""Seconds for which unpacked archives are kept that nobody uses."""


@dataclass(frozen=True)
class Delivered:
    """An archive for a node, or a file that the node has itself."""

    name: str
    """Where it belongs, relative to the project; empty for the project itself."""
    digest: str
    chunks: Any = ()
    """References to the parts of the archive in the object store."""
    link: str = ""
    """The path of a file that the node sees itself."""


def measure(path: Path) -> tuple[int, int]:
    """Return the size of a file or folder in bytes, and when it was last changed."""
    if path.is_file():
        found = path.stat()
        return found.st_size, found.st_mtime_ns
    sizes, times = [0], [path.stat().st_mtime_ns]
    for each in path.rglob("*"):
        if each.is_file():
            sizes.append(each.stat().st_size)
            times.append(each.stat().st_mtime_ns)
    return sum(sizes), max(times)


def same_file(path: Path, size: int, changed: int) -> bool:
    """Return whether a file or folder is here, too."""
    try:
        return path.exists() and measure(path) == (size, changed)
    except OSError:
        return False


class NodeFiles:
    """The files of studies on one node, shared by its workers, by their digests."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir()) / f"manyfit-{os.getuid()}"
        self._locks: dict[Path, int] = {}
        self._own: dict[Path, int] = {}
        """Folders of this worker alone, with their locks."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        if self._root.stat().st_uid != os.getuid():
            raise FolderError(f"{self._root} belongs to another user")
        self._tidy()

    def make_folder(self, name: str) -> Path:
        """Return a new folder of this worker, which is removed when the worker ends, or by a later one."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._root))
        self._own[folder] = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._own[folder], fcntl.LOCK_EX)
        return folder

    def _tidy(self) -> None:
        """Remove what workers left behind that were killed."""
        for folder in [path for path in self._root.iterdir() if path.is_dir()]:
            with contextlib.suppress(OSError):
                if "-" not in folder.name and time.time() - folder.stat().st_mtime < KEPT:
                    continue  # the contents of an archive, which others may want again
                lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def unpack(self, files: Sequence[Delivered], fetch: Callable[[Any], bytes] | None = None) -> Path:
        """Unpack archives that are not here yet; return the project folder, which links to the data."""
        fetch = fetch or fetch_object
        code, *others = files
        places = [Path(each.link) if each.link else self._place(each, fetch) for each in others]
        project = self.make_folder("project")
        shutil.copytree(self._place(code, fetch), project, dirs_exist_ok=True)
        for each, place in zip(others, places, strict=True):
            if each.name:
                link = project / each.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(place if each.link else place / Path(each.name).name)
        return project

    def _place(self, each: Delivered, fetch: Callable[[Any], bytes]) -> Path:
        """Return the folder with the contents of an archive; workers of a node wait for each other."""
        place = self._root / each.digest
        lock = os.open(self._root / f"{each.digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            temporary = self.make_folder("unpacking")
            stream = _Joined(fetch(chunk) for chunk in each.chunks)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(temporary, filter="data")
            temporary.rename(place)
            os.close(self._own.pop(temporary))
        fcntl.flock(lock, fcntl.LOCK_SH)  # held as long as this worker may read it
        os.utime(place)
        self._locks[place] = lock
        return place

    def remove(self) -> None:
        """Remove the files that no other worker of this node uses."""
        for folder, lock in self._own.items():
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        self._own.clear()
        for place, lock in self._locks.items():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
                (self._root / f"{place.name}.lock").unlink(missing_ok=True)
            os.close(lock)
        self._locks.clear()
        with contextlib.suppress(OSError):
            self._root.rmdir()


class _Joined(io.RawIOBase):
    """A file that is read from parts, one after another."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._open = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        found = bytearray()
        while size < 0 or len(found) < size:
            if not self._open:
                self._open = memoryview(next(self._parts, b""))
                if not self._open:
                    break
            end = len(self._open) if size < 0 else size - len(found)
            found += self._open[:end]
            self._open = self._open[end:]
        return bytes(found)


def fetch_object(reference: Any) -> bytes:
    """Return an object of Ray's object store."""
    import ray

    found: bytes = ray.get(reference)
    return found
