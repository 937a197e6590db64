"""Conversion of other formats to TFRecord files: folders of images, CSV, text, arrays, HDF5."""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.core.processes import die_with_server
from manyfit.data.tfrecord import indexing, metadata
from manyfit.data.tfrecord.tables.arrays import Arrays
from manyfit.data.tfrecord.tables.base import CLASSES, LABELS, RowTable
from manyfit.data.tfrecord.tables.csv_file import Csv
from manyfit.data.tfrecord.tables.image_folder import ImageTable
from manyfit.data.tfrecord.tables.text_file import VOCABULARY, Text
from manyfit.data.tfrecord.writer import RecordWriter, encode, shard_names
from manyfit.store import durable

log = logging.getLogger("manyfit")
SHARD: Final = 1 << 27
"""The approximate number of bytes of a shard if the number of shards is not given."""
PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_/.-]*")
WORDS_OF_YAML: Final = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML does not read as text."""
ODD: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML does not accept unescaped, or reads as line breaks."""
KINDS: Final = ("images", "csv", "text", "arrays", "hdf5")


def table_of(
    source: Path,
    kind: str | None = None,
    column: str | None = None,
    vocabulary: Path | None = None,
    most: int | None = None,
    beside: Path | None = None,
    least: int | None = None,
    names: Sequence[str] | None = None,
) -> RowTable:
    """Return the rows of a folder or file, as the given kind or by its name.

    `beside` is the target folder: splits that are already in it share their classes and vocabulary.
    """
    endings = {
        ".csv": "csv",
        ".txt": "text",
        ".npz": "arrays",
        ".npy": "arrays",
        ".h5": "hdf5",
        ".hdf5": "hdf5",
    }
    if not source.exists():
        raise UsageError(f"{source} does not exist")
    wants_text = any(given is not None for given in (column, vocabulary, most, least))
    if names is not None and source.suffix.lower() != ".csv" and kind != "csv":
        raise UsageError(f"{source} is not a CSV file, so its columns cannot be named")
    found = kind or ("images" if source.is_dir() else endings.get(source.suffix.lower(), ""))
    found = "text" if found == "csv" and kind is None and wants_text else found
    file = beside / CLASSES if beside is not None else None
    classes = _read_class_names(file) if file and file.is_file() else None
    if found == "images" and source.is_dir():
        return ImageTable(source, classes)
    if found == "text" and source.is_file():
        known = beside / VOCABULARY if beside is not None and vocabulary is None else None
        known = known if known and known.is_file() else vocabulary
        if known is not None and (most is not None or least is not None):
            log.warning("the vocabulary is %s, so --words and --min-count have no effect", known)
        return Text(source, column, known, most, classes, least, names)
    if found == "csv" and source.is_file():
        return Csv(source, classes, names)
    if found in ("arrays", "hdf5") and source.is_file():
        return Arrays(source)
    wanted = "a folder of images, .csv, .txt, .npz, .npy, .h5 or .hdf5"
    raise UsageError(f"{source} cannot be converted{f' as {kind}' if kind else ''}: it must be {wanted}")


def _read_class_names(file: Path) -> list[str]:
    """Return the names of the classes, one per line."""
    try:
        text = file.read_text(encoding="utf-8")
        return text.removesuffix("\n").split("\n") if text else []
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


@dataclass(frozen=True)
class Written:
    """A file that was written."""

    file: str
    records: int


def write_shards(
    table: RowTable,
    folder: Path,
    prefix: str = "train",
    shards: int | None = None,
    compression: str = "",
    workers: int = 1,
    force: bool = False,
) -> Iterator[Written]:
    """Write rows to shards, several at a time, and index the shards when all are complete."""
    if not len(table):
        raise UsageError("there are no rows to convert")
    broken = [name for name in table.classes if "\n" in name or "\r" in name]
    if broken:
        raise UsageError(
            f"the class name {broken[0]!r} has a line break, but {CLASSES} holds one name per line; rename it"
        )
    count = shards or max(1, min(len(table), round(table.size / SHARD)))
    if count > len(table):
        raise UsageError(f"{len(table)} rows cannot be split into {count} shards")
    files = [folder / name for name in shard_names(prefix, count, compression)]
    shard = re.compile(rf"{re.escape(prefix)}-\d{{5}}-of-\d{{5}}(\.gz|\.zz)?")
    here = sorted(p for p in folder.iterdir() if shard.fullmatch(p.name)) if folder.is_dir() else []
    known = metadata.load_index(str(folder))  # raise now, before the conversion, if it cannot be read
    if here and not force:
        names = listing([file.name for file in here], 3)
        raise UsageError(f"{folder} already has files of this name: {names}; --force replaces them")
    bounds = itertools.pairwise(round(i * len(table) / count) for i in range(count + 1))
    with durable.staging(folder) as place:
        jobs = [
            (table, place / file.name, begin, end, compression)
            for file, (begin, end) in zip(files, bounds, strict=True)
        ]
        if workers > 1 and count > 1:
            context = multiprocessing.get_context("forkserver")  # fork is unsafe if threads are running
            with ProcessPoolExecutor(min(workers, count), context, die_with_server) as pool:
                yield from pool.map(_shard, jobs)
        else:
            yield from map(_shard, jobs)
        entries = {file.name: metadata.examine_file(str(place / file.name)) for file in files}
        # Names of classes first: after a crash, labels without them would get other numbers.
        for name, text in table.beside().items():
            durable.write_file(folder / name, text)
        for old in here:  # only now is every file complete that replaces them
            old.unlink()
        for file in files:
            (place / file.name).replace(file)
    durable.sync_folder(folder)
    indexing.merge_index(str(folder), entries, [name for name in known if shard.fullmatch(name)])


def _shard(job: tuple[RowTable, Path, int, int, str]) -> Written:
    table, file, begin, end, compression = job
    with RecordWriter(file, compression) as writer:
        for row in table.rows(begin, end):
            writer.write(encode(row))
    return Written(file.name, writer.count)


def as_yaml(features: Mapping[str, str], labels: Sequence[str] = ("image/class/label", *LABELS)) -> str:
    """Return the feeder options that read the converted files, as YAML for a config."""
    label = next((name for name in features if name in labels), None)
    lines = ["features_map:", *(f"  {_key(n)}: {how}" for n, how in features.items() if n != label)]
    if label is not None:
        lines += ["labels_map:", f"  {_key(label)}: {features[label]}"]
    return "\n".join(lines)


def _key(name: str) -> str:
    """Return a name as a YAML key, quoted if necessary."""
    if PLAIN.fullmatch(name) and name.lower() not in WORDS_OF_YAML:
        return name
    return ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(name, ensure_ascii=False))
