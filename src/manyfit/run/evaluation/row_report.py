"""Row reports: one line for every row of a split, identified by its row ID."""

from __future__ import annotations

import csv
import functools
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.signals import Watch
from manyfit.data import Source, once
from manyfit.data.nested import (
    Nested,
    concatenate,
    count_rows,
    named_arrays,
    pair_outputs,
    shapes,
)
from manyfit.data.randomness import own_randomness
from manyfit.learn.learner import Learner, Outputs
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.build.evaluator import Evaluator
from manyfit.run.callbacks.progress import show_progress
from manyfit.run.evaluation import summary_statistics
from manyfit.run.evaluation.first_rows import FirstRows
from manyfit.run.loop.validation import watching
from manyfit.store import durable

log = logging.getLogger("manyfit")

AT_ONCE: Final = 1 << 24
"""Bytes of outputs that are collected before the evaluation functions are called on them."""
HEAD: Final = ("id", "row", "part", "target", "prediction", "confidence", "failed")
KEYS: Final = ("id", "row", "part")
"""Columns that identify a line: the ID; the row, if IDs are repeated; the part, if a row became several."""


MOST_CELLS: Final = 256
"""The largest array that a cell of a report holds; larger ones are summarized."""
Mode: TypeAlias = Literal["full", "summary", "none"]


@dataclass(frozen=True, slots=True)
class Report:
    """A table with one line per row of a split, the mean of every numeric column, and metrics of the whole
    split."""

    columns: Mapping[str, Any]
    means: Mapping[str, float]
    """Means over the rows that have a value."""
    classes: int = 0
    whole: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    """The usual classification or segmentation metrics, over all rows."""
    undefined: Mapping[str, int] = field(default_factory=dict)
    """The number of rows without a value, by column."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Error messages of the rows on which a function failed, by row ID."""
    remade: Mapping[str, int] = field(default_factory=dict)
    """The numbers of missing and of repeated rows, if a preprocessor drops or repeats rows."""
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Columns of large arrays, in full."""
    first: FirstRows | None = None

    def __len__(self) -> int:
        return len(self.columns["id"])

    @property
    def values(self) -> dict[str, float]:
        """The means over rows and the metrics of the whole split."""
        return {**self.means, **self.whole}

    def write(self, path: Path) -> None:
        """Write the table as CSV, and large arrays next to it as .npy."""
        durable.write_file(path, format_csv(self.columns))
        arrays = {f"{path.stem}.{name.replace('/', '_')}.npy": v for name, v in self.arrays.items()}
        for file in path.parent.glob(f"{path.stem}.*.npy"):
            if file.name not in arrays:
                file.unlink()
        for file_name, values in arrays.items():
            stream = io.BytesIO()
            np.save(stream, values, allow_pickle=False)
            durable.write_file(path.with_name(file_name), stream.getvalue())

    def write_points(self, folder: Path, split: str, names: Sequence[str]) -> None:
        """Write the evaluator's columns to the report files of the five-component layout."""
        known = {name: self.columns[name] for name in KEYS if name in self.columns}
        table = {**known, **{name: self.columns[name] for name in names}}
        if split == "validation":
            durable.write_file(folder / "validation_report.csv", format_csv(table))
        elif split == "test":
            durable.write_file(folder / "eval_report.csv", format_csv(table))
            found = {
                name: summary_statistics.describe_values(np.asarray(self.columns[name])) for name in names
            }
            keys = ("count", "mean", "std", "min", "q25", "median", "q75", "max")
            shown = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")
            rows = {"": list(shown), **{n: [f.get(key, "") for key in keys] for n, f in found.items()}}
            durable.write_file(folder / "eval_report_summary.csv", format_csv(rows))

    def write_parquet(self, path: Path) -> None:
        """Write the table as Parquet; arrays stay lists."""
        pyarrow = import_optional("pyarrow", "parquet")
        parquet = import_optional("pyarrow.parquet", "parquet")
        table = pyarrow.table(
            {
                name: pyarrow.array(np.asarray(self.arrays.get(name, values)).tolist())
                for name, values in self.columns.items()
            }
        )
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(table, sink)
        durable.write_file(path, sink.getvalue().to_pybytes())

    def summary(self, worst: int) -> dict[str, Any]:
        """Return distributions, worst rows and the usual metrics."""
        found: dict[str, Any] = {
            "count": len(self),
            "columns": summary_statistics.numeric(self.columns, list(self.means)),
            "worst": summary_statistics.worst(self.columns, worst),
        }
        if self.whole:
            found["whole"] = dict(self.whole)
        for name in ("undefined", "failed", "remade"):
            if getattr(self, name):
                found[name] = dict(getattr(self, name))
        return {**found, **self.usual}


def evaluate_rows(
    learner: Learner,
    source: Source,
    batch_size: int,
    member: int = 0,
    evaluator: Evaluator | None = None,
    whole: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    shown: str = "",
    mode: Mode = "summary",
) -> Report:
    """Evaluate one run of a cohort on every row of a split; `shown` is the label of a progress bar."""
    table, metrics = ReportTable(evaluator or Evaluator({}), mode), SplitMetrics(whole or {})
    batches = show_progress(once(source, batch_size), len(source), shown, bool(shown))
    with own_randomness():
        learner.attend(source)
        for outputs in learner.evaluate(watching(batches, watch)):
            table.add(outputs, member)
            target = None if outputs.target is None else outputs.target[member]
            metrics.update(outputs.output[member], target, functools.partial(outputs.every, member))
        table.flush()
        measured = {**metrics.values(), **learner.whole()[member]}
        learner.attend(None)
    rows = np.concatenate(table.index) if table.index else np.zeros(0, dtype=np.int64)
    remade: dict[str, int] = {}
    columns: dict[str, Any] = keys_of(rows, source, remade)
    columns |= {name: column(found) for name, found in table.parts.items() if found}
    for name in [name for name in table.others if name in columns and len(columns[name]) != len(rows)]:
        log.warning("the report omits %s: not every row has a value", name)
        del columns[name]
    measured |= {name: float(columns.pop(name).mean()) for name in table.shared if name in columns}
    failed = {columns["id"][place]: text for place, text in table.failed.items()}
    if failed:
        columns["failed"] = [table.failed.get(place, "") for place in range(len(rows))]
    numbers = {n: values for n, values in columns.items() if n not in HEAD and n not in table.others}
    undefined = {n: count for n, values in numbers.items() if (count := int(np.isnan(values).sum()))}
    for name, count in undefined.items():
        log.warning("%r is undefined in %d of %d rows: its mean is over the others", name, count, len(rows))
    means = {name: summary_statistics.mean(values) for name, values in numbers.items()}
    arrays = {name: np.concatenate(found) for name, found in table.arrays.items() if alike(found)}
    return Report(
        columns, means, table.classes, measured, table.usual(), undefined, failed, remade, arrays, table.first
    )


def keys_of(
    rows: npt.NDArray[np.int64], source: Source, remade: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return the columns that identify the lines, after checking that each row occurs exactly once.

    Only a preprocessor (`remade_by`) may drop or repeat rows; a warning is logged, and `remade` receives the
    numbers of missing and repeated rows.
    """
    ids, wanted = source.ids(rows), len(source)
    distinct, which, times = np.unique(rows, return_inverse=True, return_counts=True)
    missing, repeated = wanted - len(distinct), len(rows) - len(distinct)
    who = getattr(source, "remade_by", "")
    if (missing or repeated) and not (who and len(rows)):
        raise RunFailed(f"the report would contain {len(distinct)} rows, but the split has {wanted}")
    found: dict[str, Any] = {"id": ids}
    if missing or repeated:
        log.warning(
            "%s makes %d rows of %d data points: %d are missing, %d occur more than once",
            who, len(rows), wanted, missing, int((times > 1).sum()),
        )  # fmt: skip
        if remade is not None:
            remade |= {"missing": missing, "repeated": int((times > 1).sum())}
    if len(set(ids)) != len(distinct):
        found["row"] = rows
    if repeated:
        order = np.argsort(which, kind="stable")
        part = np.empty(len(rows), dtype=np.int64)
        part[order] = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        found["part"] = part
    return found


class ReportTable:
    """The growing columns of a report. Outputs are processed in blocks of limited size."""

    def __init__(self, evaluator: Evaluator, mode: Mode = "summary") -> None:
        self.parts: dict[str, list[Any]] = {"target": [], "prediction": [], "confidence": []}
        self.arrays: dict[str, list[Any]] = {}
        """Columns that are too large for a table, in full, with mode "full"."""
        self.index: list[npt.NDArray[np.int64]] = []
        self.failed: dict[int, str] = {}
        """Error messages by line of the table, for lines on which a function failed."""
        self._mode, self._is_said, self._done = mode, False, 0
        self._confusions: dict[str, summary_statistics.Confusion] = {}
        """By output, if every output has a target; otherwise only that of the main output, named ''."""
        self._has_heads = False
        self.classes = 0
        self.others: set[str] = set()
        """Columns of further outputs, which are shown but not measured."""
        self.shared: set[str] = set()
        """Columns with one value per batch: they are measured but not reported."""
        self._evaluator = evaluator
        self._waiting: list[tuple[Nested, Nested]] = []
        self._bytes = 0
        self.first: FirstRows | None = None

    def add(self, outputs: Outputs, member: int) -> None:
        """Add the rows of a batch."""
        self.index.append(outputs.index)
        self.shared |= outputs.shared
        self._has_heads = outputs.has_heads
        for name, values in outputs.rows.items():
            self.parts.setdefault(name, []).append(values[member])
        every = outputs.every(member)
        if self.first is None:
            self.first = FirstRows.of(*every, outputs.index)
        if self._waiting and shapes(self._waiting[0][0]) != shapes(every[0]):
            self.flush()  # the shape of the rows or the outputs have changed
        self._waiting.append(every)
        self._bytes += sum(array.nbytes for _, array in named_arrays(self._waiting[-1][0]))
        if self._bytes > AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Process the collected outputs: predictions, confidences and evaluation functions."""
        if self._waiting:
            output, target = (concatenate(values) for values in zip(*self._waiting, strict=True))
            self._waiting, self._bytes = [], 0
            self._read(output, target)

    def _read(self, output: Nested, target: Nested) -> None:
        begin, self._done = self._done, self._done + count_rows(output)
        pairs = pair_outputs(output, target)
        for i, (name, other, known) in enumerate(pairs):
            of = f"_{name}" if i or self._has_heads else ""
            prediction, classes = self._show(other, known, of)
            if not i:
                self.classes = max(self.classes, classes)
            if known is not None and (not i or self._has_heads):
                head = name if self._has_heads else ""
                confusion = self._confusions.setdefault(head, summary_statistics.Confusion())
                confusion.add(squeeze(known), prediction, self.classes if not i else classes)
        if self._evaluator.functions and target is not None:
            for name, values in self._evaluator(output, target).items():
                if name in self.others:
                    raise UsageError(f"a report already has a column named {name!r}; choose another name")
                self.parts.setdefault(name, []).append(values)
            for name, i, text in self._evaluator.failures:
                before = self.failed.get(begin + i)
                self.failed[begin + i] = f"{before}; {name}: {text}" if before else f"{name}: {text}"

    def _show(self, output: Any, target: Any, of: str = "") -> tuple[npt.NDArray[Any], int]:
        """Add the columns of an output; return its predictions and its number of classes."""
        found, confidence = (output, None) if of and target is None else interpret(output, target)
        prediction, columns = squeeze(found), {"target": target, "prediction": found}
        if of:
            self.others |= {f"{name}{of}" for name in ("target", "prediction", "confidence")}
        for name, values in columns.items():
            if values is not None:
                self._put(f"{name}{of}", squeeze(values))
        if confidence is not None:
            self.parts.setdefault(f"confidence{of}", []).append(confidence)
        return prediction, 0 if confidence is None else output.shape[1]

    def _put(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add values to a column; large arrays are summarized, empty ones are left out."""
        if values.ndim > 1 and not values[0].size:
            return
        if values.ndim < 2 or values[0].size <= MOST_CELLS:
            self.parts.setdefault(name, []).append(values)
            return
        if not self._is_said:
            self._is_said = True
            kept = {"full": "they are written next to it as .npy", "summary": "it has summaries of them"}
            log.warning(
                "rows have arrays of %d numbers, which are too large for a report: %s (evaluate.outputs)",
                values[0].size, kept.get(self._mode, "they are omitted"),
            )  # fmt: skip
        if self._mode == "full":
            self.arrays.setdefault(name, []).append(values)
        if self._mode != "none":
            self.parts.setdefault(name, []).append(np.array([summarize_array(row) for row in values]))

    def usual(self) -> dict[str, Any]:
        """Return the usual metrics of classes, if the outputs are classes."""
        if not self._has_heads:
            return self._confusions[""].metrics() if self._confusions else {}
        found = {name: confusion.metrics() for name, confusion in self._confusions.items()}
        return {"heads": found} if any(found.values()) else {}


def summarize_array(row: npt.NDArray[Any]) -> str:
    """Summarize a large array in a few words.

    >>> summarize_array(np.arange(6.0).reshape(2, 3))
    'float64[2, 3], from 0 to 5, mean 2.5'
    """
    low, high, mean = row.min(), row.max(), row.mean(dtype=np.float64)
    return f"{row.dtype}{list(row.shape)}, from {low:.6g} to {high:.6g}, mean {mean:.6g}"


def interpret(
    output: npt.NDArray[Any], target: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return class and confidence if the target is a class and outputs are class scores; else the output.

    For a row with many classes (segmentation), the confidence is the mean over its positions. Without a
    target, two or more numbers in a row are taken as class scores.
    """
    if target is None:
        is_classes = output.ndim == 2 and output.shape[1] > 1
    else:
        is_classes = (
            np.issubdtype(target.dtype, np.integer)
            and output.ndim == target.ndim + 1
            and output.shape[1] > 1
            and output.shape[2:] == target.shape[1:]
        )
    if not is_classes:
        return output, None
    top = output.max(axis=1)
    if output.size and output.min() >= 0 and np.allclose(output.sum(axis=1), 1, atol=1e-3):
        confidence = top.astype(np.float64)  # probabilities already
        return output.argmax(axis=1), confidence.reshape(len(output), -1).mean(axis=1)
    scores = np.exp(output - top[:, None], dtype=np.float64).sum(axis=1)
    confidence = 1 / scores
    return output.argmax(axis=1), confidence.reshape(len(output), -1).mean(
        axis=1
    ) if confidence.ndim > 1 else confidence


def squeeze(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values as one-dimensional if each row is a single number."""
    return values.reshape(len(values)) if values.ndim > 1 and values[0].size == 1 else values


def alike(parts: Sequence[npt.NDArray[Any]]) -> bool:
    """Return whether the rows of all parts have the same shape."""
    return len({part.shape[1:] for part in parts}) == 1


def column(parts: Sequence[npt.NDArray[Any]]) -> Any:
    """Concatenate the parts of a column; a list if rows have different shapes."""
    return np.concatenate(parts) if alike(parts) else [row.tolist() for part in parts for row in part]


def format_csv(columns: Mapping[str, Any]) -> str:
    """Return columns as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(format_cells(values) for values in columns.values()), strict=True))
    return text.getvalue()


def format_cells(values: Any) -> list[Any]:
    """Return one cell per row; arrays become JSON."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [json.dumps(row) if isinstance(row, list) else row for row in listed]
