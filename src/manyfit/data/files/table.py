"""Tables: the rows of CSV and Parquet files as the data of a run."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, nearest
from manyfit.data.files.columns import CategoryColumn, Column, NumberColumn, TargetColumn, to_column
from manyfit.data.files.held_out import check_fold, take_fold
from manyfit.data.nested import map_arrays, named_arrays
from manyfit.data.overlap import Contents, spread
from manyfit.data.source import ArraySource, Split, gather
from manyfit.data.splitting import RowNumbers, divide_rows

log = logging.getLogger("manyfit")

WORDS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation",
         "val": "validation", "dev": "validation", "test": "test"}  # fmt: skip
"""The words in a split column, and the splits that they stand for."""


BLOCK: Final = 1 << 24
"""Bytes of a CSV file that are parsed at once. The first ones determine the types of the columns."""
AT_ONCE: Final = 1 << 17
"""The number of rows that are encoded at once."""


class TableRows(ArraySource):
    """Rows of a file, whose IDs are in a column, or else their numbers in the file."""

    is_constant = True
    takes_shards = True

    def __init__(
        self,
        inputs: Any,
        target: Any,
        numbers: RowNumbers,
        ids: Sequence[str] | None = None,
        is_apart: bool = False,
    ) -> None:
        """`is_apart`: no other split has the same rows, since all are parts of one file."""
        super().__init__(inputs, target, ids)
        self.numbers = numbers
        self.is_apart = is_apart

    def ids(self, index: RowNumbers) -> list[str]:
        """Return the IDs of some rows."""
        if self.given_ids is not None:
            return super().ids(index)
        return [f"row-{number}" for number in self.numbers[index].tolist()]

    def contents(self, most: int) -> Contents:
        """Yield what identifies at most `most` rows: two rows of a table may happen to be the same."""
        if not self.is_apart:
            yield from super().contents(most)
            return
        for row in spread(len(self), most).tolist():
            yield row, hash(("row", int(self.numbers[row])))

    def fingerprint(self) -> str:
        """Return a hash of every column, and of the numbers of the rows."""
        found = hashlib.sha256(super().fingerprint().encode())
        found.update(np.ascontiguousarray(self.numbers).data)
        return found.hexdigest()


class Table:
    """The rows of a CSV or Parquet file. Needs the extra `parquet`.

    data: {class: manyfit.data.Table, file: data/houses.csv, target: price}

    Numbers become features; text, and the columns in `categories`, become one feature per category. Missing
    numbers become the mean, with a further feature that says where. Means, standard deviations and
    categories are those of the training rows. `${data.features}` and `${data.classes}` are facts for the
    model.
    """

    def __init__(
        self,
        file: Path,
        target: str | Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        categories: Sequence[str] = (),
        id: str | None = None,
        validation: Annotated[float, Ge(0)] | Path = 0.15,
        test: Annotated[float, Ge(0)] | Path = 0.15,
        split: str | None = None,
        stratify: str | None = None,
        split_seed: int = 0,
        folds: Annotated[int, Ge(2)] | None = None,
        fold: Annotated[int, Ge(0)] | None = None,
        task: Literal["auto", "classification", "regression"] = "auto",
        encoding: Literal["one_hot", "codes"] = "one_hot",
        standardize: bool = True,
        batch_size: Annotated[int, Gt(0)] = 64,
    ) -> None:
        """`validation` and `test` are fractions of the rows, or further files.

        `split` is a column that holds `train`, `validation` or `test`. `stratify` is a column whose values
        are spread evenly over the splits. With `folds`, the rows that are not for testing are divided into
        folds, and validation is on the rows of one of them. With `encoding: codes`, the model receives
        `numbers` and `categories`, the codes of the categorical columns, for embeddings of the sizes
        `${data.cardinalities}`.
        """
        self.file = file
        self.targets = [target] if isinstance(target, str) else list(target or ())
        self.has_several = not isinstance(target, str) and target is not None
        self.inputs = None if inputs is None else list(inputs)
        self.ignore = list(ignore)
        self.categories = set(categories)
        self.id = id
        self.held_out: dict[str, Any] = {"validation": validation, "test": test}
        self.split = split
        self.stratify = stratify
        self.split_seed = split_seed
        self.folds, self.fold = folds, fold
        self.task = task
        self.encoding = encoding
        self.standardize = standardize
        self.batch_size = batch_size

    def source(self, split: Split) -> ArraySource | None:
        """Return the rows of one split."""
        check_fold(self.fold, self.folds)
        place = self.held_out.get(split)
        if isinstance(place, Path):
            return self.read(place)
        rows = self._rows[split]
        if not len(rows):
            return None
        features, target, ids = self._encoded

        def take(array: Any) -> Any:
            return gather(array, rows)

        named = None if ids is None else [ids[row] for row in rows.tolist()]
        is_apart = not any(isinstance(place, Path) for place in self.held_out.values())
        return TableRows(map_arrays(take, features), map_arrays(take, target), rows, named, is_apart)

    def read(self, file: Path, has_target: bool = True) -> ArraySource:
        """Return all rows of another file with the same columns, encoded as the training rows are."""
        features, target, ids = self._encode(self._read_columns(file, has_target), file, has_target)
        count = len(next(array for _, array in named_arrays(features)))
        return TableRows(features, target, np.arange(count), ids)

    def read_frame(self, frame: Any) -> ArraySource:
        """Return the rows of a pandas DataFrame, encoded as the training rows are."""
        pa = import_optional("pyarrow", "parquet")
        try:
            table = pa.Table.from_pandas(frame, preserve_index=False)
        except pa.ArrowException as error:
            raise UsageError(f"the DataFrame cannot be read as a table: {error}") from error
        place = Path("DataFrame")
        features, target, ids = self._encode(self._to_columns(table, place, False), place, False)
        if ids is None and self.id is None:
            ids = [str(label) for label in frame.index]
        return TableRows(features, target, np.arange(len(frame)), ids)

    def facts(self) -> Mapping[str, Any]:
        """Return the numbers of features and classes, their names, and the sizes of the categories."""
        numbers = [name for each in self._numbers for name in each.names]
        named = [name for each in self._groups for name in each.names]
        found: dict[str, Any] = {
            "features": len(numbers) + (len(named) if self.encoding == "one_hot" else 0),
            "feature_names": numbers + (named if self.encoding == "one_hot" else []),
            "numbers": len(numbers),
            "cardinalities": [len(each.categories) + 1 for each in self._groups],
        }
        classes = {name: each.classes for name, each in self._known.items() if each.classes is not None}
        if len(classes) == 1 and len(self._known) == 1:
            (names,) = classes.values()
            found |= {"classes": len(names), "class_names": list(names)}
        return found | {f"classes_{name}": len(names) for name, names in classes.items()}

    # -- the training file -------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> dict[str, Column]:
        return self._read_columns(self.file)

    @cached_property
    def _encoded(self) -> tuple[Any, Any, list[str] | None]:
        return self._encode(self._columns, self.file)

    @cached_property
    def _rows(self) -> dict[str, RowNumbers]:
        """The row numbers of each split in the training file."""
        found = self._divide()
        if self.folds is None:
            return found
        if isinstance(self.held_out["validation"], Path):
            raise UsageError("folds divide the rows of one file, so validation cannot be another file")
        labels = None if self.stratify is None else self._column(self._columns, self.stratify).values
        return take_fold(found, self.fold, self.folds, self.split_seed, labels)

    def _divide(self) -> dict[str, RowNumbers]:
        columns = self._columns
        total = len(next(iter(columns.values())).values)
        if self.split is not None:
            words = [word.strip().lower() for word in columns[self.split].texts()]
            if unknown := sorted({word for word in words if word not in WORDS}):
                raise UsageError(
                    f"{self.file}: the column {self.split!r} must hold train, validation or test, but has "
                    f"{listing([repr(word) for word in unknown])}"
                )
            where = np.array([WORDS[word] for word in words])
            return {name: np.flatnonzero(where == name) for name in ("train", "validation", "test")}
        shares = {name: 0.0 if isinstance(given, Path) else given for name, given in self.held_out.items()}
        labels: Any = None
        if self.stratify is not None:
            labels = self._column(columns, self.stratify).values
        return divide_rows(total, shares["validation"], shares["test"], self.split_seed, labels)

    @cached_property
    def _names(self) -> list[str]:
        """The names of the input columns."""
        others = {*self.targets, *self.ignore, self.id, self.split}
        if self.inputs is not None:
            if both := [name for name in self.inputs if name in others]:
                raise UsageError(f"{self.file}: {listing(both)} cannot be an input as well")
            return self.inputs
        return [name for name in self._columns if name not in others]

    @cached_property
    def _numbers(self) -> list[NumberColumn]:
        columns = [self._column(self._columns, name) for name in self._names]
        rows = self._rows["train"]
        with ThreadPoolExecutor() as pool:
            numbers = [column for column in columns if not column.is_text]
            return list(pool.map(lambda column: NumberColumn.fit(column, rows, self.standardize), numbers))

    @cached_property
    def _groups(self) -> list[CategoryColumn]:
        columns = [self._column(self._columns, name) for name in self._names]
        return [CategoryColumn.fit(column, self._rows["train"]) for column in columns if column.is_text]

    @cached_property
    def _known(self) -> dict[str, TargetColumn]:
        try:
            return {n: TargetColumn.fit(self._column(self._columns, n), self.task) for n in self.targets}
        except UsageError as error:
            raise UsageError(f"{self.file}: {error}") from None

    # -- reading -----------------------------------------------------------------------------------

    def _read_columns(self, file: Path, has_target: bool = True) -> dict[str, Column]:
        texts = [*self.categories, *(name for name in (self.id, self.split) if name)]
        if file != self.file:  # as in the training file: 01234 is text if other rows of the column are
            texts += [name for name, column in self._columns.items() if column.is_text]
        return self._to_columns(read_arrow(file, texts), file, has_target)

    def _to_columns(self, table: Any, file: Path, has_target: bool) -> dict[str, Column]:
        given = [*self.targets, *self.ignore, *(self.inputs or ()), *self.categories]
        wanted = [*given, *([self.id] if self.id else []), *([self.split] if self.split else [])]
        for name in dict.fromkeys(wanted):
            if name not in table.column_names and (has_target or name not in self._optional):
                best = nearest(name, table.column_names)
                hint = f"did you mean {best!r}?" if best else f"it has {listing(table.column_names)}"
                raise UsageError(f"{file} has no column {name!r}; {hint}")
        used = [name for name in table.column_names if name not in self.ignore]
        if self.inputs is not None:
            keep = {*self.inputs, *self.targets, self.id, self.split, self.stratify}
            used = [name for name in used if name in keep]
        texts = self.categories | {name for name in (self.id, self.split) if name}

        def convert(name: str) -> Column:
            return to_column(name, table[name].combine_chunks(), name in texts)

        try:
            with ThreadPoolExecutor() as pool:
                return dict(zip(used, pool.map(convert, used), strict=True))
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from None

    @property
    def _optional(self) -> set[str | None]:
        """Columns that new rows need not have."""
        return {*self.targets, *self.ignore, self.split}

    def _column(self, columns: Mapping[str, Column], name: str) -> Column:
        if name not in columns:
            raise UsageError(f"{self.file} has no column {name!r}; it has {listing(list(columns))}")
        return columns[name]

    def _encode(
        self, columns: Mapping[str, Column], file: Path, is_scored: bool = True
    ) -> tuple[Any, Any, list[str] | None]:
        """Return the features and the target of every row, and its ID if a column has them."""
        missing = [name for name in self._names if name not in columns]
        if missing:
            raise UsageError(f"{file} has no column {missing[0]!r}; it has {listing(list(columns))}")
        texts = [each.name for each in self._numbers if columns[each.name].is_text]
        if texts:
            raise UsageError(f"{file}: the column {texts[0]!r} has text, but numbers in {self.file}")
        has_target = is_scored and all(name in columns for name in self.targets)
        try:
            known = self._known.items() if has_target else ()
            targets = {name: each.encode(columns[name]) for name, each in known}
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from None
        target = None if not targets else targets if self.has_several else next(iter(targets.values()))
        count = len(next(iter(columns.values())).values)
        ids = columns[self.id].texts() if self.id and self.id in columns else None
        if ids is not None and len(set(ids)) < len(ids):
            first = next(id_ for id_, count in Counter(ids).items() if count > 1)
            raise UsageError(f"{file}: IDs must be unique, but the column {self.id!r} repeats {first!r}")
        return self._features(columns, count), target, ids

    def _features(self, columns: Mapping[str, Column], count: int) -> Any:
        indices = [each.codes(columns[each.name]) for each in self._groups]
        is_one_hot = self.encoding == "one_hot"
        numbers = sum(len(each.names) for each in self._numbers)
        wide = sum(len(each.names) for each in self._groups) if is_one_hot else 0
        found = np.empty((count, numbers + wide), dtype=np.float32)

        def fill(first: int) -> None:
            """Write some rows, column by column."""
            rows = slice(first, first + AT_ONCE)
            part = np.zeros((numbers + wide, len(found[rows])), dtype=np.float32)
            begin = 0
            for number in self._numbers:
                column = columns[number.name]
                width = len(number.names)
                number.write(
                    Column(column.name, column.values[rows]), part[begin : begin + width], self.standardize
                )
                begin += width
            for group, index in zip(self._groups, indices, strict=True) if is_one_hot else ():
                for code in range(len(group.names)):
                    part[begin + code] = index[rows] == code
                begin += len(group.names)
            found[rows] = part.T

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(0, count, AT_ONCE)))
        if is_one_hot:
            return found
        stacked = np.stack(indices, axis=1) if indices else np.zeros((count, 0), dtype=np.int64)
        return {"numbers": found, "categories": stacked}


def read_arrow(file: Path, texts: Sequence[str] = ()) -> Any:
    """Read a CSV or Parquet file as an Arrow table; `texts` are columns that are always text."""
    pa = import_optional("pyarrow", "parquet")
    if not file.exists():
        raise UsageError(f"there is no file {file}")
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            table = import_optional("pyarrow.parquet", "parquet").read_table(file)
        elif file.suffix.lower() in (".csv", ".tsv", ".txt", ".gz", ".bz2"):
            csv = import_optional("pyarrow.csv", "parquet")
            separator = "\t" if ".tsv" in file.suffixes else ","
            options = csv.ConvertOptions(
                strings_can_be_null=True, column_types=dict.fromkeys(texts, pa.string())
            )
            table = csv.read_csv(
                file, csv.ReadOptions(block_size=BLOCK), csv.ParseOptions(delimiter=separator), options
            )
        else:
            raise UsageError(f"{file} is not a .csv, .tsv or .parquet file")
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{file} cannot be read as a table: {error}") from error
    if not table.num_rows:
        raise UsageError(f"{file} has no rows")
    try:
        kinds = zip(table.column_names, table.schema.types, strict=True)
        unreadable = [f"the column {name!r}" for name, kind in kinds if pa.types.is_binary(kind)]
    except UnicodeDecodeError:
        unreadable = ["the header"]
    if unreadable and file.suffix.lower() not in (".parquet", ".pq"):
        raise UsageError(f"{file}: {unreadable[0]} is not UTF-8; convert the file: iconv -f latin1 -t utf8")
    if len(set(table.column_names)) != len(table.column_names):
        raise UsageError(f"{file} has several columns of the same name")
    return table
