"""Row-by-row evaluation: one line of a report for every row of a split, by its id."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import RunFailed
from manyfit.data import Source, once
from manyfit.learn.learner import Learner
from manyfit.store import durable


@dataclass(frozen=True, slots=True)
class Report:
    """A table with one row for each row of the split, and the mean of every number in it."""

    columns: Mapping[str, list[Any]]
    means: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.columns["id"])

    def write(self, path: Path) -> None:
        """Write the table as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*self.columns.values(), strict=True))
        durable.write(path, text.getvalue())


def evaluate(learner: Learner, source: Source, batch_size: int, member: int = 0) -> Report:
    """Evaluate one run of a cohort on every row of a split."""
    columns: dict[str, list[Any]] = {"id": [], "target": [], "prediction": []}
    for outputs in learner.evaluate(once(source, batch_size)):
        output, target = outputs.output[member], outputs.target[member]
        prediction, confidence = predict(output, target)
        columns["id"] += source.ids(outputs.index)
        columns["target"] += _cells(target)
        columns["prediction"] += _cells(prediction)
        if confidence is not None:
            columns.setdefault("confidence", []).extend(_cells(confidence))
        for name, values in outputs.rows.items():
            columns.setdefault(name, []).extend(_cells(values[member]))
    if len(set(columns["id"])) != len(source) or len(columns["id"]) != len(source):
        raise RunFailed(
            f"the report would hold {len(columns['id'])} rows with {len(set(columns['id']))} ids, "
            f"but the split has {len(source)} rows"
        )
    measured = [name for name in columns if name not in ("id", "target", "prediction", "confidence")]
    return Report(columns, {name: float(np.mean(columns[name])) for name in measured})


def predict(
    output: npt.NDArray[Any], target: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Scores of classes → class and confidence, where the target is a class; else the output itself."""
    if np.issubdtype(target.dtype, np.integer) and output.ndim == 2 and target.ndim == 1:
        scores = np.exp(output.astype(np.float64) - output.max(axis=1, keepdims=True))
        return output.argmax(axis=1), scores.max(axis=1) / scores.sum(axis=1)
    return output, None


def _cells(values: npt.NDArray[Any]) -> list[Any]:
    """One cell for each row; what is not a number becomes JSON-like text."""
    if values.ndim > 1 and values[0].size == 1:
        values = values.reshape(len(values))
    return [repr(row) if isinstance(row, list) else row for row in values.tolist()]
