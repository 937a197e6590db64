"""Files of prepared rows: Arrow files with an ID and arrays of fixed shape, which are memory-mapped."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import FolderError, UsageError
from manyfit.core.lazy import import_optional
from manyfit.data.nested import map_arrays

FORM: Final = b"manyfit"
"""The key of the schema's metadata that describes the columns."""
ID: Final = "id"


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The type and the shape of the arrays of a column."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class RowForm:
    """The form of prepared rows: their columns, and the structures that these make up."""

    columns: Mapping[str, ColumnForm]
    inputs: Any
    """A structure of column names."""
    target: Any

    def to_json(self) -> dict[str, Any]:
        """Return the form as plain values."""
        columns = {name: [form.dtype, list(form.shape)] for name, form in self.columns.items()}
        return {"columns": columns, "inputs": _tag(self.inputs), "target": _tag(self.target)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> RowForm:
        """Return the form from plain values."""
        columns = {name: ColumnForm(dtype, tuple(shape)) for name, (dtype, shape) in tree["columns"].items()}
        return RowForm(columns, _untag(tree["inputs"]), _untag(tree["target"]))


def flatten_row(inputs: Any, target: Any) -> tuple[RowForm, dict[str, npt.NDArray[Any]]]:
    """Return the form of a row and its arrays by column."""
    arrays: dict[str, npt.NDArray[Any]] = {}

    def add(prefix: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): add(f"{prefix}.{key}", item) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(add(f"{prefix}.{i}", item) for i, item in enumerate(value))
        array = to_array(value)
        if array.dtype.kind not in "biufc":
            raise UsageError(f"rows must consist of numbers, not {value!r:.60}")
        if prefix in arrays:
            raise UsageError(f"two values of a row have the same name: {prefix}")
        arrays[prefix] = np.ascontiguousarray(array).reshape(array.shape)
        return prefix

    made = add("x", inputs), None if target is None else add("y", target)
    columns = {name: ColumnForm(array.dtype.str, array.shape) for name, array in arrays.items()}
    return RowForm(columns, *made), arrays


def flatten_alike(inputs: Any, target: Any, form: RowForm) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a row by column, if it is plain and of a known form; otherwise None."""
    is_simple = form.inputs == "x" and type(inputs) is np.ndarray and inputs.flags.c_contiguous
    if not is_simple or (form.target is None) != (target is None) or isinstance(target, Mapping | tuple):
        return None
    found = {"x": inputs} if target is None else {"x": inputs, "y": to_array(target)}
    columns = form.columns
    if found.keys() != columns.keys():
        return None
    for name, array in found.items():
        if array.dtype.str != columns[name].dtype or array.shape != columns[name].shape:
            return None
    return found


class RowStack:
    """Rows that become a file: those of the first form in one array a column, and any others beside them.

    Rows are copied, since they may all be made in one buffer.
    """

    def __init__(self, most: int) -> None:
        self.form: RowForm | None = None
        """Of the first row."""
        self._most = most
        self._ids: list[str] = []
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._others: list[tuple[str, RowForm, dict[str, npt.NDArray[Any]]]] = []

    def add(self, id_: str, form: RowForm, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add a row."""
        if self.form is None:
            self.form = form
            self._columns = {
                name: np.empty((self._most, *array.shape), array.dtype) for name, array in arrays.items()
            }
        if form is not self.form and form != self.form:
            self._others.append((id_, form, {name: array.copy() for name, array in arrays.items()}))
            return
        for name, array in arrays.items():
            self._columns[name][len(self._ids)] = array
        self._ids.append(id_)

    def finish(self) -> tuple[list[str], RowForm | None, dict[str, npt.NDArray[Any]], dict[str, RowForm]]:
        """Return the IDs, the form and the columns of the rows whose form is usual, and the other rows."""
        count = len(self._ids)
        counts = Counter(repr(form) for _, form, _ in self._others)
        usual = max(counts, key=lambda text: counts[text], default="")
        if counts[usual] <= count:
            odd = {id_: form for id_, form, _ in self._others}
            return self._ids, self.form, {name: data[:count] for name, data in self._columns.items()}, odd
        assert self.form is not None
        odd = dict.fromkeys(self._ids, self.form)
        odd |= {id_: form for id_, form, _ in self._others if repr(form) != usual}
        chosen = [row for row in self._others if repr(row[1]) == usual]
        columns = {name: np.stack([arrays[name] for *_, arrays in chosen]) for name in chosen[0][2]}
        return [id_ for id_, _, _ in chosen], chosen[0][1], columns, odd


def to_array(value: Any) -> npt.NDArray[Any]:
    """Return an array of a tensor, an image, a list or a number; single numbers keep their usual types."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError("rows must not have masked values: fill them")
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def hash_rows(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """Return a hash of the contents of each row, the same in every process.

    It is a sum of the words of a row with random weights, modulo 2^64, which is fast on whole columns.
    """
    total: Any = np.uint64(0)
    for column in columns.values():
        flat = np.ascontiguousarray(column).reshape(len(column), -1).view(np.uint8)
        missing = -flat.shape[1] % 8
        padded = np.pad(flat, ((0, 0), (0, missing))) if missing else flat
        words = padded.view(np.uint64)
        total = total * np.uint64(31) + words @ _weights(words.shape[1])
    return np.asarray(total, dtype=np.uint64)


@functools.lru_cache(maxsize=8)
def _weights(count: int) -> npt.NDArray[np.uint64]:
    state = np.random.RandomState(np.random.MT19937(0))
    return state.randint(1, 1 << 63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def serialize_rows(ids: Sequence[str], form: RowForm, columns: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the contents of an Arrow file with these rows as a single batch."""
    pa = import_optional("pyarrow", "etl")
    arrays, fields = [pa.array(ids, pa.string())], [pa.field(ID, pa.string(), nullable=False)]
    for name, data in columns.items():
        kind = pa.binary(max(1, form.columns[name].size))
        buffer = pa.py_buffer(data if data.size else b"\0" * len(ids))
        arrays.append(pa.FixedSizeBinaryArray.from_buffers(kind, len(ids), [None, buffer]))
        fields.append(pa.field(name, kind, nullable=False))
    schema = pa.schema(fields, {FORM: json.dumps(form.to_json()).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


class RowFile:
    """An Arrow file of prepared rows, memory-mapped: only what is read is loaded."""

    def __init__(self, path: Path) -> None:
        pa = import_optional("pyarrow", "etl")
        try:
            self._source = pa.memory_map(str(path))
            reader = pa.ipc.open_file(self._source)
            self._batch = reader.get_batch(0)
            self.form = RowForm.from_json(json.loads(reader.schema.metadata[FORM]))
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError, IndexError) as error:
            raise FolderError(f"{path} is not a file of prepared rows: {error}") from error
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def ids(self) -> list[str]:
        """Return the ID of every row."""
        found: list[str] = self._batch.column(ID).to_pylist()
        return found

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column as an array over the mapped file."""
        if name not in self._columns:
            form, array = self.form.columns[name], self._batch.column(name)
            flat = np.frombuffer(array.buffers()[1], form.dtype, len(self) * _count(form.shape))
            self._columns[name] = flat.reshape(len(self), *form.shape)
        return self._columns[name]


def digest_file(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_structure(structure: Any, columns: Mapping[str, Any]) -> Any:
    """Return columns in the structure of a row."""
    return map_arrays(lambda name: columns[name], structure)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _tag(structure: Any) -> Any:
    """Return a structure as JSON, in which tuples are marked."""
    if isinstance(structure, Mapping):
        return {"dict": {name: _tag(item) for name, item in structure.items()}}
    if isinstance(structure, tuple):
        return {"tuple": [_tag(item) for item in structure]}
    return structure


def _untag(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    if "tuple" in tree:
        return tuple(_untag(item) for item in tree["tuple"])
    return {name: _untag(item) for name, item in tree["dict"].items()}
