"""Rows that were prepared in advance, in shards: a source over memory-mapped files."""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import FolderError
from manyfit.core.files import read_text
from manyfit.data.batch import Batch
from manyfit.data.layout import Layout
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.row_files import RowFile, build_structure

LAYOUT: Final = "layout.json"
HASHES: Final = "hashes.npy"
FORMAT: Final = 1
REQUESTS: Final = ".requests"
"""A named pipe in the folder of a layout whose files are fetched when they are read: see `request_part`."""


class PreparedRows:
    """The rows of one split. A file is opened when one of its rows is read, and stays mapped.

    The layout of the shards is part of the data, and its fingerprint is that of the data.
    """

    is_constant = True

    def __init__(self, folder: Path, split: str, shards: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """`shards` has the files of each shard, with their names, rows and checksums."""
        self._folder = folder
        self._split = split
        self._files = [file for shard in shards for file in shard]
        self._begins = np.cumsum([0, *(file["rows"] for file in self._files)]).tolist()
        sizes = [sum(file["rows"] for file in shard) for shard in shards]
        self.layout = Layout(tuple(np.cumsum([0, *sizes]).tolist()), is_scattered=False)
        self._open: dict[int, RowFile] = {}

    def __len__(self) -> int:
        return int(self._begins[-1])

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, for the number of epochs in `order`."""
        for index in order.walk(len(self), start):
            yield self.gather(index)

    def gather(self, index: npt.NDArray[np.int64]) -> Batch:
        """Return some rows as a batch."""
        places = np.searchsorted(self._begins, index, side="right") - 1
        form = self._file(int(places[0])).form
        columns = {}
        for name, column in form.columns.items():
            if (places == places[0]).all():
                found = self._file(int(places[0])).column(name)[index - self._begins[int(places[0])]]
            else:
                found = np.empty((len(index), *column.shape), column.dtype)
                for place in np.unique(places).tolist():
                    rows = places == place
                    found[rows] = self._file(place).column(name)[index[rows] - self._begins[place]]
            columns[name] = found
        target = None if form.target is None else build_structure(form.target, columns)
        return Batch(build_structure(form.inputs, columns), target, index)

    def _file(self, number: int) -> RowFile:
        found = self._open.get(number)
        if found is None:
            entry = self._files[number]
            path = self._folder / self._split / entry["name"]
            if not path.exists() and (self._folder / REQUESTS).exists():
                request_part(self._folder, f"{self._split}/{entry['name']}")
            try:
                size = path.stat().st_size
            except OSError as error:
                raise FolderError(f"{path} cannot be read: {error}") from error
            if size != entry["bytes"]:
                raise FolderError(f"{path} has changed: it has {size} bytes, not {entry['bytes']}")
            found = self._open[number] = RowFile(path)
        return found

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows."""
        known: dict[int, list[str]] = {}
        found = []
        for row in index.tolist():
            place = bisect.bisect_right(self._begins, row) - 1
            if place not in known:
                known[place] = self._file(place).ids()
            found.append(known[place][row - self._begins[place]])
        return found

    def fingerprint(self) -> str:
        """Return the fingerprint of the layout, which has the checksums of all files."""
        text = json.dumps([[file["digest"], file["rows"]] for file in self._files])
        return hashlib.sha256(text.encode()).hexdigest()

    def contents(self, most: int) -> Contents:
        """Yield the hashes of at most `most` rows, which are stored: no shard is read for them."""
        path = self._folder / self._split / HASHES
        try:
            hashes = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FolderError(f"{path} cannot be read: {error}") from error
        for row in spread(len(self), most).tolist():
            yield row, int(hashes[row])


def read_layout(folder: Path) -> dict[str, Any]:
    """Return the layout of prepared data."""
    path = folder / LAYOUT
    if not path.is_file():
        raise FolderError(f"{folder} has no {LAYOUT}: prepare the data with manyfit data etl")
    try:
        found: dict[str, Any] = json.loads(read_text(path))
        if found["format"] != FORMAT:
            raise FolderError(f"{path} has format {found['format']}, but this version reads {FORMAT}")
        for split in found["splits"].values():
            for shard in split["shards"]:
                for file in shard:
                    if Path(file["name"]).name != file["name"] or file["rows"] < 0:
                        raise FolderError(f"{path} is damaged: {file['name']!r:.60}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(f"{path} is damaged: {error!r}") from error
    return found


def find_layout_folder(folder: Path) -> Path:
    """Return the folder of a layout, which may be the only one below the given folder."""
    if (folder / LAYOUT).is_file():
        return folder
    found = sorted(path.parent for path in folder.glob(f"*/{LAYOUT}"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise FolderError(f"{folder} has several layouts of prepared data: {names}; name one of them")
    raise FolderError(f"{folder} has no prepared data: run manyfit data etl")


def list_parts(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the files with rows, as the layout describes them, by their paths in its folder."""
    return {
        f"{split}/{file['name']}": file
        for split, found in read_layout(folder)["splits"].items()
        for shard in found["shards"]
        for file in shard
        if file["rows"]
    }


def request_part(folder: Path, name: str) -> None:
    """Request a file of a layout from the worker of this node, and wait until it is here.

    The answer, an empty line or what is wrong, comes through a named pipe that is made for it.
    """
    reply = folder / f".reply-{uuid.uuid4().hex}"
    os.mkfifo(reply, 0o600)
    try:
        answer = os.open(reply, os.O_RDWR | os.O_CLOEXEC)  # also for writing, so that opening does not block
        try:
            requests = os.open(folder / REQUESTS, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(requests, f"{reply.name} {name}\n".encode())
            finally:
                os.close(requests)
            problem = os.read(answer, 4096).decode(errors="replace").strip()
        finally:
            os.close(answer)
    except OSError as error:
        raise FolderError(f"{folder / name} could not be requested from the driver: {error}") from error
    finally:
        reply.unlink(missing_ok=True)
    if problem:
        raise FolderError(f"{folder / name} could not be fetched: {problem}")


def find_missing(folder: Path) -> Path | None:
    """Return the first file of prepared data that is missing or has another size."""
    for split, found in read_layout(folder)["splits"].items():
        for file in (file for shard in found["shards"] for file in shard if file["rows"]):
            path = Path(folder, split, file["name"])
            if not path.is_file() or path.stat().st_size != file["bytes"]:
                return path
        if not (folder / split / HASHES).is_file():
            return Path(folder, split, HASHES)
    return None


def digest_layout(folder: Path, splits: Sequence[str]) -> str:
    """Return a hash of the rows of some splits, and of their division into shards."""
    found = read_layout(folder)["splits"]
    parts = {
        split: [[[file["digest"], file["rows"]] for file in shard] for shard in found[split]["shards"]]
        for split in splits
        if split in found
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def open_split(folder: Path, split: str) -> PreparedRows | None:
    """Return the prepared rows of a split; None if there are none."""
    found = read_layout(folder)["splits"].get(split)
    if found is None or not any(file["rows"] for shard in found["shards"] for file in shard):
        return None
    shards = [[file for file in shard if file["rows"]] for shard in found["shards"]]
    return PreparedRows(folder, split, [shard for shard in shards if shard])
