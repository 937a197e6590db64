"""Decoded columns, kept as files that are mapped into memory: what is decoded once is not decoded again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.source import gather
from manyfit.data.tfrecord import files
from manyfit.data.tfrecord.features import Feature, FixedLenFeature, VarLenFeature, as_objects
from manyfit.store import durable

FORMAT: Final = 1


class Columns:
    """Columns of some rows, mapped into memory."""

    def __init__(self, folder: Path, features: Mapping[str, Feature]) -> None:
        self._fixed: dict[str, Any] = {}
        self._ragged: dict[str, tuple[Any, Any, Feature]] = {}
        for i, (key, feature) in enumerate(features.items()):
            values = np.asarray(np.load(folder / f"{i}.npy", mmap_mode="r"))
            if is_ragged(feature):
                self._ragged[key] = values, np.load(folder / f"{i}.splits.npy"), feature
            else:
                self._fixed[key] = values

    def gather(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The columns of some rows."""
        made = {key: gather(values, rows) for key, values in self._fixed.items()}
        for key, (values, splits, feature) in self._ragged.items():
            bounds = zip(splits[rows].tolist(), splits[rows + 1].tolist(), strict=True)
            pieces = [values[a:b].copy() for a, b in bounds]
            if isinstance(feature, FixedLenFeature):
                shape = (len(rows), *feature.shape)
                made[key] = as_objects([piece.tobytes() for piece in pieces]).reshape(shape)
            else:
                made[key] = as_objects(pieces)
        return made


def is_ragged(feature: Feature) -> bool:
    """Whether rows have different lengths on disk."""
    return feature.row() is None


def check(features: Mapping[str, Feature]) -> None:
    """Refuse features whose columns cannot be kept."""
    for key, feature in features.items():
        is_text = isinstance(feature, FixedLenFeature) and len(feature.shape) == 0
        is_numbers = isinstance(feature, VarLenFeature) and feature.dtype != "string"
        if is_ragged(feature) and not (is_text or is_numbers):
            raise UsageError(
                f"cache: the column {key!r} has no fixed size, so it cannot be kept; leave cache out, or "
                "give it one (an image: resize_height and resize_width)"
            )


def kept(
    place: bool | str,
    fingerprint: str,
    rows: int,
    features: Mapping[str, Feature],
    read: Callable[[npt.NDArray[np.int64]], dict[str, Any]],
    together: int,
) -> Columns:
    """Columns that were kept before, or are decoded and kept now; by the data and by what is made of it."""
    check(features)
    told = {key: [type(feature).__name__, vars(feature)] for key, feature in features.items()}
    text = json.dumps([FORMAT, fingerprint, rows, told], sort_keys=True, default=list)
    root = files.cache_root() / "columns" if place is True else Path(str(place))
    final = root / hashlib.sha256(text.encode()).hexdigest()[:32]
    if not (final / "whole").is_file():
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=root, prefix=".new-"))
        try:
            _write(temporary, rows, features, read, together)
            durable.write_new(temporary / "whole", text + "\n")
            with contextlib.suppress(FileExistsError):
                if not (final / "whole").is_file():  # else another process was quicker
                    durable.commit_folder(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Columns(final, features)


def _write(
    folder: Path,
    rows: int,
    features: Mapping[str, Feature],
    read: Callable[[npt.NDArray[np.int64]], dict[str, Any]],
    together: int,
) -> None:
    made: dict[str, Any] = {}
    pieces: dict[str, tuple[list[Any], list[int]]] = {}
    for i, (key, feature) in enumerate(features.items()):
        known = feature.row()
        if known is None:
            pieces[key] = [], []
        else:
            made[key] = np.lib.format.open_memmap(
                folder / f"{i}.npy", "w+", dtype=known[1], shape=(rows, *known[0])
            )
    for begin in range(0, rows, together):
        end = min(begin + together, rows)
        found = read(np.arange(begin, end))
        for key, column in found.items():
            if key in made:
                made[key][begin:end] = column
            else:
                flat = column.reshape(-1)
                pieces[key][1].extend(map(len, flat))
                texts = len(flat) and isinstance(flat[0], bytes)
                joined = np.frombuffer(b"".join(flat), np.uint8) if texts else np.concatenate(flat)
                pieces[key][0].append(joined)
    for array in made.values():
        array.flush()
    for i, key in enumerate(features):
        if key in pieces:
            parts, lengths = pieces[key]
            values = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
            np.save(folder / f"{i}.npy", values)
            np.save(folder / f"{i}.splits.npy", np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
