"""Line charts: as text in a terminal, or as a PNG or SVG file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.store import durable

DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The dots of a braille character, by row and column."""
FORMATS: Final = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Series:
    """A curve, with a band around it if it is a mean of several."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    is_dots: bool = False
    """Whether its values are not connected."""


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[Mark] = field(default_factory=tuple)


class Drawable:
    """Something that can be drawn into a file; a notebook shows it."""

    def draw(self) -> Any:
        """Return a figure of matplotlib."""
        raise NotImplementedError

    def save(self, file: str | Path) -> Path:
        """Write a PNG, SVG or PDF file."""
        path = Path(file)
        check_output(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(path, self._render(path.suffix.lower().removeprefix(".")))
        return path

    def _render(self, form: str) -> bytes:
        stream = io.BytesIO()
        self.draw().savefig(stream, format=form, dpi=120)
        return stream.getvalue()

    def _repr_png_(self) -> bytes:
        return self._render("png")


@dataclass(frozen=True)
class Figure(Drawable):
    """One or several charts, one below the other."""

    charts: Sequence[Chart]

    def draw(self) -> Any:
        """Return a figure of matplotlib."""
        return draw_figure(self.charts)

    def text(self, width: int = 78, height: int = 12) -> str:
        """Return the charts as text."""
        return "\n\n".join(draw_text(chart, width, height) for chart in self.charts)

    def __str__(self) -> str:
        return self.text()


def check_output(file: Path | None) -> None:
    """Raise an error for a file that no figure can be written to."""
    if file is not None and file.suffix.lower() not in FORMATS:
        raise UsageError(f"{file}: a figure is written as one of {', '.join(FORMATS)}")


def draw_figure(charts: Sequence[Chart]) -> Any:
    """Return a figure of matplotlib. Needs the extra `plots`; no window is opened."""
    figures = import_optional("matplotlib.figure", "plots")
    figure = figures.Figure(figsize=(8, 3.4 * len(charts)), layout="constrained")
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        for each in chart.series:
            marker = "o" if len(each.x) < 3 or each.is_dots else None
            (line,) = axes.plot(
                each.x, each.y, label=each.name, marker=marker, linestyle="" if each.is_dots else "-"
            )
            if each.low is not None and each.high is not None:
                axes.fill_between(each.x, each.low, each.high, alpha=0.2, color=line.get_color(), linewidth=0)
        for mark in chart.marks:
            axes.axvline(mark.x, linestyle="--", color="gray", linewidth=1)
            axes.annotate(
                mark.label, (mark.x, 0.97), xycoords=("data", "axes fraction"), fontsize=8, va="top"
            )
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if chart.log_x:
            axes.set_xscale("log")
        if chart.log_y:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        if len(chart.series) > 1 or chart.series[0].name:
            axes.legend(fontsize=8)
    return figure


def draw_text(chart: Chart, width: int = 78, height: int = 12) -> str:
    """Draw a chart with braille characters, which have 2 × 4 dots."""
    points = [list(_finite(each, chart)) for each in chart.series]
    flat = [point for each in points for point in each]
    if not flat:
        return f"{chart.title}: nothing to draw"
    x_low, x_high = min(x for x, _ in flat), max(x for x, _ in flat)
    y_low, y_high = min(y for _, y in flat), max(y for _, y in flat)
    labels = [_show(value, chart.log_y) for value in (y_high, (y_low + y_high) / 2, y_low)]
    left = max(map(len, labels))
    columns = max(10, width - left - 2)
    cells = [[0] * columns for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return round(across * (2 * columns - 1)), round((1 - up) * (4 * height - 1))

    for each in points:
        for start, end in zip(each, each[1:] or each, strict=False):
            (x0, y0), (x1, y1) = place(*start), place(*end)
            for i in range((count := max(abs(x1 - x0), abs(y1 - y0), 1)) + 1):
                x, y = round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)
                cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
    rows = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    lines = [
        f"{rows.get(i, ''):>{left}} ┤{''.join(chr(0x2800 + c) for c in row)}" for i, row in enumerate(cells)
    ]
    ends = [_show(x_low, chart.log_x), _show(x_high, chart.log_x)]
    gap = max(1, columns - len(ends[0]) - len(ends[1]))
    names = ", ".join(each.name for each in chart.series if each.name)
    title = f"{chart.title}  ({names})" if names and names != chart.title else chart.title
    axis = f"{'':>{left}}  {ends[0]}{chart.x_label:^{gap}}{ends[1]}"
    return "\n".join([title, *lines, axis])


def _finite(series: Series, chart: Chart) -> Any:
    for x, y in zip(series.x, series.y, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        if (chart.log_x and x <= 0) or (chart.log_y and y <= 0):
            continue
        yield math.log10(x) if chart.log_x else x, math.log10(y) if chart.log_y else y


def _show(value: float, is_log: bool) -> str:
    return f"{10**value if is_log else value:.4g}"
