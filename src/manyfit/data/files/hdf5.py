"""HDF5 files: columns of arrays, read batch by batch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, nearest
from manyfit.data.files.held_out import HeldOut
from manyfit.data.gather import GatherSource
from manyfit.data.source import Split
from manyfit.data.splitting import RowNumbers

SAMPLED = 64
CLASSES = "classes"
DIVISOR = "divisor"
"""The attribute of a column by which its numbers are divided when they are read: 255 for images of bytes."""


class Hdf5Reader:
    """Reads rows of some columns. The file is opened once in each process."""

    def __init__(self, file: Path, inputs: Sequence[str], target: str | None, is_single: bool) -> None:
        self.file = file
        self.inputs = list(inputs)
        self.target = target
        self.is_single = is_single
        self._opened: tuple[int, Any] | None = None
        self._columns: tuple[Any, dict[str, Any]] | None = None
        self._divisors: dict[str, float | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_columns": None}

    @property
    def handle(self) -> Any:
        """The open file; each process has its own, also after a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            h5py = import_optional("h5py", "hdf5")
            try:
                self._opened = (os.getpid(), h5py.File(self.file, "r"))
            except OSError as error:
                raise UsageError(f"{self.file} cannot be read as HDF5: {error}") from error
        return self._opened[1]

    def column(self, name: str) -> Any:
        """Return a column of the open file."""
        handle = self.handle
        if self._columns is None or self._columns[0] is not handle:
            self._columns = (handle, {})
        known = self._columns[1]
        if name not in known:
            known[name] = handle[name]  # looking it up takes as long as reading some rows
        return known[name]

    def _divisor(self, name: str) -> float | None:
        if name not in self._divisors:
            self._divisors[name] = self.column(name).attrs.get(DIVISOR)
        return self._divisors[name]

    def __len__(self) -> int:
        return len(self.handle[self.inputs[0]])

    def read(self, rows: RowNumbers) -> tuple[Any, Any]:
        """Return the columns of some rows: HDF5 reads them in order, each once."""
        wanted, inverse = np.unique(rows, return_inverse=True)
        is_sorted = len(wanted) == len(rows) and bool((wanted == rows).all())

        def take(name: str) -> Any:
            column = self.column(name)
            first, last = int(wanted[0]), int(wanted[-1]) + 1
            found = column[first:last] if last - first == len(wanted) else column[wanted]
            if (divisor := self._divisor(name)) is not None:
                found = found.astype(np.float32) / np.float32(divisor)
            return found if is_sorted else found[inverse]

        found = {name: take(name) for name in self.inputs}
        inputs = next(iter(found.values())) if self.is_single else found
        return inputs, take(self.target) if self.target is not None else None

    def fingerprint(self) -> str:
        """Return a hash of shapes, types, and rows spread over the file."""
        digest = hashlib.sha256()
        rows = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        for name in (*self.inputs, *([self.target] if self.target else [])):
            column = self.handle[name]
            digest.update(f"{name}:{column.dtype}:{column.shape}".encode())
            digest.update(np.ascontiguousarray(column[rows]).tobytes())
        return digest.hexdigest()


class Hdf5:
    """The columns of an HDF5 file as the data of a run. Needs the extra `hdf5`.

    data: {class: manyfit.data.Hdf5, file: data/images.h5, inputs: image, target: label}

    If the file has the groups `train`, `validation` and `test`, these are the splits; otherwise, rows are
    divided. Several inputs are passed to the model by name. `manyfit data convert` writes folders of images
    to such a file, as the columns `image`, `target` and `id`.
    """

    def __init__(
        self,
        file: Path,
        inputs: str | Sequence[str],
        target: str | None = None,
        id: str | None = None,
        validation: Annotated[float, Ge(0)] = 0.15,
        test: Annotated[float, Ge(0)] = 0.15,
        split_seed: int = 0,
        folds: Annotated[int, Ge(2)] | None = None,
        fold: Annotated[int, Ge(0)] | None = None,
        split_file: Path | None = None,
        batch_size: Annotated[int, Gt(0)] = 64,
        workers: Annotated[int, Kind.NEUTRAL, Ge(0)] = 0,
    ) -> None:
        self.file = file
        self.inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        self.is_single = isinstance(inputs, str)
        self.target = target
        self.id = id
        self.held_out = HeldOut(validation, test, split_seed, folds, fold, split_file)
        self.batch_size = batch_size
        self.workers = workers

    @cached_property
    def _has_groups(self) -> bool:
        if not self.file.exists():
            raise UsageError(f"there is no file {self.file}")
        return "train" in Hdf5Reader(self.file, [], None, True).handle

    def _reader(self, group: str = "") -> Hdf5Reader:
        def name(column: str) -> str:
            return f"{group}/{column}" if group else column

        target = None if self.target is None else name(self.target)
        reader = Hdf5Reader(self.file, [name(each) for each in self.inputs], target, self.is_single)
        known = list(reader.handle[group or "/"])
        wanted = [*self.inputs, *([self.target] if self.target else []), *([self.id] if self.id else [])]
        for column in wanted:
            if name(column) not in reader.handle:
                best = nearest(column, known)
                hint = f"did you mean {best!r}?" if best else f"it has {listing(known)}"
                raise UsageError(f"{self.file} has no {name(column)!r}; {hint}")
        lengths = {len(reader.handle[name(column)]) for column in wanted}
        if len(lengths) > 1:
            raise UsageError(f"{self.file}: {listing(wanted)} have different numbers of rows")
        return reader

    def source(self, split: Split) -> GatherSource | None:
        """Return the rows of one split."""
        if self._has_groups:
            if split not in self._reader("train").handle:
                return None
            reader = self._reader(split)
            return GatherSource(reader, np.arange(len(reader)), self._ids(reader, split), self.workers)
        reader = self._reader()
        ids = self._ids(reader) or [f"row-{row}" for row in range(len(reader))]
        rows = self.held_out.divide(ids, self._labels(reader))[split]
        return GatherSource(reader, rows, [ids[row] for row in rows], self.workers) if len(rows) else None

    def _labels(self, reader: Hdf5Reader) -> Any:
        """Return the classes, which are spread evenly over the splits; None if there are none."""
        column = None if self.target is None else reader.column(self.target)
        return column[:] if column is not None and column.ndim == 1 and column.dtype.kind in "iu" else None

    def _ids(self, reader: Hdf5Reader, group: str = "") -> list[str] | None:
        if self.id is None:
            return None
        values = reader.handle[f"{group}/{self.id}" if group else self.id][:]
        return [value.decode() if isinstance(value, bytes) else str(value) for value in values]

    def facts(self) -> Mapping[str, Any]:
        """Return the names of the classes, if the file has an attribute or a column `classes`."""
        group = "train" if self._has_groups else ""
        reader = self._reader(group)
        handle = reader.handle
        names = handle[CLASSES][:] if CLASSES in handle else handle.attrs.get(CLASSES)
        if names is None:
            return {}
        shown = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
        return {"classes": len(shown), "class_names": shown}
