"""Other kinds of data as TFRecord files: folders of images, CSV, text, arrays, HDF5."""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import multiprocessing
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import ExtraMissing, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, nearest
from manyfit.core.processes import die_with_server
from manyfit.data.tfrecord import metadata
from manyfit.data.tfrecord.writer import RecordWriter, encode, shard_names
from manyfit.store import durable

log = logging.getLogger("manyfit")

AS_THEY_ARE: Final = (".jpg", ".jpeg", ".png")
IMAGES: Final = (*AS_THEY_ARE, ".bmp", ".gif", ".tif", ".tiff", ".webp")
SHARD: Final = 1 << 27
"""Bytes of a shard, more or less, if nobody says how many there shall be."""
UNKNOWN: Final = "<unk>"
NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(nan|NaN|inf|Infinity)")
WORDS: Final = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
VOCABULARY: Final = "_vocabulary.txt"
CLASSES: Final = "_classes.txt"
LABELS: Final = ("label", "target", "class")
MOST_CLASSES: Final = 10_000
PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_/.-]*")
WORDS_OF_YAML: Final = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Which YAML takes for something else than text."""
ODD: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Which YAML does not take as it is, or takes for the end of a line."""

Row = Mapping[str, Any]


class RowTable(ABC):
    """Rows that can be read from any place on."""

    size: int = 0
    """Bytes, more or less."""
    classes: Sequence[str] = ()
    """The names of the classes, by number, if labels are numbers that stand for names."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Some rows, as values by name."""

    @abstractmethod
    def features(self) -> dict[str, str]:
        """How a feeder reads each feature, as YAML."""

    def beside(self) -> dict[str, str]:
        """Further files that belong to the records."""
        return {CLASSES: "".join(f"{name}\n" for name in self.classes)} if self.classes else {}


class ImageFolder(RowTable):
    """A folder with a folder for each class. Classes are numbered in the order of their names."""

    def __init__(self, folder: Path, classes: Sequence[str] | None = None) -> None:
        here = sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] not in "._")
        self.classes = list(classes) if classes is not None else here
        for name in here:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{folder}: the name of the folder {name!a} is not UTF-8") from None
        unknown = [name for name in here if name not in self.classes]
        if unknown:
            raise UsageError(
                f"{folder} has classes that {CLASSES}, beside the other records, does not name: "
                f"{listing(unknown)}"
            )
        found = {
            name: sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in IMAGES and p.is_file())
            for name in self.classes
        }
        self.files = [(file, number) for number, name in enumerate(self.classes) for file in found[name]]
        if not self.files:
            raise UsageError(f"{folder} has no folders with images in them ({', '.join(IMAGES)})")
        self.folder = folder
        self.size = sum(file.stat().st_size for file, _ in self.files)
        # Classes are spread over the files: a shard of one class would be a poor sample.
        order = np.random.RandomState(np.random.MT19937(0)).permutation(len(self.files))
        self.files = [self.files[i] for i in order]

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """The image as it is, its class, and what it is called."""
        image: Any = import_optional("PIL.Image", "images")
        for file, number in self.files[begin:end]:
            data = file.read_bytes()
            try:
                opened = image.open(io.BytesIO(data))
                width, height, kind = opened.width, opened.height, str(opened.format).lower()
                if kind not in ("jpeg", "png"):
                    out = io.BytesIO()
                    opened.convert("RGBA" if "A" in opened.mode else "RGB").save(out, "PNG")
                    data, kind = out.getvalue(), "png"
                else:
                    opened.load()
            except MemoryError:
                raise
            except Exception as error:  # a damaged image makes its decoder fail in whatever way
                raise UsageError(f"{file} is not an image that can be read: {error}") from error
            yield {
                "image/encoded": data,
                "image/format": kind,
                "image/height": height,
                "image/width": width,
                "image/class/label": number,
                "image/class/text": self.classes[number],
                "image/filename": str(file.relative_to(self.folder)),
            }

    def _size(self) -> str:
        """How images are made to have one size, if they have several."""
        image: Any = import_optional("PIL.Image", "images")
        sizes = set()
        for file, _ in self.files[:200]:
            with image.open(file) as opened:
                sizes.add(opened.size)
        return "" if len(sizes) == 1 else "resize_height: 224, resize_width: 224, "

    def features(self) -> dict[str, str]:
        """An image and a class."""
        return {
            "image/encoded": f"{{type: ImageFeature, {self._size()}channels_first: true}}",
            "image/class/label": "{type: FixedLenFeature, shape: [1], dtype: int64}",
        }


class Csv(RowTable):
    """A CSV file. A column is whole numbers, numbers or text, as all of its cells say.

    Its first row says what the columns are called, unless `names` are given; if those are empty, they are
    called c0, c1 … A label that is text becomes the number of its class, in the order of their names.
    """

    def __init__(
        self, file: Path, classes: Sequence[str] | None = None, names: Sequence[str] | None = None
    ) -> None:
        self.first = 1 if names is None else 0
        self.file = file
        self.size = file.stat().st_size
        self.count = 0
        self.kinds: dict[str, str] = {}
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            cells = self._read(reader)
            first = next(cells, [])
            self.header = first if names is None else list(names) or [f"c{i}" for i in range(len(first))]
            if "" in self.header:
                self.header = self._name_columns(self.header, is_given=names is not None)
            if len(self.header) != len(first):
                raise UsageError(f"{file} has {len(first)} columns, but {len(self.header)} names were given")
            if names is not None:
                cells = itertools.chain([first], cells)
            elif numbers := [cell for cell in first if NUMBER.fullmatch(cell)]:
                log.warning(
                    "the first row of %s is read as the names of its columns, but %s looks like data: "
                    "--no-header, or --names, if it is",
                    file,
                    numbers[0],
                )
            if not self.header or len(set(self.header)) != len(self.header):
                raise UsageError(f"{file} has no header, or one in which a name stands twice")
            label = next((i for i, name in enumerate(self.header) if name in LABELS), None)
            seen: set[str] = set()
            ranks = [0] * len(self.header)
            empty = [False] * len(self.header)
            for row in cells:
                if len(row) != len(self.header):
                    where = f"{file}:{reader.line_num}"
                    raise UsageError(f"{where}: {len(row)} cells, but the header has {len(self.header)}")
                ranks = [max(rank, _rank(cell)) for rank, cell in zip(ranks, row, strict=True)]
                empty = [was or cell == "" for was, cell in zip(empty, row, strict=True)]
                self.count += 1
                if label is not None and len(seen) <= MOST_CLASSES:
                    seen.add(row[label])
        self.label = self.header[label] if label is not None and ranks[label] == 3 else None
        if self.label is not None and len(seen) <= MOST_CLASSES:
            self.classes = list(classes) if classes is not None else sorted(seen - {""})
            unknown = sorted(seen - {"", *self.classes})
            if unknown:
                told = f"classes that {CLASSES}, beside the other records, does not name: {listing(unknown)}"
                raise UsageError(f"{file} has {told}")
            ranks[label] = 1  # type: ignore[index]
        else:
            self.label = None
        kinds = ("int64", "int64", "float32", "string")
        self.kinds = {name: kinds[rank] for name, rank in zip(self.header, ranks, strict=True)}
        self.gaps = {name for name, has_gaps in zip(self.header, empty, strict=True) if has_gaps}

    def _name_columns(self, header: list[str], is_given: bool) -> list[str]:
        """A name for each column; a table that pandas has written has none for the first of them."""
        place = header.index("")
        if is_given:
            raise UsageError(f"--names leaves column {place + 1} of {self.file} without a name")
        log.warning("column %d of %s has no name; it is called c%d", place + 1, self.file, place)
        return [name or f"c{i}" for i, name in enumerate(header)]

    def _read(self, reader: Any) -> Iterator[list[str]]:
        try:
            yield from (row for row in reader if row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{self.file}:{reader.line_num + 1}: {error}") from error

    def __len__(self) -> int:
        return self.count

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """A value for each cell; an empty one is left out."""
        read = {"int64": int, "float32": float, "string": str}
        with self.file.open(newline="", encoding="utf-8-sig") as stream:
            for row in itertools.islice(self._read(csv.reader(stream)), begin + self.first, end + self.first):
                cells = {name: cell for name, cell in zip(self.header, row, strict=True) if cell != ""}
                if self.label is not None and self.label in cells:
                    cells[self.label] = str(self.classes.index(cells[self.label]))
                yield {name: read[self.kinds[name]](cell) for name, cell in cells.items()}

    def features(self) -> dict[str, str]:
        """One value for each column, and something where cells are empty."""
        fill = {"int64": "0", "float32": ".nan", "string": "''"}
        return {
            name: f"{{type: FixedLenFeature, shape: [1], dtype: {kind}"
            + (f", default_value: {fill[kind]}}}" if name in self.gaps else "}")
            for name, kind in self.kinds.items()
        }


def _rank(cell: str) -> int:
    """0 for nothing, 1 for a whole number, 2 for a number, 3 for text."""
    if cell == "":
        return 0
    if re.fullmatch(r"[-+]?[0-9]+", cell):
        return 1 if len(cell) < 25 and -(1 << 63) <= int(cell) < 1 << 63 else 3
    return 2 if NUMBER.fullmatch(cell) else 3


class Text(RowTable):
    """Texts, one a line, or a column of a CSV; words become numbers by a vocabulary.

    Number 0 is for padding, 1 for words that the vocabulary has not.
    """

    def __init__(
        self,
        file: Path,
        column: str | None,
        vocabulary: Path | None,
        most: int | None,
        classes: Sequence[str] | None = None,
        least: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.table = Csv(file, classes, names) if file.suffix.lower() == ".csv" else None
        self.classes = self.table.classes if self.table is not None else ()
        self.file = file
        self.column = column or "text"
        self.size = file.stat().st_size
        if self.table is not None and self.column not in self.table.header:
            best = nearest(self.column, self.table.header)
            hint = f"; did you mean {best}?" if best else f"; it has {listing(self.table.header)}"
            raise UsageError(f"{file} has no column {self.column!r}{hint}")
        taken = [
            name for name in ("tokens", "length") if self.table is not None and name in self.table.header
        ]
        if [name for name in taken if name != self.column]:
            raise UsageError(
                f"{file} has a column {taken[0]!r}, which is what the words are called; rename it"
            )
        self.count = 0
        seen: Counter[str] = Counter()
        for row in self._texts(0, None):
            self.count += 1
            if vocabulary is None:
                seen.update(words(str(row.get(self.column, ""))))
        if vocabulary is not None:
            try:
                listed = vocabulary.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{vocabulary} cannot be read: {error}") from error
            self.words = [word for word in listed if word not in ("<pad>", UNKNOWN)]
        else:
            ranked = sorted(seen.items(), key=lambda found: (-found[1], found[0]))
            self.words = [word for word, count in ranked[:most] if count >= (least or 1)]
        self.numbers = {word: number for number, word in enumerate(self.words, 2)}

    def _texts(self, begin: int, end: int | None) -> Iterator[Row]:
        if self.table is not None:
            yield from self.table.rows(begin, len(self.table) if end is None else end)
            return
        with self.file.open(encoding="utf-8-sig") as stream:
            try:
                for line in itertools.islice((line for line in stream if line.strip()), begin, end):
                    yield {self.column: line.rstrip("\n")}
            except UnicodeDecodeError as error:
                raise UsageError(f"{self.file} is not UTF-8: {error}") from error

    def __len__(self) -> int:
        return self.count

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """The numbers of the words, how many they are, and the other columns."""
        for row in self._texts(begin, end):
            found = [self.numbers.get(word, 1) for word in words(str(row.get(self.column, "")))]
            rest = {name: value for name, value in row.items() if name != self.column}
            yield {"tokens": np.array(found, np.int64), "length": len(found), **rest}

    def features(self) -> dict[str, str]:
        """Numbers of words, and the other columns."""
        rest = self.table.features() if self.table is not None else {}
        return {"tokens": "{type: VarLenFeature, dtype: int64}"} | {
            name: how for name, how in rest.items() if name != self.column
        }

    def beside(self) -> dict[str, str]:
        """The vocabulary: the number of a word is its line, counted from 0."""
        listed = "".join(f"{word}\n" for word in ("<pad>", UNKNOWN, *self.words))
        return {**super().beside(), VOCABULARY: listed}


def words(text: str) -> list[str]:
    """The words of a text, and its other signs, in small letters.

    >>> words("It's fine.")
    ["it's", 'fine', '.']
    """
    return WORDS.findall(text.lower())


class Arrays(RowTable):
    """Arrays with the same number of rows: an .npz, an .npy, or the data sets of an HDF5 file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._is_hdf5 = file.suffix.lower() in (".h5", ".hdf5")
        self.shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with self._open() as arrays:
            for name, array in arrays.items():
                if not hasattr(array, "shape") or not hasattr(array, "dtype"):
                    raise UsageError(f"{file}: {name!r} is not an array")
                if array.dtype == object and not _is_text(array):
                    raise UsageError(f"{file}: the rows of {name!r} are neither numbers nor text")
                if not array.shape:
                    raise UsageError(f"{file}: {name!r} is a single value, and no rows")
                if array.dtype.kind not in "biufSUO":
                    raise UsageError(
                        f"{file}: {name!r} has the type {array.dtype}, which records do not know"
                    )
                self.shapes[name] = tuple(array.shape), array.dtype
        counts = {shape[0] for shape, _ in self.shapes.values()}
        if len(counts) != 1:
            told = ", ".join(f"{name} has {shape[0]}" for name, (shape, _) in self.shapes.items()) or "none"
            raise UsageError(f"{file}: the arrays must have the same number of rows, but {told}")
        self.count = counts.pop()
        self.size = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in self.shapes.values())

    def _open(self) -> _Open:
        return _Open(self.file, self._is_hdf5)

    def __len__(self) -> int:
        return self.count

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """A value, or the memory of an array, for each name."""
        with self._open() as arrays:
            for start in range(begin, end, 1024):
                stop = min(start + 1024, end)
                try:
                    parts = {name: array[start:stop] for name, array in arrays.items()}
                except (OSError, ValueError) as error:
                    raise UsageError(f"{self.file} cannot be read from row {start} on: {error}") from error
                for i in range(stop - start):
                    yield {name: self._value(name, part[i]) for name, part in parts.items()}

    def _value(self, name: str, value: Any) -> Any:
        shape, kind = self.shapes[name]
        if kind.kind in "SUO" and len(shape) > 1:
            return [item if isinstance(item, bytes) else str(item) for item in np.asarray(value).reshape(-1)]
        if kind.kind in "SUO":
            return value if isinstance(value, bytes) else str(value)
        if len(shape) > 1 and kind.str[1:] not in ("f4", "i8"):
            return np.ascontiguousarray(value).astype(kind.newbyteorder("<")).tobytes()
        return value

    def features(self) -> dict[str, str]:
        """Numbers by their shape."""
        found = {}
        for name, (shape, kind) in self.shapes.items():
            row = list(shape[1:])
            if kind.kind in "SUO":
                found[name] = f"{{type: FixedLenFeature, shape: {row}, dtype: string}}"
            elif len(shape) > 1 and kind.str[1:] not in ("f4", "i8"):
                found[name] = f"{{type: RawFeature, shape: {row}, dtype: {kind.name}}}"
            else:
                dtype = "float32" if kind.kind == "f" else "int64"
                found[name] = f"{{type: FixedLenFeature, shape: {row or [1]}, dtype: {dtype}}}"
        return found


def _is_text(array: Any) -> bool:
    """Whether an array of objects, as HDF5 has them, holds text."""
    h5py: Any = import_optional("h5py", "hdf5")
    return h5py.check_string_dtype(array.dtype) is not None


class _Open:
    """The arrays of a file, while it is open."""

    def __init__(self, file: Path, is_hdf5: bool) -> None:
        self.file = file
        self.is_hdf5 = is_hdf5
        self._handle: Any = None

    def __enter__(self) -> dict[str, Any]:
        try:
            if self.is_hdf5:
                h5py: Any = import_optional("h5py", "hdf5")
                self._handle = h5py.File(self.file, "r")
                found: dict[str, Any] = {}
                self._handle.visititems(
                    lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None
                )
                return found
            loaded = np.load(
                self.file, allow_pickle=False, mmap_mode="r" if self.file.suffix == ".npy" else None
            )
            if isinstance(loaded, np.ndarray):
                return {"inputs": loaded}
            self._handle = loaded
            return {name: loaded[name] for name in loaded.files}
        except ExtraMissing:
            raise
        except Exception as error:  # a damaged file makes its reader fail in whatever way
            raise UsageError(
                f"{self.file} cannot be read as arrays: {type(error).__name__}: {error}"
            ) from error

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.close()


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
    """The rows of a folder or file, by what it is, or as what it was said to be.

    `beside` is where other splits may lie already: they share classes and vocabulary.
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
        raise UsageError(f"there is no {source}")
    wants_text = any(given is not None for given in (column, vocabulary, most, least))
    if names is not None and source.suffix.lower() != ".csv" and kind != "csv":
        raise UsageError(f"{source} is no CSV, so its columns cannot be named")
    found = kind or ("images" if source.is_dir() else endings.get(source.suffix.lower(), ""))
    found = "text" if found == "csv" and kind is None and wants_text else found
    file = beside / CLASSES if beside is not None else None
    classes = _read_class_names(file) if file and file.is_file() else None
    if found == "images" and source.is_dir():
        return ImageFolder(source, classes)
    if found == "text" and source.is_file():
        known = beside / VOCABULARY if beside is not None and vocabulary is None else None
        known = known if known and known.is_file() else vocabulary
        if known is not None and (most is not None or least is not None):
            log.warning("the vocabulary is %s, so --words and --min-count change nothing", known)
        return Text(source, column, known, most, classes, least, names)
    if found == "csv" and source.is_file():
        return Csv(source, classes, names)
    if found in ("arrays", "hdf5") and source.is_file():
        return Arrays(source)
    wanted = "a folder of images, .csv, .txt, .npz, .npy, .h5 or .hdf5"
    raise UsageError(f"{source} cannot be converted{f' as {kind}' if kind else ''}: it must be {wanted}")


def _read_class_names(file: Path) -> list[str]:
    """The names of classes, one a line."""
    try:
        text = file.read_text(encoding="utf-8")
        return text.removesuffix("\n").split("\n") if text else []
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


@dataclass(frozen=True)
class Written:
    """One file that was written."""

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
    """Write rows into shards, several at a time, and index them when all are there."""
    if not len(table):
        raise UsageError("there are no rows to convert")
    broken = [name for name in table.classes if "\n" in name or "\r" in name]
    if broken:
        raise UsageError(f"a class is called {broken[0]!r}, but {CLASSES} holds one name a line; rename it")
    count = shards or max(1, min(len(table), round(table.size / SHARD)))
    if count > len(table):
        raise UsageError(f"{len(table)} rows cannot be cut into {count} shards")
    files = [folder / name for name in shard_names(prefix, count, compression)]
    shard = re.compile(rf"{re.escape(prefix)}-\d{{5}}-of-\d{{5}}(\.gz|\.zz)?")
    here = sorted(p for p in folder.iterdir() if shard.fullmatch(p.name)) if folder.is_dir() else []
    known = metadata.load_index(str(folder))  # if it cannot be read, that is better known now
    if here and not force:
        names = listing([file.name for file in here], 3)
        raise UsageError(f"{folder} has files of this name already: {names}; --force replaces them")
    bounds = itertools.pairwise(round(i * len(table) / count) for i in range(count + 1))
    with durable.staging(folder) as place:
        jobs = [
            (table, place / file.name, begin, end, compression)
            for file, (begin, end) in zip(files, bounds, strict=True)
        ]
        if workers > 1 and count > 1:
            context = multiprocessing.get_context("forkserver")  # threads may be running here
            with ProcessPoolExecutor(min(workers, count), context, die_with_server) as pool:
                yield from pool.map(_shard, jobs)
        else:
            yield from map(_shard, jobs)
        entries = {file.name: metadata.examine_file(str(place / file.name)) for file in files}
        for name, text in table.beside().items():  # first: labels without their names would be numbered anew
            durable.write_file(folder / name, text)
        for old in here:  # only now is everything there that takes their place
            old.unlink()
        for file in files:
            (place / file.name).replace(file)
    durable.sync_folder(folder)
    metadata.merge_index(str(folder), entries, [name for name in known if shard.fullmatch(name)])


def _shard(job: tuple[RowTable, Path, int, int, str]) -> Written:
    table, file, begin, end, compression = job
    with RecordWriter(file, compression) as writer:
        for row in table.rows(begin, end):
            writer.write(encode(row))
    return Written(file.name, writer.count)


def as_yaml(features: Mapping[str, str], labels: Sequence[str] = ("image/class/label", *LABELS)) -> str:
    """How a feeder reads what was written, to be copied into a config."""
    label = next((name for name in features if name in labels), None)
    lines = ["features_map:", *(f"  {_key(n)}: {how}" for n, how in features.items() if n != label)]
    if label is not None:
        lines += ["labels_map:", f"  {_key(label)}: {features[label]}"]
    return "\n".join(lines)


def _key(name: str) -> str:
    """A name as a key of YAML."""
    if PLAIN.fullmatch(name) and name.lower() not in WORDS_OF_YAML:
        return name
    return ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(name, ensure_ascii=False))
