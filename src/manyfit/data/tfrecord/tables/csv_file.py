"""CSV files."""

from __future__ import annotations

import csv
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.data.tfrecord.tables.base import CLASSES, LABELS, Row, RowTable

log = logging.getLogger("manyfit")
NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(nan|NaN|inf|Infinity)")
MOST_CLASSES: Final = 10_000


class Csv(RowTable):
    """A CSV file. All cells of a column determine its type: integers, floats or text.

    The first row has the column names, unless `names` are given; if `names` is empty, the columns are named
    c0, c1 … A text label becomes a class number, in alphabetical order of the classes.
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
                    "the first row of %s is read as column names, but %s looks like data: "
                    "use --no-header or --names if it is data",
                    file,
                    numbers[0],
                )
            if not self.header or len(set(self.header)) != len(self.header):
                raise UsageError(f"{file} has no header, or a header with duplicate names")
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
                told = f"classes that are not in the {CLASSES} of the existing records: {listing(unknown)}"
                raise UsageError(f"{file} has {told}")
            ranks[label] = 1  # type: ignore[index]
        else:
            self.label = None
        kinds = ("int64", "int64", "float32", "string")
        self.kinds = {name: kinds[rank] for name, rank in zip(self.header, ranks, strict=True)}
        self.gaps = {name for name, has_gaps in zip(self.header, empty, strict=True) if has_gaps}

    def _name_columns(self, header: list[str], is_given: bool) -> list[str]:
        """Return a name for each column; pandas writes an index column without a name."""
        place = header.index("")
        if is_given:
            raise UsageError(f"--names leaves column {place + 1} of {self.file} without a name")
        log.warning("column %d of %s has no name; it is named c%d", place + 1, self.file, place)
        return [name or f"c{i}" for i, name in enumerate(header)]

    def _read(self, reader: Any) -> Iterator[list[str]]:
        try:
            yield from (row for row in reader if row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{self.file}:{reader.line_num + 1}: {error}") from error

    def __len__(self) -> int:
        return self.count

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Yield a value for each cell; empty cells are left out."""
        read = {"int64": int, "float32": float, "string": str}
        with self.file.open(newline="", encoding="utf-8-sig") as stream:
            for row in itertools.islice(self._read(csv.reader(stream)), begin + self.first, end + self.first):
                cells = {name: cell for name, cell in zip(self.header, row, strict=True) if cell != ""}
                if self.label is not None and self.label in cells:
                    cells[self.label] = str(self.classes.index(cells[self.label]))
                yield {name: read[self.kinds[name]](cell) for name, cell in cells.items()}

    def features(self) -> dict[str, str]:
        """Return the options of each column, with a default value if it has empty cells."""
        fill = {"int64": "0", "float32": ".nan", "string": "''"}
        return {
            name: f"{{type: FixedLenFeature, shape: [1], dtype: {kind}"
            + (f", default_value: {fill[kind]}}}" if name in self.gaps else "}")
            for name, kind in self.kinds.items()
        }


def _rank(cell: str) -> int:
    """Return 0 for an empty cell, 1 for an integer, 2 for a float, 3 for text."""
    if cell == "":
        return 0
    if re.fullmatch(r"[-+]?[0-9]+", cell):
        return 1 if len(cell) < 25 and -(1 << 63) <= int(cell) < 1 << 63 else 3
    return 2 if NUMBER.fullmatch(cell) else 3
