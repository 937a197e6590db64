"""Arrays in .npz, .npy and HDF5 files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.core.errors import ExtraMissing, UsageError
from manyfit.core.lazy import import_optional
from manyfit.data.tfrecord.tables.base import Row, RowTable


class Arrays(RowTable):
    """Arrays with the same number of rows: an .npz, an .npy, or the data sets of an HDF5 file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._is_hdf5 = file.suffix.lower() in (".h5", ".hdf5")
        self.shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with self._open() as arrays:
            for name, array in arrays.items():
                if not hasattr(array, "shape") or not hasattr(array, "dtype"):
                    raise UsageError(f"{file}: {name!r} is not an array")
                if array.dtype == object and not _is_text(array):
                    raise UsageError(f"{file}: the rows of {name!r} are neither numbers nor text")
                if not array.shape:
                    raise UsageError(f"{file}: {name!r} is a single value and has no rows")
                if array.dtype.kind not in "biufSUO":
                    raise UsageError(
                        f"{file}: {name!r} has the type {array.dtype}, which records do not support"
                    )
                self.shapes[name] = tuple(array.shape), array.dtype
        counts = {shape[0] for shape, _ in self.shapes.values()}
        if len(counts) != 1:
            told = ", ".join(f"{name} has {shape[0]}" for name, (shape, _) in self.shapes.items()) or "none"
            raise UsageError(f"{file}: the arrays must have the same number of rows, but {told}")
        self.count = counts.pop()
        self.size = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in self.shapes.values())

    def _open(self) -> _Open:
        return _Open(self.file, self._is_hdf5)

    def __len__(self) -> int:
        return self.count

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Yield a value, or the raw bytes of an array, for each name."""
        with self._open() as arrays:
            for start in range(begin, end, 1024):
                stop = min(start + 1024, end)
                try:
                    parts = {name: array[start:stop] for name, array in arrays.items()}
                except (OSError, ValueError) as error:
                    raise UsageError(f"{self.file} cannot be read from row {start} on: {error}") from error
                for i in range(stop - start):
                    yield {name: self._value(name, part[i]) for name, part in parts.items()}

    def _value(self, name: str, value: Any) -> Any:
        shape, kind = self.shapes[name]
        if kind.kind in "SUO" and len(shape) > 1:
            return [item if isinstance(item, bytes) else str(item) for item in np.asarray(value).reshape(-1)]
        if kind.kind in "SUO":
            return value if isinstance(value, bytes) else str(value)
        if len(shape) > 1 and kind.str[1:] not in ("f4", "i8"):
            return np.ascontiguousarray(value).astype(kind.newbyteorder("<")).tobytes()
        return value

    def features(self) -> dict[str, str]:
        """Return the options of each array, by its shape and type."""
        found = {}
        for name, (shape, kind) in self.shapes.items():
            row = list(shape[1:])
            if kind.kind in "SUO":
                found[name] = f"{{type: FixedLenFeature, shape: {row}, dtype: string}}"
            elif len(shape) > 1 and kind.str[1:] not in ("f4", "i8"):
                found[name] = f"{{type: RawFeature, shape: {row}, dtype: {kind.name}}}"
            else:
                dtype = "float32" if kind.kind == "f" else "int64"
                found[name] = f"{{type: FixedLenFeature, shape: {row or [1]}, dtype: {dtype}}}"
        return found


def _is_text(array: Any) -> bool:
    """Return whether an object array of an HDF5 file holds text."""
    h5py: Any = import_optional("h5py", "hdf5")
    return h5py.check_string_dtype(array.dtype) is not None


class _Open:
    """A context manager that opens the arrays of a file."""

    def __init__(self, file: Path, is_hdf5: bool) -> None:
        self.file = file
        self.is_hdf5 = is_hdf5
        self._handle: Any = None

    def __enter__(self) -> dict[str, Any]:
        try:
            if self.is_hdf5:
                h5py: Any = import_optional("h5py", "hdf5")
                self._handle = h5py.File(self.file, "r")
                found: dict[str, Any] = {}
                self._handle.visititems(
                    lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
                )
                return found
            loaded = np.load(
                self.file, allow_pickle=False, mmap_mode="r" if self.file.suffix == ".npy" else None
            )
            if isinstance(loaded, np.ndarray):
                return {"inputs": loaded}
            self._handle = loaded
            return {name: loaded[name] for name in loaded.files}
        except ExtraMissing:
            raise
        except Exception as error:  # readers raise various exceptions for damaged files
            raise UsageError(
                f"{self.file} cannot be read as arrays: {type(error).__name__}: {error}"
            ) from error

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.close()
