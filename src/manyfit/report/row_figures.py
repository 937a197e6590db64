"""Figures of a row report: a confusion matrix and calibration for classes, residuals for numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.lazy import import_optional
from manyfit.store import durable

MOST_CLASSES: Final = 50
BINS: Final = 10


def write_row_figure(columns: Mapping[str, Any], file: Path) -> bool:
    """Draw the outputs of a report that have targets; return whether there was anything to draw."""
    names = [name.removeprefix("prediction") for name in columns if name.startswith("prediction")]
    panels = [panel for name in names for panel in choose_panels(columns, name)]
    if not panels:
        return False
    figures = import_optional("matplotlib.figure", "plots")
    figure = figures.Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    for axes, (draw, title, given) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        draw(axes, *given)
        axes.set_title(title, fontsize=10)
    stream = io.BytesIO()
    figure.savefig(stream, format=file.suffix.removeprefix("."), dpi=110)
    durable.write_file(file, stream.getvalue())
    return True


def choose_panels(columns: Mapping[str, Any], of: str) -> list[tuple[Any, str, tuple[Any, ...]]]:
    """Return the panels of one output: a function, a title and its arguments."""
    if f"target{of}" not in columns:
        return []
    target, found = np.asarray(columns[f"target{of}"]), np.asarray(columns[f"prediction{of}"])
    name = of.removeprefix("_")
    shown = f"{name}: " if name else ""
    if target.ndim != 1 or target.shape != found.shape or target.dtype.kind not in "iuf":
        return []
    if target.dtype.kind in "iu" and found.dtype.kind in "iu":
        panels: list[tuple[Any, str, tuple[Any, ...]]] = []
        if max(int(target.max()), int(found.max())) < MOST_CLASSES:
            panels.append((draw_confusion, f"{shown}confusion matrix", (target, found)))
        if f"confidence{of}" in columns:
            confidence = np.asarray(columns[f"confidence{of}"], dtype=np.float64)
            panels.append((draw_calibration, f"{shown}calibration", (target == found, confidence)))
        return panels
    if found.dtype.kind != "f":
        return []
    return [(draw_residuals, f"{shown}residuals", (target.astype(np.float64), found.astype(np.float64)))]


def draw_confusion(axes: Any, target: npt.NDArray[Any], found: npt.NDArray[Any]) -> None:
    """Draw how often each class was taken for each class."""
    count = int(max(target.max(), found.max())) + 1
    matrix = np.bincount(target * count + found, minlength=count**2).reshape(count, count)
    axes.imshow(matrix / np.maximum(matrix.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class")
    if count <= 12:
        axes.set_xticks(range(count))
        axes.set_yticks(range(count))
        for row, column in np.ndindex(matrix.shape):
            dark = matrix[row, column] > 0.5 * max(1, matrix[row].sum())
            color = "white" if dark else "black"
            axes.text(
                column, row, int(matrix[row, column]), ha="center", va="center", fontsize=7, color=color
            )


def draw_calibration(axes: Any, is_right: npt.NDArray[np.bool_], confidence: npt.NDArray[np.float64]) -> None:
    """Draw the accuracy of predictions by their confidence; a calibrated model is on the diagonal."""
    low = float(confidence.min())
    edges = np.linspace(low, 1.0, BINS + 1)
    which = np.clip(np.digitize(confidence, edges) - 1, 0, BINS - 1)
    used = [b for b in range(BINS) if (which == b).any()]
    x = [float(confidence[which == b].mean()) for b in used]
    y = [float(is_right[which == b].mean()) for b in used]
    sizes = [20 + 180 * float((which == b).mean()) for b in used]
    axes.plot([low, 1], [low, 1], linestyle="--", color="gray", linewidth=1)
    axes.scatter(x, y, s=sizes)
    axes.plot(x, y, linewidth=1)
    gap = sum(float((which == b).mean()) * abs(p - q) for b, p, q in zip(used, x, y, strict=True))
    axes.set(xlabel="confidence", ylabel="accuracy", ylim=(-0.02, 1.02))
    axes.text(0.03, 0.95, f"expected error {gap:.3f}", transform=axes.transAxes, fontsize=8, va="top")
    axes.grid(alpha=0.3)


def draw_residuals(axes: Any, target: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> None:
    """Draw predictions minus targets over the predictions."""
    axes.axhline(0, linestyle="--", color="gray", linewidth=1)
    axes.scatter(found, found - target, s=6, alpha=0.5)
    spread = float(np.sqrt(np.mean((found - target) ** 2)))
    axes.set(xlabel="prediction", ylabel="prediction - target")
    axes.text(0.03, 0.95, f"RMSE {spread:.4g}", transform=axes.transAxes, fontsize=8, va="top")
    axes.grid(alpha=0.3)
