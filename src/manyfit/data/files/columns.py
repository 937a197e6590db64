"""Columns of a table as numbers: categories, missing values and standardization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing

SMALL = 1_000_000
"""The largest range of integers that are counted."""


@dataclass(frozen=True)
class Column:
    """The values of a column: numbers, with NaN where one is missing; or text, as codes of its words."""

    name: str
    values: npt.NDArray[Any]
    words: Sequence[str] | None = None
    """The distinct texts, of which `values` has the positions; -1 where a text is missing."""

    @property
    def is_text(self) -> bool:
        """Whether the column has text."""
        return self.words is not None

    def take(self, rows: npt.NDArray[np.int64]) -> Column:
        """Return some rows."""
        return Column(self.name, self.values[rows], self.words)

    def texts(self) -> list[str]:
        """Return the values as text; missing ones are empty."""
        if self.words is None:
            return [to_word(value) for value in self.values.tolist()]
        words = [*self.words, ""]
        return [words[code] for code in self.values.tolist()]

    def as_text(self) -> Column:
        """Return the column with text instead of numbers."""
        if self.words is not None:
            return self
        distinct, codes = np.unique(self.values, return_inverse=True)
        is_missing = (
            np.isnan(self.values) if self.values.dtype.kind == "f" else np.zeros(len(codes), dtype=bool)
        )
        return Column(
            self.name, np.where(is_missing, -1, codes), [to_word(value) for value in distinct.tolist()]
        )

    def count_missing(self) -> int:
        """Return the number of missing values."""
        if self.words is not None:
            return int((self.values < 0).sum())
        return int(np.isnan(self.values).sum()) if self.values.dtype.kind == "f" else 0


def to_word(value: float) -> str:
    """Return a number as text, with all its digits.

    >>> to_word(1000001.0), to_word(0.1)
    ('1000001', '0.1')
    """
    return str(int(value)) if value == value and abs(value) < 1e15 and value == int(value) else repr(value)


def find_distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct values, sorted: by counting if they are integers within a small range.

    >>> find_distinct(np.array([3, -1, 3, 0])).tolist()
    [-1, 0, 3]
    """
    if values.dtype.kind != "i" or not len(values) or int(values.max()) - int(values.min()) > SMALL:
        return np.unique(values)
    lowest = values.min()
    return np.asarray(np.flatnonzero(np.bincount(values - lowest)) + lowest)


def to_column(name: str, array: Any, as_category: bool) -> Column:
    """Return a column of Arrow as numbers or text."""
    pa: Any = import_optional("pyarrow", "parquet")
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return Column(name, np.full(len(array), np.nan))
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_number and not as_category:
        plain = array.cast(pa.uint8()) if types.is_boolean(kind) else array
        plain = plain.cast(pa.float64()) if array.null_count else plain
        return Column(name, plain.to_numpy(zero_copy_only=False))
    if is_number:
        array = array.cast(pa.string())
    elif not (types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)):
        raise UsageError(
            f"the column {name!r} has the type {kind}, neither numbers nor text; leave it out of the inputs"
        )
    encoded = array if types.is_dictionary(array.type) else array.dictionary_encode()
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return Column(name, codes, [str(word) for word in encoded.dictionary.to_pylist()])


@dataclass(frozen=True)
class NumberColumn:
    """A numeric input. Missing values are replaced by the mean of the training rows."""

    name: str
    mean: float
    scale: float
    marks_missing: bool
    """Whether a second column says where values are missing."""

    @staticmethod
    def fit(column: Column, rows: npt.NDArray[np.int64], standardize: bool) -> NumberColumn:
        """Read mean and standard deviation from the training rows."""
        values = column.values[rows].astype(np.float64, copy=False)
        is_missing = np.isnan(values)
        known = values[~is_missing] if is_missing.any() else values
        mean = float(known.mean()) if len(known) else 0.0
        if not np.isfinite(mean):
            raise UsageError(
                f"the column {column.name!r} has values that are infinite, or too large to average"
            )
        spread = float(known.std()) if len(known) else 0.0
        is_constant = spread <= 1e-10 * abs(mean)  # rounding noise
        scale = spread if standardize and spread > 0 and not is_constant else 1.0
        return NumberColumn(column.name, mean, scale, bool(is_missing.any()))

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [self.name, f"{self.name} is missing"] if self.marks_missing else [self.name]

    def write(self, column: Column, into: npt.NDArray[np.float32], standardize: bool) -> None:
        """Write the features of every row; `into` has a row for each feature."""
        if standardize:
            shifted = np.subtract(column.values, self.mean, dtype=np.float64)
            np.divide(shifted, self.scale, out=into[0], casting="same_kind")
        else:
            into[0] = column.values
        if column.values.dtype.kind == "f":
            is_missing = np.isnan(into[0])
            if is_missing.any():
                into[0, is_missing] = 0.0 if standardize else self.mean
                if self.marks_missing:
                    into[1] = is_missing


@dataclass(frozen=True)
class CategoryColumn:
    """A categorical input. Code 0 is for missing values, and for categories that no training row has."""

    name: str
    categories: Sequence[str]

    @staticmethod
    def fit(column: Column, rows: npt.NDArray[np.int64]) -> CategoryColumn:
        """Read the categories from the training rows."""
        assert column.words is not None
        used = find_distinct(column.values[rows])
        return CategoryColumn(column.name, sorted(column.words[code] for code in used if code >= 0))

    @property
    def names(self) -> list[str]:
        """The names of the features if each category is one."""
        return [f"{self.name} is other", *(f"{self.name} = {value}" for value in self.categories)]

    def codes(self, column: Column) -> npt.NDArray[np.int64]:
        """Return the code of each row: 0, or the position of its category, from 1."""
        known = {value: code for code, value in enumerate(self.categories, 1)}
        words = column.as_text().words or ()
        table = np.array([*(known.get(word, 0) for word in words), 0], dtype=np.int64)
        return np.asarray(table[column.as_text().values])


@dataclass(frozen=True)
class TargetColumn:
    """A target: class indices, or numbers."""

    name: str
    classes: Sequence[str] | None

    @staticmethod
    def fit(column: Column, task: str) -> TargetColumn:
        """Decide whether a target is classes or numbers. Text and 0 … k-1 are classes, unless `task` says."""
        values, count = column.values, column.count_missing()
        if count:
            raise UsageError(
                f"the target {column.name!r} is missing in {count} of {len(values)} rows; remove these rows"
            )
        if column.words is not None:
            if task == "regression":
                raise UsageError(f"the target {column.name!r} has text, such as {column.words[0]!r}")
            return TargetColumn(column.name, sorted(column.words))
        if task == "regression" or (task == "auto" and values.dtype.kind not in "iub"):
            return TargetColumn(column.name, None)
        distinct = find_distinct(values)
        is_whole = bool((distinct == np.floor(distinct)).all())
        if task == "auto" and (distinct[0] != 0 or len(distinct) != int(distinct[-1]) + 1):
            return TargetColumn(column.name, None)
        if not is_whole:
            raise UsageError(f"the target {column.name!r} has {distinct[0]:g}, which is not a class")
        return TargetColumn(column.name, [to_word(value) for value in distinct.tolist()])

    def encode(self, column: Column) -> npt.NDArray[Any]:
        """Return class indices as int64, or numbers as float32."""
        if self.classes is None:
            if column.is_text:
                raise UsageError(f"the target {self.name!r} has text instead of numbers")
            return column.values.astype(np.float32)
        known = {value: code for code, value in enumerate(self.classes)}
        count = len(self.classes)
        is_range = list(self.classes) == [str(code) for code in range(count)]
        is_whole = column.values.dtype.kind in "iu" and not column.is_text
        if is_range and is_whole and column.values.min() >= 0 and column.values.max() < count:
            return column.values.astype(np.int64)
        text = column.as_text()
        assert text.words is not None
        used = np.unique(text.values)
        lost = [text.words[code] if code >= 0 else "" for code in used]
        if lost := [word for word in lost if word not in known]:
            names = listing([repr(word) for word in lost])
            raise UsageError(f"the target {self.name!r} has {names}, which the first file does not have")
        table = np.array([known.get(word, -1) for word in text.words], dtype=np.int64)
        return np.asarray(table[text.values])
