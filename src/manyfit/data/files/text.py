"""Text: lines or documents as numbers of words or characters, with a vocabulary from the training rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt

from manyfit.core.errors import UsageError
from manyfit.data.files.columns import TargetColumn, to_column
from manyfit.data.files.held_out import HeldOut
from manyfit.data.files.table import read_arrow
from manyfit.data.source import ArraySource, Split

PADDING, UNKNOWN = 0, 1
WORD: Final = re.compile(r"\w+|[^\w\s]")


class TextFile:
    """Texts as sequences of word or character numbers, padded to the same length.

    data: {class: manyfit.data.TextFile, file: data/reviews.csv, text: review, target: sentiment, length: 128}

    A CSV or Parquet file has a text in each row; a .txt file in each line. Without a target, the target of
    each position is the next word. 0 is padding, 1 an unknown word; `${data.vocabulary_size}` includes both.
    """

    def __init__(
        self,
        file: Path,
        text: str = "text",
        target: str | None = None,
        length: Annotated[int, Gt(1)] = 64,
        level: Literal["word", "character"] = "word",
        vocabulary: Annotated[int, Gt(2)] = 20_000,
        min_count: Annotated[int, Gt(0)] = 1,
        lowercase: bool = True,
        validation: Annotated[float, Ge(0)] = 0.15,
        test: Annotated[float, Ge(0)] = 0.15,
        split_seed: int = 0,
        folds: Annotated[int, Ge(2)] | None = None,
        fold: Annotated[int, Ge(0)] | None = None,
        batch_size: Annotated[int, Gt(0)] = 64,
    ) -> None:
        self.file, self.text, self.target, self.length, self.level = file, text, target, length, level
        self.most_words, self.min_count, self.lowercase = vocabulary, min_count, lowercase
        self.held_out = HeldOut(validation, test, split_seed, folds, fold)
        self.batch_size = batch_size

    def source(self, split: Split) -> ArraySource | None:
        """Return the texts of one split."""
        rows = self._rows[split]
        if not len(rows):
            return None
        return self._encode([self._texts[row] for row in rows], rows, self._labels)

    def read(self, file: Path, has_target: bool = True) -> ArraySource:
        """Return all texts of another file, with the same vocabulary."""
        texts = self._read(file)[0]
        return self._encode(texts, np.arange(len(texts)), None)

    def facts(self) -> Mapping[str, Any]:
        """Return the size of the vocabulary, the length, and the number of classes."""
        found: dict[str, Any] = {"vocabulary_size": len(self.words) + 2, "length": self.length}
        if self._known is not None and self._known.classes is not None:
            found |= {"classes": len(self._known.classes), "class_names": list(self._known.classes)}
        return found

    def tokens(self, text: str) -> list[str]:
        """Split a text into words and punctuation, or characters."""
        text = text.lower() if self.lowercase else text
        return WORD.findall(text) if self.level == "word" else list(text)

    @cached_property
    def words(self) -> list[str]:
        """The vocabulary: the most frequent words of the training rows, in alphabetical order."""
        counts = Counter(word for row in self._rows["train"] for word in self.tokens(self._texts[row]))
        kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.most_words - 2]
        return sorted(word for word, count in kept if count >= self.min_count)

    # -- reading -----------------------------------------------------------------------------------

    @cached_property
    def _content(self) -> tuple[list[str], Any]:
        return self._read(self.file)

    @property
    def _texts(self) -> list[str]:
        return self._content[0]

    @cached_property
    def _known(self) -> TargetColumn | None:
        return None if self._content[1] is None else TargetColumn.fit(self._content[1], "auto")

    @cached_property
    def _labels(self) -> Any:
        return None if self._known is None else self._known.encode(self._content[1])

    @cached_property
    def _rows(self) -> dict[str, Any]:
        is_classes = self._known is not None and self._known.classes is not None
        ids = [str(row) for row in range(len(self._texts))]
        return self.held_out.divide(ids, self._labels if is_classes else None)

    def _read(self, file: Path) -> tuple[list[str], Any]:
        if file.suffix.lower() == ".txt":
            if self.target is not None:
                raise UsageError(f"{file} has only texts; a target needs a CSV or Parquet file")
            if not file.is_file():
                raise UsageError(f"there is no file {file}")
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except UnicodeDecodeError as error:
                raise UsageError(f"{file} is not UTF-8: {error}") from error
            found = [line for line in lines if line.strip()]
            if not found:
                raise UsageError(f"{file} has no text")
            return found, None
        table = read_arrow(file)
        for name in (self.text, *([self.target] if self.target and file == self.file else [])):
            if name not in table.column_names:
                raise UsageError(f"{file} has no column {name!r}; it has {', '.join(table.column_names)}")
        texts = to_column(self.text, table[self.text].combine_chunks(), as_category=True).texts()
        has_target = self.target is not None and self.target in table.column_names
        label = (
            to_column(self.target or "", table[self.target].combine_chunks(), False) if has_target else None
        )
        return texts, label

    def _encode(self, texts: Sequence[str], rows: Any, labels: Any) -> ArraySource:
        numbers = {word: number for number, word in enumerate(self.words, 2)}
        extra = 1 if self.target is None else 0  # the target is the text, one position later
        found = np.full((len(texts), self.length + extra), PADDING, dtype=np.int64)
        for i, text in enumerate(texts):
            codes = [numbers.get(word, UNKNOWN) for word in self.tokens(text)[: self.length + extra]]
            found[i, : len(codes)] = codes
        ids = [f"row-{row}" for row in rows]
        if self.target is None:
            target = found[:, 1:].copy()
            target[target == PADDING] = -100  # losses of torch ignore it
            return ArraySource(found[:, :-1].copy(), target, ids)
        return ArraySource(found, None if labels is None else labels[rows], ids)
