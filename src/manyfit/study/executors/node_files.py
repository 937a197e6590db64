"""The files of a project on the node of a cluster: unpacked once, and shared by the workers of the node."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError

KEPT: Final = 7 * 24 * 3600.0
"""Seconds for which unpacked archives are kept that nobody uses, after a worker was killed."""
DIGITS: Final = 32
"""Characters in the digest of an archive."""
ROWS: Final = "rows.arrow"
"""The name of a file with prepared rows, in a folder named after its contents."""
MADE: Final = ".made"
"""Marks prepared rows that were made on the node: they are kept for the studies that follow."""


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
    layout: str | None = None
    """The folder of prepared data in it, whose rows are sent when they are read."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The files with these rows, and their keys."""


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
    """The files of studies on one node, shared by its workers, by their digests.

    A folder belongs to the workers that hold its lock. All changes are made under the lock of the root.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or default_root()
        self._archives: dict[Path, int] = {}
        """The archives that this worker reads, with their locks."""
        self._own: dict[Path, int] = {}
        """Folders of this worker alone, with their locks."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        found = self._root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise FolderError(f"{self._root} is not a folder that only this user can read; remove it")
        with self._changing():
            self._tidy()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of the root."""
        lock = _open(self._root / ".lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def make_folder(self, name: str) -> Path:
        """Return a new folder of this worker, which is removed when the worker ends, or by a later one."""
        with self._changing():
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._root))
            self._own[folder] = _open(_lock_of(folder))
            fcntl.flock(self._own[folder], fcntl.LOCK_SH)
        return folder

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
                if each.layout is not None:  # files will be added
                    shutil.copytree(place / Path(each.name).name, link)
                else:
                    link.symlink_to(place if each.link else place / Path(each.name).name)
        return project

    def find_part(self, key: str) -> Path | None:
        """Return a file with prepared rows, if it is here."""
        place = self._root / key
        if place not in self._archives:
            with self._changing():
                if not (place / ROWS).is_file():
                    return None
                lock = self._hold(place)
            self._register(place, lock)
        return place / ROWS

    def add_part(self, each: Delivered, fetch: Callable[[Any], bytes] | None = None) -> Path:
        """Take over a file with prepared rows that was sent."""
        return self._place(each, fetch or fetch_object, ROWS) / ROWS

    def keep_part(self, key: str, contents: bytes) -> None:
        """Keep prepared rows that were made on this node."""
        place = self._root / key
        if not self._mark_made(place):
            temporary = self.make_folder("unpacking")
            (temporary / ROWS).write_bytes(contents)
            (temporary / MADE).touch()
            with self._changing():
                if not place.exists():
                    temporary.rename(place)
            self._mark_made(place)
            self._release(temporary)

    def _mark_made(self, place: Path) -> bool:
        """Let rows that are here be kept from now on; return whether they are here."""
        with self._changing():
            is_here = (place / ROWS).is_file()
            if is_here:
                (place / MADE).touch()
                os.utime(place)
        return is_here

    def _hold(self, place: Path) -> int:
        """Lock a folder against removal; return the lock."""
        lock = _open(_lock_of(place))
        fcntl.flock(lock, fcntl.LOCK_SH)
        if place.is_dir():
            os.utime(place)
        return lock

    def _register(self, place: Path, lock: int) -> None:
        """Note that a folder is complete, and locked as long as this worker may read it."""
        if self._archives.setdefault(place, lock) != lock:  # another thread was faster
            os.close(lock)

    def _release(self, folder: Path) -> None:
        """Give up a folder of this worker, which may have been renamed."""
        shutil.rmtree(folder, ignore_errors=True)
        os.close(self._own.pop(folder))
        _lock_of(folder).unlink(missing_ok=True)

    def _place(self, each: Delivered, fetch: Callable[[Any], bytes], needed: str = "") -> Path:
        """Return the folder with the contents of an archive; workers of a node unpack it once.

        A folder without the file `needed` is unpacked again.
        """
        place = self._root / each.digest
        if place in self._archives:
            return place
        with self._changing():
            lock = self._hold(place)
        try:
            unpacking = _open(self._root / f".{each.digest}.unpacking")
            try:
                fcntl.flock(unpacking, fcntl.LOCK_EX)
                if not (place / needed).exists():
                    self._extract(each, fetch, place)
            finally:
                os.close(unpacking)
        except BaseException:
            os.close(lock)
            raise
        self._register(place, lock)
        return place

    def _extract(self, each: Delivered, fetch: Callable[[Any], bytes], place: Path) -> None:
        temporary = self.make_folder("unpacking")
        try:
            stream = _Joined(fetch(chunk) for chunk in each.chunks)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                archive.extractall(temporary, filter="data")
            shutil.rmtree(place, ignore_errors=True)  # incomplete: somebody has removed files
            temporary.rename(place)
        finally:
            self._release(temporary)

    def _tidy(self) -> None:
        """Remove what workers left behind that were killed, and archives that nobody has used for long."""
        for folder in [path for path in self._root.iterdir() if path.is_dir()]:
            is_archive = len(folder.name) == DIGITS and "-" not in folder.name
            is_own = folder.name.partition("-")[0] in ("worker", "project", "unpacking")
            if is_own or (is_archive and time.time() - folder.stat().st_mtime > KEPT):
                self._remove_unused(folder)

    def _remove_unused(self, folder: Path) -> None:
        """Remove a folder unless another worker holds its lock."""
        lock = _open(_lock_of(folder))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)  # under the lock of the root, so nobody waits for it
            (self._root / f".{folder.name}.unpacking").unlink(missing_ok=True)
        finally:
            os.close(lock)

    def remove(self) -> None:
        """Remove the folders of this worker, and the archives that no other worker of this node uses."""
        with self._changing():
            for folder, lock in [*self._own.items(), *self._archives.items()]:
                os.close(lock)
                if not (folder / MADE).exists():
                    self._remove_unused(folder)
        self._own.clear()
        self._archives.clear()


def list_made(root: Path | None = None) -> frozenset[str]:
    """Return the keys of the prepared rows that were made on this node."""
    return frozenset(path.parent.name for path in (root or default_root()).glob(f"*/{MADE}"))


def default_root() -> Path:
    """Return the folder for the files of studies on a node."""
    return Path(tempfile.gettempdir()) / f"manyfit-{os.getuid()}"


def part_key(part: Mapping[str, Any]) -> str:
    """Return the key of a file with prepared rows, as a layout describes it: it depends on the contents."""
    return hashlib.sha256(f"{part['digest']} {part['bytes']}".encode()).hexdigest()[:DIGITS]


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


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
