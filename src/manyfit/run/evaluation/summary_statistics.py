"""Summary statistics of a report: distributions of columns, worst rows and the usual metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_CLASSES = 50
"""A confusion matrix of more classes is not written to the summary."""
MOST_CLASSES = 2_000
"""A confusion matrix of more classes is not computed."""


def mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean over the rows that have a value; NaN if there are none."""
    is_undefined = np.isnan(values)
    known = values[~is_undefined] if is_undefined.any() else values
    return float(known.mean()) if len(known) else float("nan")


def describe_values(values: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return count, mean, standard deviation and quartiles.

    NaN is excluded from all of them, infinity from all but the count and the mean.
    """
    finite = values[np.isfinite(values)]
    found: dict[str, float] = {"count": int((~np.isnan(values)).sum())}
    if len(finite) < len(values):
        found["not_finite"] = len(values) - len(finite)
    found["mean"] = mean(values)
    if len(finite):
        low, first, middle, third, high = np.quantile(finite, [0, 0.25, 0.5, 0.75, 1])
        found |= {
            "std": float(finite.std(ddof=1)) if len(finite) > 1 else 0.0,
            "min": float(low),
            "q25": float(first),
            "median": float(middle),
            "q75": float(third),
            "max": float(high),
        }
    return found


def worst(columns: Mapping[str, Any], count: int, by: str = "loss") -> list[dict[str, Any]]:
    """Return the rows with the highest losses, worst first; NaN counts as the highest."""
    if by not in columns or not count:
        return []
    losses = np.asarray(columns[by], dtype=np.float64)
    order = np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:count]
    shown = [name for name, values in columns.items() if np.ndim(values[0]) == 0]
    return [{name: _plain(columns[name][row]) for name in shown} for row in order]


class Confusion:
    """A confusion matrix over rows, or over positions if a row has many classes (segmentation)."""

    def __init__(self) -> None:
        self._matrix = np.zeros((0, 0), dtype=np.int64)
        self._hits, self._total = 0, 0
        self._is_usable, self._has_places, self._is_large = True, False, False

    def add(self, target: Any, prediction: Any, classes: int) -> None:
        """Add rows."""
        true, said = np.asarray(target), np.asarray(prediction)
        is_whole = np.issubdtype(true.dtype, np.integer) and np.issubdtype(said.dtype, np.integer)
        if not is_whole or true.shape != said.shape:
            self._is_usable = False
        if not self._is_usable:
            return
        true, said = true.astype(np.int64), said.astype(np.int64)
        self._has_places |= true.ndim > 1
        # Targets that are not a class of the model (-100, or 255 for "no label") are ignored, as in losses.
        counts = (true >= 0) & ((true < classes) | (classes <= 0))
        true, said = true[counts], said[counts]
        self._hits, self._total = self._hits + int((true == said).sum()), self._total + true.size
        classes = max(classes, len(self._matrix), int(true.max(initial=0)) + 1, int(said.max(initial=0)) + 1)
        self._is_large |= classes > MOST_CLASSES
        if self._is_large or not true.size:
            return
        found = np.bincount(true * classes + said, minlength=classes**2).reshape(classes, classes)
        known = len(self._matrix)
        found[:known, :known] += self._matrix
        self._matrix = found

    def metrics(self) -> dict[str, Any]:
        """Return classification metrics, or segmentation metrics if a row has many classes."""
        if not self._is_usable or not self._total:
            return {}
        if self._is_large:
            return {"accuracy": self._hits / self._total}
        return (segmentation if self._has_places else classification)(self._matrix)


def usual(target: Any, prediction: Any, classes: int) -> dict[str, Any]:
    """Return classification metrics, or segmentation metrics if a row has many classes."""
    found = Confusion()
    found.add(target, prediction, classes)
    return found.metrics()


def classification(matrix: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return metrics of a confusion matrix (rows are true classes); means are over classes that occur."""
    hits = np.diag(matrix).astype(np.float64)
    true, said = matrix.sum(axis=1), matrix.sum(axis=0)
    occurs = (true + said) > 0
    recall = _ratio(hits, true)
    precision = _ratio(hits, said)
    f1 = _ratio(2 * hits, true + said)
    found: dict[str, Any] = {
        "accuracy": float(hits.sum() / matrix.sum()),
        "balanced_accuracy": float(recall[true > 0].mean()),
        "macro_precision": float(precision[occurs].mean()),
        "macro_recall": float(recall[occurs].mean()),
        "macro_f1": float(f1[occurs].mean()),
    }
    if len(matrix) <= MAX_CLASSES:
        found["confusion"] = matrix.tolist()
    return found


def segmentation(matrix: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return metrics of a confusion matrix of pixels; means are over classes that occur."""
    hits = np.diag(matrix).astype(np.float64)
    true, said = matrix.sum(axis=1), matrix.sum(axis=0)
    occurs = (true + said) > 0
    return {
        "pixel_accuracy": float(hits.sum() / matrix.sum()),
        "mean_iou": float(_ratio(hits, true + said - hits)[occurs].mean()),
        "mean_dice": float(_ratio(2 * hits, true + said)[occurs].mean()),
    }


def _ratio(above: npt.NDArray[Any], below: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    found = np.zeros(len(above), dtype=np.float64)
    np.divide(above, below, out=found, where=below > 0)
    return found


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def numeric(columns: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the distribution of each named column."""
    return {name: describe_values(np.asarray(columns[name], dtype=np.float64)) for name in names}
