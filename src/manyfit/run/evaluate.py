"""Row-by-row evaluation: one line of a report for every row of a split, by its id."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import RunFailed
from manyfit.core.lazy import optional
from manyfit.data import Source, once
from manyfit.data.randomness import own_randomness
from manyfit.learn.learner import Learner, Outputs
from manyfit.run import statistics
from manyfit.run.evaluator import Evaluator
from manyfit.run.measure import Whole, watching
from manyfit.run.progress import counted
from manyfit.run.signals import Watch
from manyfit.store import durable

log = logging.getLogger("manyfit")

AT_ONCE: Final = 1 << 24
"""Bytes of outputs and targets that functions of one data point see together."""
HEAD: Final = ("id", "row", "part", "target", "prediction", "confidence")
KEYS: Final = ("id", "row", "part")
"""What tells rows apart: the id; the row, where ids are repeated; the part, where a row became several."""


@dataclass(frozen=True, slots=True)
class Report:
    """A table with one row for each row of the split, the mean of every number in it, and what is measured
    of the split as a whole."""

    columns: Mapping[str, Any]
    means: Mapping[str, float]
    classes: int = 0
    whole: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["id"])

    @property
    def values(self) -> dict[str, float]:
        """Means over rows, and metrics of the whole split."""
        return {**self.means, **self.whole}

    def write(self, path: Path) -> None:
        """Write the table as CSV."""
        durable.write(path, as_csv(self.columns))

    def write_points(self, folder: Path, split: str, names: Sequence[str]) -> None:
        """Write what an evaluator measured, data point by data point, under the names that its users know."""
        known = {name: self.columns[name] for name in KEYS if name in self.columns}
        table = {**known, **{name: self.columns[name] for name in names}}
        if split == "validation":
            durable.write(folder / "validation_report.csv", as_csv(table))
        elif split == "test":
            durable.write(folder / "eval_report.csv", as_csv(table))
            found = {name: statistics.distribution(np.asarray(self.columns[name])) for name in names}
            keys = ("count", "mean", "std", "min", "q25", "median", "q75", "max")
            shown = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")
            rows = {"": list(shown), **{n: [f.get(key, "") for key in keys] for n, f in found.items()}}
            durable.write(folder / "eval_report_summary.csv", as_csv(rows))

    def write_parquet(self, path: Path) -> None:
        """Write the table as Parquet; arrays stay lists."""
        pyarrow = optional("pyarrow", "parquet")
        parquet = optional("pyarrow.parquet", "parquet")
        table = pyarrow.table(
            {name: pyarrow.array(np.asarray(values).tolist()) for name, values in self.columns.items()}
        )
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(table, sink)
        durable.write(path, sink.getvalue().to_pybytes())

    def summary(self, worst: int) -> dict[str, Any]:
        """Distributions, worst rows and the usual metrics."""
        found: dict[str, Any] = {
            "count": len(self),
            "columns": statistics.numeric(self.columns, list(self.means)),
            "worst": statistics.worst(self.columns, worst),
        }
        if self.whole:
            found["whole"] = dict(self.whole)
        if "target" in self.columns:
            found |= statistics.usual(self.columns["target"], self.columns["prediction"], self.classes)
        return found


def evaluate(
    learner: Learner,
    source: Source,
    batch_size: int,
    member: int = 0,
    evaluator: Evaluator | None = None,
    whole: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    shown: str = "",
) -> Report:
    """Evaluate one run of a cohort on every row of a split; `shown` is the name of a bar on a terminal."""
    table, metrics = Table(evaluator or Evaluator({})), Whole(whole or {})
    batches = counted(once(source, batch_size), len(source), shown, bool(shown))
    with own_randomness():
        for outputs in learner.evaluate(watching(batches, watch)):
            table.add(outputs, member)
            metrics.update(outputs, member)
        table.flush()
        measured = {**metrics.values(), **learner.whole()[member]}
    rows = np.concatenate(table.index) if table.index else np.zeros(0, dtype=np.int64)
    columns: dict[str, Any] = keys_of(rows, source)
    columns |= {name: np.concatenate(found) for name, found in table.parts.items() if found}
    measured |= {name: float(columns.pop(name).mean()) for name in table.shared if name in columns}
    means = {name: float(values.mean()) for name, values in columns.items() if name not in HEAD}
    return Report(columns, means, table.classes, measured)


def keys_of(rows: npt.NDArray[np.int64], source: Source) -> dict[str, Any]:
    """What tells rows apart; every row of the split is there exactly once, or it is said who is to blame."""
    ids, wanted = source.ids(rows), len(source)
    distinct, which, times = np.unique(rows, return_inverse=True, return_counts=True)
    missing, repeated = wanted - len(distinct), len(rows) - len(distinct)
    who = getattr(source, "remade_by", "")
    if (missing or repeated) and not (who and len(rows)):
        raise RunFailed(f"the report would hold {len(distinct)} rows, but the split has {wanted}")
    found: dict[str, Any] = {"id": ids}
    if missing or repeated:
        log.warning(
            "%s makes %d rows of %d data points: %d are missing, %d are there more than once",
            who, len(rows), wanted, missing, int((times > 1).sum()),
        )  # fmt: skip
    if len(set(ids)) != len(distinct):
        found["row"] = rows
    if repeated:
        order = np.argsort(which, kind="stable")
        part = np.empty(len(rows), dtype=np.int64)
        part[order] = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)
        found["part"] = part
    return found


class Table:
    """The columns of a report, as they grow. Outputs are read for as many rows at once as fit in memory."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.parts: dict[str, list[Any]] = {"target": [], "prediction": [], "confidence": []}
        self.index: list[npt.NDArray[np.int64]] = []
        self.classes = 0
        self.shared: set[str] = set()
        """Columns that hold a number of the batch in every row: they are measured, but not reported."""
        self._evaluator = evaluator
        self._waiting: list[tuple[npt.NDArray[Any], npt.NDArray[Any] | None]] = []
        self._bytes = 0

    def add(self, outputs: Outputs, member: int) -> None:
        """Add the rows of a batch."""
        self.index.append(outputs.index)
        self.shared |= outputs.shared
        for name, values in outputs.rows.items():
            self.parts.setdefault(name, []).append(values[member])
        output = outputs.output[member]
        self._waiting.append((output, None if outputs.target is None else outputs.target[member]))
        self._bytes += output.nbytes
        if self._bytes > AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Read what has come together: predictions, confidences, functions of one data point."""
        if self._waiting:
            output = np.concatenate([output for output, _ in self._waiting])
            targets = [target for _, target in self._waiting if target is not None]
            self._waiting, self._bytes = [], 0
            self._read(output, np.concatenate(targets) if targets else None)

    def _read(self, output: npt.NDArray[Any], target: npt.NDArray[Any] | None) -> None:
        prediction, confidence = interpret(output, target)
        self.parts["prediction"].append(squeezed(prediction))
        if confidence is not None:
            self.parts["confidence"].append(confidence)
            self.classes = max(self.classes, output.shape[1])
        if target is None:
            return
        self.parts["target"].append(squeezed(target))
        if self._evaluator.functions:
            for name, values in self._evaluator(output, target).items():
                self.parts.setdefault(name, []).append(values)


def interpret(
    output: npt.NDArray[Any], target: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Scores of classes → class and confidence, where the target is a class; else the output itself.

    A row that has a class for each of many places (segmentation) has the mean confidence of its places.
    Without a target, two or more scores in a row are scores of classes.
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


def squeezed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column of single numbers is one-dimensional."""
    return values.reshape(len(values)) if values.ndim > 1 and values[0].size == 1 else values


def as_csv(columns: Mapping[str, Any]) -> str:
    """Columns as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(cells(values) for values in columns.values()), strict=True))
    return text.getvalue()


def cells(values: Any) -> list[Any]:
    """One cell for each row; an array becomes JSON."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [json.dumps(row) if isinstance(row, list) else row for row in listed]
