"""LMDB files: one record per row, with arrays as safetensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing
from manyfit.data.files.held_out import HeldOut
from manyfit.data.gather import GatherSource
from manyfit.data.source import Split
from manyfit.data.splitting import RowNumbers

SAMPLED = 64
_opened: dict[str, tuple[int, Any]] = {}
"""Open files, with the process that opened them: LMDB refuses to open a file twice in a process."""


class LmdbReader:
    """Reads rows by the order of their keys. The file is opened once in each process, without locks."""

    def __init__(self, file: Path, target: str | None) -> None:
        self.file = file
        self.target = target

    @property
    def handle(self) -> Any:
        """The open environment: one in each process, also after a fork, for all readers of the file."""
        key = str(self.file.resolve())
        process, found = _opened.get(key, (0, None))
        if process != os.getpid():
            if found is not None:
                found.close()  # of the parent process: only the mapping of this process is removed
            lmdb = import_optional("lmdb", "lmdb")
            if not self.file.exists():
                raise UsageError(f"there is no file {self.file}")
            try:
                found = lmdb.open(str(self.file), subdir=self.file.is_dir(), readonly=True, lock=False)
            except lmdb.Error as error:
                raise UsageError(f"{self.file} cannot be read as LMDB: {error}") from error
            _opened[key] = (os.getpid(), found)
        return found

    @cached_property
    def keys(self) -> list[bytes]:
        """The keys of all rows, in order."""
        with self.handle.begin() as transaction:
            found = [bytes(key) for key in transaction.cursor().iternext(values=False)]
        if not found:
            raise UsageError(f"{self.file} has no rows")
        return found

    def __len__(self) -> int:
        return len(self.keys)

    def row(self, row: int) -> dict[str, Any]:
        """Return the arrays of a row by name."""
        numpy = import_optional("safetensors.numpy", "lmdb")
        with self.handle.begin() as transaction:
            try:
                found: dict[str, Any] = numpy.load(transaction.get(self.keys[row]))
            except Exception as error:
                raise UsageError(
                    f"{self.file}: the record {self.keys[row]!r} is not arrays in the format of safetensors; "
                    f"write them with manyfit.data.write_lmdb ({error})"
                ) from error
        return found

    def read(self, rows: RowNumbers) -> tuple[Any, Any]:
        """Return the inputs and the target of some rows."""
        found = [self.row(int(row)) for row in rows]
        names = list(found[0])
        if self.target is not None and self.target not in names:
            raise UsageError(f"{self.file}: a row has no {self.target!r}; it has {listing(names)}")
        columns = {name: np.stack([row[name] for row in found]) for name in names}
        target = columns.pop(self.target) if self.target is not None else None
        return next(iter(columns.values())) if len(columns) == 1 else columns, target

    def fingerprint(self) -> str:
        """Return a hash of the keys, and of rows spread over the file."""
        digest = hashlib.sha256(b"\x1f".join(self.keys))
        for row in np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64)).tolist():
            for name, array in sorted(self.row(row).items()):
                digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Lmdb:
    """The records of an LMDB file as the data of a run; row IDs are the keys. Needs the extra `lmdb`.

    data: {class: manyfit.data.Lmdb, file: data/images.lmdb, target: label}
    """

    def __init__(
        self,
        file: Path,
        target: str | None = "target",
        validation: Annotated[float, Ge(0)] = 0.15,
        test: Annotated[float, Ge(0)] = 0.15,
        split_seed: int = 0,
        folds: Annotated[int, Ge(2)] | None = None,
        fold: Annotated[int, Ge(0)] | None = None,
        split_file: Path | None = None,
        batch_size: Annotated[int, Gt(0)] = 64,
        workers: Annotated[int, Kind.NEUTRAL, Ge(0)] = 0,
    ) -> None:
        self.reader = LmdbReader(file, target)
        self.held_out = HeldOut(validation, test, split_seed, folds, fold, split_file)
        self.batch_size = batch_size
        self.workers = workers

    def source(self, split: Split) -> GatherSource | None:
        """Return the rows of one split."""
        ids = [key.decode(errors="replace") for key in self.reader.keys]
        rows = self.held_out.divide(ids)[split]
        return (
            GatherSource(self.reader, rows, [ids[row] for row in rows], self.workers) if len(rows) else None
        )


def write_lmdb(file: Path, rows: Iterable[tuple[str, Mapping[str, Any]]], size: int = 1 << 34) -> int:
    """Write rows, each an ID and arrays by name, to a new LMDB file; return their number.

    `size` is the largest size of the file in bytes.
    """
    lmdb = import_optional("lmdb", "lmdb")
    numpy = import_optional("safetensors.numpy", "lmdb")
    if file.exists():
        raise UsageError(f"{file} already exists")
    count = 0
    with (
        lmdb.open(str(file), subdir=False, map_size=size) as environment,
        environment.begin(write=True) as put,
    ):
        for id_, arrays in rows:
            values = {name: np.asarray(array, order="C") for name, array in arrays.items()}
            if not put.put(id_.encode(), numpy.save(values), overwrite=False):
                raise UsageError(f"{file}: two rows have the ID {id_!r}")
            count += 1
    return count
