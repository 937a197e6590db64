"""Luggage and parcels on their way between machines: pickled once, with the states beside the pickled bytes.

A worker's supervisor passes them on without opening them, so that it needs neither torch nor the user's code.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from manyfit.store.packed_state import (
    copy_to_file,
    pass_file,
    passing_files,
    receiving_files,
    take_file,
)


class Handle(NamedTuple):
    """An open file of a process, which other processes of the same user and machine can open."""

    process: int
    number: int
    inode: int

    @staticmethod
    def of(file: int) -> Handle:
        """Return the handle of a file of this process."""
        return Handle(os.getpid(), file, os.fstat(file).st_ino)

    def open(self) -> int:
        """Open the file; raise OSError if that is not possible, such as on another machine."""
        file = os.open(f"/proc/{self.process}/fd/{self.number}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(file).st_ino != self.inode:
            os.close(file)
            raise OSError(f"process {self.process} has closed a file that this one was to open")
        return file


class MachineProbe:
    """A file with a secret, to find out whether another process is on this machine."""

    def __init__(self) -> None:
        self._secret = os.urandom(16)
        self._file = copy_to_file(self._secret)
        weakref.finalize(self, os.close, self._file)

    @property
    def handle(self) -> Handle:
        """What the other process gets."""
        return Handle.of(self._file)

    def is_answered_by(self, answer: bytes) -> bool:
        """Return whether an answer shows that the other process can open files of this one."""
        return answer == self._secret


def answer_probe(handle: Handle | None) -> bytes:
    """Return what is in the file of a probe; nothing if it cannot be opened."""
    try:
        file = handle.open() if handle is not None else None
    except OSError:
        return b""
    if file is None:
        return b""
    try:
        return os.pread(file, 16, 0)
    finally:
        os.close(file)


class Freight:
    """A message that is opened at its destination.

    Between a process and its child, the files of its states are passed on. A process of this machine can open
    them, if the freight is for one (`is_near`) and is kept until it was received. Between machines, their
    contents are buffers of pickle protocol 5, which a transport like Ray's object store copies once.
    """

    def __init__(
        self, data: bytes, files: Sequence[int], owner: object = None, is_near: bool = False
    ) -> None:
        """`owner` is the object that keeps the files open; without it, they belong to the freight."""
        self._data = data
        self._is_near = is_near
        self._files = list(files)
        self._owner = owner
        if owner is None:
            weakref.finalize(self, _close, self._files)

    @staticmethod
    def pack(message: Any, is_near: bool = False) -> Freight:
        """Return a message to send."""
        with passing_files() as files:
            data = pickle.dumps(message, protocol=5)
        return Freight(data, files, message, is_near)

    def open(self) -> Any:
        """Return the message."""
        files = [os.dup(file) for file in self._files]
        try:
            with receiving_files(files):
                return pickle.loads(self._data)
        except BaseException:
            _close(files)
            raise

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if not self._files:
            return _receive, (self._data, ())
        numbers = [pass_file(file) for file in self._files]
        if None not in numbers:
            return _receive, (self._data, tuple(numbers))
        if self._is_near:
            return _reach, (self._data, [Handle.of(file) for file in self._files])
        views = [mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) for file in self._files]
        return _copy, (self._data, [pickle.PickleBuffer(view) for view in views])


def _receive(data: bytes, numbers: Sequence[int]) -> Freight:
    return Freight(data, [take_file(number) for number in numbers])


def _reach(data: bytes, handles: Sequence[Handle]) -> Freight:
    files: list[int] = []
    try:
        files += (handle.open() for handle in handles)
    except BaseException:
        _close(files)
        raise
    return Freight(data, files)


def _copy(data: bytes, buffers: Sequence[Any]) -> Freight:
    return Freight(data, [copy_to_file(buffer) for buffer in buffers])


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
