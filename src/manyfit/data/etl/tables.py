"""The tables that ETL reads: CSV files with an ID, and the object files that their rows name."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, nearest

MODES: Final = ("train", "val", "test", "predict")
Mode: TypeAlias = str
PLAIN_ID: Final = "id"


@dataclass(frozen=True)
class EtlTable:
    """One CSV file: its rows, their IDs, and the folder of its object files."""

    mode: Mode
    main: str
    object_dir: str
    rows: Any
    """A table of Arrow, which is compact: rows become dicts only when they are prepared."""
    ids: Sequence[str]
    digest: str

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        found: list[str] = self.rows.column_names
        return found

    def take(self, index: Sequence[int]) -> list[dict[str, Any]]:
        """Return some rows, with their columns by name."""
        found: list[dict[str, Any]] = self.rows.take(index).to_pylist()
        return found


def read_table(mode: Mode, main: str, object_dir: str = "") -> EtlTable:
    """Read a CSV file, local or remote. The ID is the column `id`, or else the first one."""
    csv = import_optional("pyarrow.csv", "etl")
    fsspec = import_optional("fsspec", "etl")
    pa = import_optional("pyarrow", "etl")
    try:
        with fsspec.open(main, "rb") as file:
            data = file.read()
        table = csv.read_csv(pa.BufferReader(data))
        key = PLAIN_ID if PLAIN_ID in table.column_names else next(iter(table.column_names), "")
        text = csv.ConvertOptions(column_types={key: pa.string()}, include_columns=[key])
        named = csv.read_csv(pa.BufferReader(data), convert_options=text)  # as written: 007 is not 7
    except FileNotFoundError:
        raise UsageError(f"{mode}_main: there is no file {main}") from None
    except (OSError, ValueError, ImportError, pa.ArrowInvalid) as error:
        raise UsageError(f"{mode}_main: {main} cannot be read as CSV: {error}") from error
    if not table.num_columns or not table.num_rows:
        raise UsageError(f"{mode}_main: {main} has no rows")
    if len(set(table.column_names)) < table.num_columns:
        raise UsageError(f"{mode}_main: two columns of {main} have the same name")
    ids: list[str] = named.column(key).to_pylist()
    if not all(ids):
        raise UsageError(f"{mode}_main: row {ids.index('') + 1} of {main} has no ID (column {key!r})")
    repeated = [id_ for id_, count in Counter(ids).items() if count > 1]
    if repeated:
        raise UsageError(
            f"{mode}_main: the IDs of {main} (column {key!r}) must be unique, but {len(repeated)} are "
            f"repeated, such as {repeated[0]!r}"
        )
    if object_dir and "://" not in object_dir and not Path(object_dir).is_dir():
        raise UsageError(f"{mode}_dir: there is no folder {object_dir}")
    folder = object_dir if not object_dir or object_dir.endswith("/") else f"{object_dir}/"
    return EtlTable(mode, main, folder, table, ids, hashlib.sha256(data).hexdigest())


def check_features(spec: Any, tables: Sequence[EtlTable]) -> None:
    """Raise an error for features that are not columns of every table."""
    features = getattr(spec, "features", None) or ()
    for table in tables:
        for feature in features:
            if feature in table.columns:
                continue
            is_target = table.mode == "predict" and any(feature in t.columns for t in tables)
            if is_target:
                continue  # rows to predict need not have targets
            hint = f"did you mean {best!r}? " if (best := nearest(feature, table.columns)) else ""
            raise UsageError(
                f"{type(spec).__name__}.features: {table.main} has no column {feature!r}; {hint}"
                f"It has: {listing(table.columns)}"
            )
    flags = getattr(spec, "is_feature_download", None)
    if flags is not None and len(flags) != len(features):
        raise UsageError(
            f"{type(spec).__name__}.is_feature_download has {len(flags)} values for {len(features)} features"
        )


def downloads(spec: Any) -> list[str]:
    """Return the columns that name object files."""
    flags = getattr(spec, "is_feature_download", None) or ()
    return [name for name, flag in zip(getattr(spec, "features", None) or (), flags, strict=False) if flag]


def describe_objects(folder: str, except_for: Path) -> str:
    """Return a hash of the names, sizes and times of the files of a folder, except for one below it."""
    if not folder:
        return ""
    lines: list[str] = []
    if "://" in folder:
        files, path = import_optional("fsspec", "etl").core.url_to_fs(folder)
        for name, entry in sorted(files.find(path, detail=True).items()):
            stamps = [str(entry.get(key, "")) for key in ("size", "mtime", "ETag", "etag", "LastModified")]
            lines.append(f"{name} {stamps}\n")
        return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
    todo = [folder]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    todo += [entry.path] if Path(entry.path).resolve() != except_for else []
                else:
                    found = entry.stat()
                    lines.append(f"{entry.path[len(folder) :]} {found.st_size} {found.st_mtime_ns}\n")
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
