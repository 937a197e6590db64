"""Safetensors files with the tensors of several runs: each tensor has a row for every run.

The row of one run is a safetensors file of its own, which does not depend on the other runs. Its checksum is
therefore the same in the folder of a group and in that of the run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.core.errors import FolderError
from manyfit.core.state import State

LENGTH = struct.Struct("<Q")
"""How a safetensors file begins: with the length of its header."""


def list_alike(states: Sequence[State]) -> list[list[int]]:
    """Return the numbers of the states, in groups that have tensors of the same names, shapes and types."""
    found: dict[Any, list[int]] = {}
    for number, state in enumerate(states):
        key = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.tensors.items())
        found.setdefault(key, []).append(number)
    return list(found.values())


@dataclass(frozen=True)
class StackedFile:
    """A safetensors file with a row for every run, in memory or on disk."""

    header: dict[str, Any]
    begin: int
    """Where the tensors begin."""
    read: Callable[[int, int], bytes | memoryview]
    """Returns the bytes between two positions."""

    @staticmethod
    def of(data: bytes) -> StackedFile:
        """Return the file with these contents."""
        view = memoryview(data)
        return _open(lambda begin, end: view[begin:end])

    def cut(self, row: int) -> bytes:
        """Return the file with the tensors of one run."""
        header: dict[str, Any] = {}
        parts, end = list[bytes | memoryview](), 0
        for name, part in self._list_tensors():
            count, *shape = part["shape"]
            first, last = part["data_offsets"]
            size = (last - first) // count
            parts.append(self.read(self.begin + first + row * size, self.begin + first + (row + 1) * size))
            header[name] = {"dtype": part["dtype"], "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH.size)
        return b"".join([LENGTH.pack(len(text)), text, *parts])

    def _list_tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield the tensors in an order that does not depend on their number of rows."""
        tensors = {name: part for name, part in self.header.items() if name != "__metadata__"}
        yield from sorted(tensors.items())


def cut_file(path: Path, row: int) -> bytes:
    """Return the file with the tensors of one run; raise if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size

            def read(begin: int, end: int) -> bytes:
                if not 0 <= begin <= end <= size:
                    raise ValueError(f"it has no bytes {begin} to {end}")
                return os.pread(descriptor, end - begin, begin)

            return _open(read).cut(row)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, struct.error, ZeroDivisionError, AttributeError) as error:
        raise FolderError(f"{path} is damaged: {error!r}") from error


def _open(read: Callable[[int, int], bytes | memoryview]) -> StackedFile:
    (length,) = LENGTH.unpack(read(0, LENGTH.size))
    return StackedFile(json.loads(bytes(read(LENGTH.size, LENGTH.size + length))), LENGTH.size + length, read)
