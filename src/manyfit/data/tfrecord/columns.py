"""Cache of decoded columns, as memory-mapped files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.source import gather
from manyfit.data.tfrecord import files
from manyfit.data.tfrecord.features import Feature, FixedLenFeature, SequenceFeature, VarLenFeature
from manyfit.data.tfrecord.ragged import Ragged, as_objects
from manyfit.store import durable

log = logging.getLogger("manyfit")

FORMAT: Final = 1
WHOLE: Final = "whole"
CHECKED: Final = 1 << 33
"""The size in bytes up to which the checksums of cached columns are verified before use."""


class Columns:
    """Memory-mapped columns."""

    def __init__(self, folder: Path, features: Mapping[str, Feature]) -> None:
        self._fixed: dict[str, Any] = {}
        self._ragged: dict[str, tuple[Ragged, Feature]] = {}
        for i, (key, feature) in enumerate(features.items()):
            values = np.asarray(np.load(folder / f"{i}.npy", mmap_mode="r"))
            if is_ragged(feature):
                if isinstance(feature, SequenceFeature):
                    values = values.reshape(-1, *feature.shape)
                self._ragged[key] = Ragged(values, np.load(folder / f"{i}.splits.npy")), feature
            else:
                self._fixed[key] = values

    def gather(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the columns of some rows."""
        made = {key: gather(values, rows) for key, values in self._fixed.items()}
        for key, (whole, feature) in self._ragged.items():
            found = whole.take(rows)
            if isinstance(feature, FixedLenFeature):
                shape = (len(rows), *feature.shape)
                made[key] = as_objects([text.tobytes() for text in found.rows()]).reshape(shape)
            else:
                made[key] = found
        return made


def is_ragged(feature: Feature) -> bool:
    """Return whether rows have different lengths on disk."""
    return feature.row() is None


def check_columns(features: Mapping[str, Feature]) -> None:
    """Raise for features whose columns cannot be cached."""
    for key, feature in features.items():
        is_text = isinstance(feature, FixedLenFeature) and len(feature.shape) == 0
        is_numbers = isinstance(feature, VarLenFeature | SequenceFeature) and feature.dtype != "string"
        if is_ragged(feature) and not (is_text or is_numbers):
            raise UsageError(
                f"cache: the column {key!r} has no fixed size, so it cannot be cached; remove cache, or "
                "set a size (for images: resize_height and resize_width)"
            )


def load_or_decode(
    where: bool | str,
    fingerprint: str,
    rows: int,
    features: Mapping[str, Feature],
    read: Callable[[npt.NDArray[np.int64]], dict[str, Any]],
    together: int,
) -> Columns:
    """Return cached columns, or decode and cache them.

    The cache key is a hash of the data and of how its features are decoded.
    """
    check_columns(features)
    told = {key: [type(feature).__name__, _decoding(feature)] for key, feature in features.items()}
    text = json.dumps([FORMAT, fingerprint, rows, told], sort_keys=True, default=list)
    root = files.cache_root() / "columns" if where is True else Path(str(where))
    final = root / hashlib.sha256(text.encode()).hexdigest()[:32]
    if root.is_file():
        raise UsageError(f"cache: {root} is a file, not a folder")
    if not _is_whole(final):
        if final.is_dir():
            durable.discard(final)
        log.warning("decoding %d rows once to cache them in %s", rows, root)
        with durable.staging(root) as place:
            _write(place, rows, features, read, together)
            durable.write_new(place / WHOLE, json.dumps(_checksums(place)) + "\n")
            durable.sync_folder(place)
            try:
                place.rename(final)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was faster
                    raise
            durable.sync_folder(root)
    return Columns(final, features)


def _decoding(feature: Feature) -> dict[str, Any]:
    """Return the options that affect decoding; the results of `post_op` are not cached."""
    return {name: value for name, value in vars(feature).items() if name != "post_op"}


def _checksums(folder: Path) -> dict[str, list[int]]:
    """Return the size and the checksum of every column."""
    found = {}
    for file in sorted(folder.glob("*.npy")):
        crc = 0
        with file.open("rb") as data:
            while piece := data.read(1 << 24):
                crc = google_crc32c.extend(crc, piece)
        found[file.name] = [file.stat().st_size, crc]
    return found


def _is_whole(folder: Path) -> bool:
    """Return whether cached columns are intact; for very large ones, only sizes are compared."""
    try:
        known: dict[str, list[int]] = json.loads((folder / WHOLE).read_bytes())
        sizes = {name: (folder / name).stat().st_size for name in known}
        if any(sizes[name] != size for name, (size, _) in known.items()):
            return False
        return sum(sizes.values()) > CHECKED or _checksums(folder) == known
    except (OSError, ValueError, TypeError):
        return False


def _write(
    folder: Path,
    rows: int,
    features: Mapping[str, Feature],
    read: Callable[[npt.NDArray[np.int64]], dict[str, Any]],
    together: int,
) -> None:
    made: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        ragged: dict[str, _Ragged] = {}
        for i, (key, feature) in enumerate(features.items()):
            known = feature.row()
            if known is None:
                ragged[key] = stack.enter_context(_Ragged(folder, i))
            else:
                shape = (rows, *known[0])
                made[key] = np.lib.format.open_memmap(folder / f"{i}.npy", "w+", dtype=known[1], shape=shape)
        for begin in range(0, rows, together):
            end = min(begin + together, rows)
            for key, column in read(np.arange(begin, end)).items():
                if key in made:
                    made[key][begin:end] = column
                else:
                    ragged[key].add(column)
        for array in made.values():
            array.flush()
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())


class _Ragged:
    """A writer for a column of variable-length rows: all values, and the offsets of the rows."""

    def __init__(self, folder: Path, number: int) -> None:
        self._values = folder / f"{number}.npy"
        self._splits = folder / f"{number}.splits.npy"
        self._raw = (folder / f"{number}.raw").open("wb+")
        self._lengths: list[Any] = []
        self._dtype: Any = np.dtype(np.uint8)

    def __enter__(self) -> _Ragged:
        return self

    def add(self, rows: Any) -> None:
        """Append rows: a `Ragged`, or an array of bytes objects."""
        if isinstance(rows, Ragged):
            self._lengths.append(rows.lengths)
            self._dtype = rows.values.dtype
            self._raw.write(rows.flat().tobytes())
        else:
            flat = rows.reshape(-1)
            self._lengths.append(np.fromiter(map(len, flat), np.int64, len(flat)))
            self._raw.write(b"".join(flat))

    def __exit__(self, *_: object) -> None:
        self._raw.flush()
        size = self._raw.tell() // self._dtype.itemsize
        raw = np.memmap(self._raw, self._dtype, "r", shape=(size,)) if size else np.zeros(0, self._dtype)
        np.save(self._values, raw)
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        np.save(self._splits, np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))))
        self._raw.close()
        Path(self._raw.name).unlink()
