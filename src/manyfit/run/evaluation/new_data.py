"""New data for a trained model: the rows of a file, in the form of the training data."""

from __future__ import annotations

import csv
import logging
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import ArraySource, Source

log = logging.getLogger("manyfit")

Columns = dict[str, npt.NDArray[Any]]


@runtime_checkable
class ReadsRows(Protocol):
    """Data that reads new rows as it reads its own, such as `manyfit.data.Table`."""

    def read(self, file: Path, has_target: bool = True) -> Source:
        """Return the rows of a file."""
        ...


def read_rows(file: Path, example: Any, data: Any = None) -> Source:
    """Read new rows: as the data of the run reads its own, or from arrays or columns in a file.

    Otherwise, it is an .npy array, an .npz with `inputs` or one array per input, or a .csv with columns.

    `example` is the inputs of a batch of the training data: one array, several, or several by name.
    An array or a column named `ids` or `id` holds the row IDs.
    """
    if isinstance(data, ReadsRows):
        return data.read(file, has_target=False)
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    readers = {".npy": _npy, ".npz": _npz, ".csv": _csv}
    if file.suffix not in readers:
        raise UsageError(f"{file} is not a .npy, .npz or .csv file")
    try:
        columns = readers[file.suffix](file)
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile, csv.Error) as error:
        raise UsageError(f"{file} cannot be read as data: {error}") from error
    name = "ids" if "ids" in columns else "id"
    ids = columns.pop(name).tolist() if name in columns else None
    inputs, used = _inputs(file, columns, example)
    unread = [name for name in columns if name not in used]
    if unread:
        log.warning("%s: not used by any input of the model: %s", file, listing(unread))
    return ArraySource(inputs, ids=ids)


def _inputs(file: Path, columns: Columns, example: Any) -> tuple[Any, list[str]]:
    """Return the inputs of the model, and the names of the columns they use."""
    if isinstance(example, Mapping):
        wanted = {name: name for name in example}
        if list(columns) == ["inputs"] and len(wanted) == 1:
            wanted = dict.fromkeys(wanted, "inputs")
        found = {name: _as(_find_column(file, columns, key), example[name]) for name, key in wanted.items()}
        return found, list(wanted.values())
    if isinstance(example, tuple):
        names = [f"inputs_{i}" for i in range(len(example))]
        parts = zip(names, example, strict=True)
        return tuple(_as(_find_column(file, columns, name), each) for name, each in parts), names
    if file.suffix == ".csv" and "inputs" not in columns:
        values, names = _table(file, columns, example)
        return _as(values, example), names
    return _as(_find_column(file, columns, "inputs"), example), ["inputs"]


def _table(file: Path, columns: Columns, example: Any) -> tuple[npt.NDArray[Any], list[str]]:
    """Return the columns of a table as one array, and their names."""
    names = [name for name in columns if name != "target"]
    texts = [name for name in names if columns[name].dtype.kind == "U"]
    if getattr(example.dtype, "kind", "f") in "USO":  # a model that reads text
        if len(names) != 1:
            raise UsageError(f"{file} has {listing(names)}; name the column with the text inputs")
        return columns[names[0]], names
    if texts:
        raise UsageError(f"{file}: the column {texts[0]} contains text, such as {columns[texts[0]][0]!r}")
    width = int(np.prod(example.shape[1:]))
    if len(names) != width:
        raise UsageError(f"{file} has {len(names)} numeric columns, but the model expects {width} per row")
    return np.stack([columns[name] for name in names], axis=1), names


def _find_column(file: Path, columns: Columns, name: str) -> npt.NDArray[Any]:
    if name not in columns:
        best = nearest(name, columns)
        hint = f"did you mean {best}?" if best else f"it has {listing(columns)}"
        raise UsageError(f"{file} has no {name!r}, which the model needs; {hint}")
    return columns[name]


def _as(values: npt.NDArray[Any], example: Any) -> Any:
    """Return values with the dtype and the shape of the training data."""
    wanted, shape = str(example.dtype).removeprefix("torch."), tuple(example.shape)
    is_number = values.dtype.kind in "biuf" and getattr(example.dtype, "kind", "f") in "biuf"
    if is_number and wanted != "bfloat16":
        values = values.astype(wanted, copy=False)
    if values.shape[1:] != shape[1:] and np.prod(values.shape[1:]) == np.prod(shape[1:]):
        values = values.reshape(len(values), *shape[1:])
    return values


def _npy(file: Path) -> Columns:
    array = np.load(file, allow_pickle=False)
    if not array.ndim:
        raise UsageError(f"{file} contains a single number, not rows")
    return {"inputs": array}


def _npz(file: Path) -> Columns:
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _csv(file: Path) -> Columns:
    csv.field_size_limit(sys.maxsize)
    with file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        rows = list(reader)
    if not rows:
        raise UsageError(f"{file} has no rows")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise UsageError(f"{file}:{number}: {len(row)} cells, but the header has {len(header)}")
    return {name: _column(name, [row[i] for row in rows]) for i, name in enumerate(header)}


def _column(name: str, cells: list[str]) -> npt.NDArray[Any]:
    """Return a column as numbers if all cells are numeric, else as text."""
    if name in ("id", "ids"):
        return np.array(cells)
    try:
        return np.array([float(cell) for cell in cells], dtype=np.float32)
    except ValueError:
        return np.array(cells)
