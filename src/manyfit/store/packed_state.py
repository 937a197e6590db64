"""States in memory that the processes of one machine share, without a copy on disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from manyfit.core.state import State

ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is in the memory of a packed state."""

    dtype: Any
    shape: tuple[int, ...]
    offset: int
    count: int


class PackedState:
    """An immutable copy of a state, in anonymous memory.

    The memory is a file without a name: it is freed when the last process that uses it closes it, however
    that process ends. Pickling copies the contents; inside `passing_files`, only the file is passed on.
    """

    def __init__(self, file: int, size: int, places: Mapping[str, _Place], values: Mapping[str, Any]) -> None:
        self.size = size
        self._file = file
        self._places = places
        self._values = values
        weakref.finalize(self, os.close, file)

    @staticmethod
    def pack(state: State) -> PackedState:
        """Copy a state."""
        import torch

        places, size = dict[str, _Place](), 0
        for name, tensor in state.tensors.items():
            places[name] = _Place(tensor.dtype, tuple(tensor.shape), size, tensor.numel())
            size += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        file = make_file(size)
        memory = mmap.mmap(file, max(size, 1))
        for name, tensor in state.tensors.items():
            if places[name].count:
                _view(memory, places[name]).copy_(tensor.detach(), non_blocking=True)
        for device in {t.device for t in state.tensors.values() if t.device.type != "cpu"}:
            torch.accelerator.synchronize(device)
        return PackedState(file, size, places, dict(state.values))

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of the state that are not tensors."""
        return self._values

    def unpack(self) -> State:
        """Return the state. Changes of its tensors in place do not affect the packed state."""
        memory = mmap.mmap(self._file, max(self.size, 1), mmap.MAP_PRIVATE)
        return State({name: _view(memory, place) for name, place in self._places.items()}, self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        number = pass_file(self._file)
        if number is not None:
            return _take_file, (number, self.size, self._places, self._values)
        memory = mmap.mmap(self._file, max(self.size, 1), mmap.MAP_PRIVATE, mmap.PROT_READ)
        return _make_copy, (bytes(memory), self.size, self._places, self._values)


_passing = threading.local()


@contextmanager
def passing_files() -> Iterator[list[int]]:
    """Pickle packed states by their files; yield the list of these, to be sent beside the pickled bytes."""
    _passing.sent = []
    try:
        yield _passing.sent
    finally:
        _passing.sent = None


@contextmanager
def receiving_files(files: Sequence[int]) -> Iterator[None]:
    """Unpickle packed states with files that came beside the pickled bytes."""
    _passing.files = files
    try:
        yield
    finally:
        _passing.files = ()


def pass_file(file: int) -> int | None:
    """Pass a file on beside the pickled bytes, and return its number; None if files are not passed."""
    files: list[int] | None = getattr(_passing, "sent", None)
    if files is None:
        return None
    files.append(file)
    return len(files) - 1


def take_file(number: int) -> int:
    """Return a file that came beside the pickled bytes; the caller owns it."""
    file: int = _passing.files[number]
    return file


def copy_to_file(contents: Any) -> int:
    """Return a file in memory with a copy of some bytes."""
    with memoryview(contents) as view:
        file, done = make_file(view.nbytes), 0
        while done < view.nbytes:
            done += os.pwrite(file, view[done:], done)
    return file


def _take_file(
    number: int, size: int, places: Mapping[str, _Place], values: Mapping[str, Any]
) -> PackedState:
    return PackedState(take_file(number), size, places, values)


def _make_copy(
    contents: bytes, size: int, places: Mapping[str, _Place], values: Mapping[str, Any]
) -> PackedState:
    return PackedState(copy_to_file(contents), size, places, values)


def make_file(size: int) -> int:
    """Return a file in memory, or a deleted one where the system has no files in memory."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("manyfit-state", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.ftruncate(file, max(size, 1))
    return file


def _view(memory: mmap.mmap, place: _Place) -> Any:
    import torch

    if not place.count:
        return torch.empty(place.shape, dtype=place.dtype)
    flat = torch.frombuffer(memory, dtype=place.dtype, count=place.count, offset=place.offset)
    return flat.view(place.shape)
