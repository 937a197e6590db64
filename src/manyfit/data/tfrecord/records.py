"""The records of a data set: all its files as one sequence with random access."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data.tfrecord import detection, files, frames, metadata, streams, verification
from manyfit.data.tfrecord.errors import DataChanged, RecordError
from manyfit.data.tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    Mapper,
    SequenceFeature,
    VarLenFeature,
    column_of,
    wire_type,
)
from manyfit.data.tfrecord.frames import Frames
from manyfit.data.tfrecord.message import KINDS, NONE
from manyfit.data.tfrecord.metadata import FileEntry
from manyfit.data.tfrecord.ragged import as_objects
from manyfit.data.tfrecord.wire import PAD, SEQUENCE, Buffer, Malformed, find_sequences, spans

log = logging.getLogger("manyfit")

EMPTY: Final = ("", KINDS[NONE], SEQUENCE + KINDS[NONE])
"""The kinds that the index gives for a feature without values."""


class RecordFile:
    """One file. It is open only during a read, so that a data set can have any number of files."""

    def __init__(self, path: str, entry: FileEntry, in_memory: bool) -> None:
        self.path = path
        self.entry = entry
        self._in_memory = in_memory
        self._place: bytes | Path | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def frames(self) -> Frames:
        """The positions and checksums of its records."""
        assert self.entry.frames is not None
        return self.entry.frames

    def parts(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Return ranges of the decompressed bytes; shorter ones where the file ends too early."""
        with self._lock:
            if self._place is None:
                self._place = self._locate()
        place = self._place
        if isinstance(place, bytes):
            return [place[begin:end] for begin, end in zip(begins, ends, strict=True)]
        with streams.open_bytes(place) as data:
            return data.parts(begins, ends)

    def _locate(self) -> bytes | Path:
        """Return the decompressed bytes, or the path of a file that holds them."""
        local, entry = files.local_copy(self.path), self.entry
        with streams.open_bytes(local) as data:
            if len(data) != entry.size:
                raise DataChanged(
                    f"{self.path} has {len(data):,} bytes, but had {entry.size:,} when it was indexed"
                )
            detection.check_compression(data[:16], entry.compression, self.path)
            if not entry.compression:
                return local
            size = self.frames.size
            return streams.decompress(data, entry.compression, self.path, size, entry.digest, self._in_memory)


class Records:
    """Several files as one sequence of records."""

    def __init__(self, known: Mapping[str, FileEntry]) -> None:
        entries = {path: complete(path, entry) for path, entry in known.items()}
        packed = sum(e.frames.size for e in entries.values() if e.compression and e.frames is not None)
        self.files = [RecordFile(p, entry, packed <= files.IN_MEMORY) for p, entry in entries.items()]
        self._ends = np.cumsum([len(file.frames) for file in self.files], dtype=np.int64)
        self._names = _unique_names([file.path for file in self.files])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def digests(self) -> list[str]:
        """Return the hash of each file."""
        return [file.entry.digest for file in self.files]

    def where(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the file number of each row, and the number of its record in the file."""
        which = np.searchsorted(self._ends, rows, side="right")
        begins = np.concatenate((np.zeros(1, np.int64), self._ends))
        return which, rows - begins[which]

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Return row IDs: the name of the file and the number of the record."""
        which, place = self.where(np.asarray(rows, np.int64))
        return [f"{self._names[f]}:{p}" for f, p in zip(which.tolist(), place.tolist(), strict=True)]

    def read(self, rows: npt.NDArray[np.int64]) -> Buffer:
        """Read some records, in any order; raise if one of them is not what was indexed."""
        which, place = self.where(rows)
        begins, ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        known = np.zeros(len(rows), np.uint32)
        is_first = np.ones(len(rows), bool)  # the first of consecutive records, which are read at once
        is_first[1:] = (np.diff(which) != 0) | (np.diff(place) != 1)
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(rows))[: len(first)] - 1
        pieces = np.zeros(len(first), object)
        for number in np.unique(which).tolist():
            file, here = self.files[number], which == number
            begins[here], ends[here] = file.frames.offsets[place[here]], file.frames.offsets[place[here] + 1]
            known[here] = file.frames.checksums[place[here]]
            runs = np.flatnonzero(here[first])
            bounds = begins[first[runs]].tolist(), ends[last[runs]].tolist()
            pieces[runs] = as_objects(file.parts(*bounds))
        wanted = ends[last] - begins[first]
        for i in np.flatnonzero(np.fromiter(map(len, pieces), np.int64, len(pieces)) < wanted).tolist():
            pieces[i] += bytes(int(wanted[i]) - len(pieces[i]))  # zeros, which fail the checksum below
        data = b"".join([*pieces, bytes(PAD)])
        stops = np.cumsum(ends - begins)
        starts = stops - (ends - begins)
        wrong = frames.first_wrong(data, starts, stops, known)
        if wrong is not None:
            file, size = self.files[int(which[wrong])], int(ends[wrong] - begins[wrong])
            frame = data[int(starts[wrong]) : int(stops[wrong])]
            seen = file.parts([int(begins[wrong])], [int(ends[wrong])])[0]
            shown = frame if len(seen) == size else seen
            raise frames.why(shown, size, int(place[wrong]), file.path)
        return Buffer(data, starts + frames.HEADER.size, stops - frames.FOOTER.size)

    def columns(
        self, rows: npt.NDArray[np.int64], features: Mapping[str, tuple[str, Feature]], each: Mapper = map
    ) -> dict[str, Any]:
        """Read features, given as `{key: (name, feature)}`, of some records; return a column for each key."""
        buffer = self.read(rows)
        name = ""
        try:
            lists = {wanted for wanted, feature in features.values() if isinstance(feature, SequenceFeature)}
            plain = [wanted for wanted, each in features.values() if not isinstance(each, SequenceFeature)]
            found, steps = spans(buffer, dict.fromkeys(plain)), find_sequences(buffer, lists)
            made = {}
            for key, (name, feature) in features.items():
                here = steps if isinstance(feature, SequenceFeature) else found
                made[key] = column_of(feature, buffer, here[name], each)
            return made
        except Malformed as error:
            which, place = self.where(rows[error.row : error.row + 1])
            reason = f"the feature {name!r} {error.reason}" if name else error.reason
            raise RecordError(self.files[int(which[0])].path, reason, int(place[0])) from None

    def check(self, features: Sequence[tuple[str, Feature]]) -> None:
        """Check against the index, before reading, that every file has the required features."""
        filled = [file for file in self.files if file.entry.records and file.entry.features]
        for file in filled:
            for name, feature in features:
                kinds = [k for k in file.entry.features.get(name, "").split("|") if k not in EMPTY]
                wanted = describe_contents(feature)
                if name not in file.entry.features and needs_values(feature):
                    raise RecordError(file.path, f"has no feature {name!r}{_instead(name, [file])}")
                if kinds and wanted not in kinds:
                    raise RecordError(file.path, f"the feature {name!r} holds {kinds[0]}, not {wanted}")
        for name, feature in features:
            if not filled or any(name in file.entry.features for file in filled):
                continue
            told = f"no record has a feature {name!r}{_instead(name, filled)}"
            if isinstance(feature, FixedLenFeature):
                log.warning("%s; every row gets its default_value", told)
            elif not getattr(feature, "allow_missing", False):
                hint = (
                    " (if this is intended, set allow_missing: true)"
                    if hasattr(feature, "allow_missing")
                    else ""
                )
                raise UsageError(told + hint)


def _instead(name: str, files: Sequence[RecordFile]) -> str:
    """Return a hint for a missing feature: the nearest name, or the available ones."""
    known = list(dict.fromkeys(name for file in files for name in file.entry.features))
    best = nearest(name, known)
    return f"; did you mean {best!r}?" if best else f"; there are {listing(known, 12)}"


def describe_contents(feature: Feature) -> str:
    """Return the kind of values of a feature, as named in the index."""
    before = SEQUENCE if isinstance(feature, SequenceFeature) else ""
    return before + KINDS[wire_type(feature)]


def needs_values(feature: Feature) -> bool:
    """Return whether a record without this feature is an error."""
    if isinstance(feature, FixedLenFeature):
        return feature.default_value is None
    if isinstance(feature, ImageFeature) and feature.pad:
        return False
    return not (isinstance(feature, VarLenFeature) or getattr(feature, "allow_missing", False))


def complete(path: str, entry: FileEntry) -> FileEntry:
    """Return a complete entry; read the file if another program wrote an entry without positions."""
    if entry.frames is not None:
        return entry
    for finding in verification.compare_file(path, entry, deep=True):
        raise DataChanged(str(finding))
    return metadata.examine_file(path)


def _unique_names(paths: Sequence[str]) -> list[str]:
    """Return unique names of files: without folders if that is sufficient."""
    names = [files.name_of(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [path.replace("\\", "/").split("/") for path in paths]
    shared = 0
    while len({tuple(part[: shared + 1]) for part in parts}) == 1:
        shared += 1
    return ["/".join(part[shared:]) for part in parts]
