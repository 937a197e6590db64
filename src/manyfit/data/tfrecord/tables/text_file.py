"""Text files and CSV columns, tokenized with a vocabulary."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data.tfrecord.tables.base import Row, RowTable
from manyfit.data.tfrecord.tables.csv_file import Csv

UNKNOWN: Final = "<unk>"
WORDS: Final = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
VOCABULARY: Final = "_vocabulary.txt"


class Text(RowTable):
    """Texts, one per line, or a column of a CSV file; words become numbers from a vocabulary.

    Number 0 is padding, 1 stands for words that are not in the vocabulary.
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
                f"{file} has a column {taken[0]!r}, a name that is reserved for the converted text; rename it"
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
        """Yield the numbers of the words, their count, and the other columns."""
        for row in self._texts(begin, end):
            found = [self.numbers.get(word, 1) for word in words(str(row.get(self.column, "")))]
            rest = {name: value for name, value in row.items() if name != self.column}
            yield {"tokens": np.array(found, np.int64), "length": len(found), **rest}

    def features(self) -> dict[str, str]:
        """Return the options of the word numbers and of the other columns."""
        rest = self.table.features() if self.table is not None else {}
        return {"tokens": "{type: VarLenFeature, dtype: int64}"} | {
            name: how for name, how in rest.items() if name != self.column
        }

    def beside(self) -> dict[str, str]:
        """Return the class names and the vocabulary; the number of a word is its line, counted from 0."""
        listed = "".join(f"{word}\n" for word in ("<pad>", UNKNOWN, *self.words))
        return {**super().beside(), VOCABULARY: listed}


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case.

    >>> words("It's fine.")
    ["it's", 'fine', '.']
    """
    return WORDS.findall(text.lower())
