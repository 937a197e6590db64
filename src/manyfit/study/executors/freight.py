"""Luggage and parcels on their way between machines: pickled once, with the states beside the pickled bytes.

A worker's supervisor passes them on without opening them, so that it needs neither torch nor the user's code.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any

from manyfit.store.packed_state import (
    copy_to_file,
    pass_file,
    passing_files,
    receiving_files,
    take_file,
)


class Freight:
    """A message that is opened at its destination.

    Between the processes of one machine, the files of its states are passed on. Between machines, their
    contents are buffers of pickle protocol 5, which a transport like Ray's object store copies once.
    """

    def __init__(self, data: bytes, files: Sequence[int], owner: object = None) -> None:
        """`owner` is the object that keeps the files open; without it, they belong to the freight."""
        self._data = data
        self._files = list(files)
        self._owner = owner
        if owner is None:
            weakref.finalize(self, _close, self._files)

    @staticmethod
    def pack(message: Any) -> Freight:
        """Return a message to send."""
        with passing_files() as files:
            data = pickle.dumps(message, protocol=5)
        return Freight(data, files, message)

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
        views = [mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) for file in self._files]
        return _copy, (self._data, [pickle.PickleBuffer(view) for view in views])


def _receive(data: bytes, numbers: Sequence[int]) -> Freight:
    return Freight(data, [take_file(number) for number in numbers])


def _copy(data: bytes, buffers: Sequence[Any]) -> Freight:
    return Freight(data, [copy_to_file(buffer) for buffer in buffers])


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
