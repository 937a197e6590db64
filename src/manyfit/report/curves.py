"""Curves of runs: smoothed, by step, epoch or time, with bands over the seeds of a point."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, nearest
from manyfit.core.smoothing import smooth_values
from manyfit.report.charts import Chart, Figure, Series
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder
from manyfit.study.result import Study, read_study

if TYPE_CHECKING:
    import pandas

AXES: Final = ("step", "epoch", "time")
PAUSE: Final = 20
"""A gap of this many usual gaps between two entries is a pause."""
BEST_POINTS: Final = 5
"""The number of points of a study whose curves are drawn."""

Curve = tuple[Sequence[float], Sequence[float]]


def frame_of_events(events: Sequence[Event]) -> pandas.DataFrame:
    """Return one row per entry of a log."""
    pandas = import_optional("pandas", "search")
    return pandas.DataFrame([{"step": e.step, "epoch": e.epoch, "time": e.time, **e.values} for e in events])


def read_curve(events: Sequence[Event], metric: str, by: str) -> Curve:
    """Return the curve of a metric; time is in seconds of training since the first entry."""
    places = active_seconds(events) if by == "time" else [float(getattr(event, by)) for event in events]
    known = [
        (x, event.values[metric]) for x, event in zip(places, events, strict=True) if metric in event.values
    ]
    return [x for x, _ in known], [y for _, y in known]


def active_seconds(events: Sequence[Event]) -> list[float]:
    """Return the time of each entry since the first one, without the pauses between two starts of a run."""
    gaps = [max(0.0, b.time - a.time) for a, b in itertools.pairwise(events)]
    usual = statistics.median(gaps) if gaps else 0.0
    found = [0.0] if events else []
    for gap in gaps:
        found.append(found[-1] + (gap if gap <= PAUSE * max(usual, 0.1) else usual))
    return found


def choose_metrics(logs: Sequence[Sequence[Event]], asked: Sequence[str]) -> list[str]:
    """Return the metrics to draw: those asked for, else losses, and the validation metrics."""
    known = list(dict.fromkeys(name for events in logs for event in events for name in event.values))
    if not known:
        raise UsageError("there are no curves to draw yet: nothing was logged")
    for name in asked:
        if name not in known:
            best = nearest(name, known)
            hint = f"did you mean {best}?" if best else f"there are {listing(known)}"
            raise UsageError(f"no run has logged {name!r}; {hint}")
    if asked:
        return list(asked)
    return [name for name in known if name == "train_loss" or name.startswith("val_")][:6]


def draw_history(
    places: Sequence[Path], asked: Sequence[str] = (), by: str = "step", smooth: float = 0.0
) -> list[Chart]:
    """Draw the curves of runs and studies: a chart for each metric, with a curve for each run or point."""
    if not 0 <= smooth < 1:
        raise UsageError(f"the weight of the moving average must be from 0 to below 1, not {smooth}")
    if by not in AXES:
        raise UsageError(f"curves are drawn by {', '.join(AXES)}, not by {by!r}")
    groups: dict[str, list[list[Event]]] = {}
    for place in places:
        if (place / "study.yaml").is_file() or (place / "ledger.db").is_file():
            groups |= read_point_logs(read_study(place))
        else:
            folder = RunFolder(place)
            folder.load_trained()
            groups[folder.name if folder.name not in groups else str(place)] = [folder.events()]
    metrics = choose_metrics([events for logs in groups.values() for events in logs], asked)
    if len(groups) == 1 and not asked:  # one run: losses in one chart
        return _draw_one(next(iter(groups)), next(iter(groups.values())), metrics, by, smooth)
    charts = []
    for metric in metrics:
        found = [_series(name, logs, metric, by, smooth) for name, logs in groups.items()]
        charts.append(Chart(metric, by, metric, [each for each in found if each is not None]))
    return charts


def _draw_one(
    name: str, logs: Sequence[Sequence[Event]], metrics: Sequence[str], by: str, smooth: float
) -> list[Chart]:
    losses = [metric for metric in metrics if metric.endswith("loss")]
    others = [metric for metric in metrics if metric not in losses]
    charts = [(f"{name}: losses", losses)] if losses else []
    found = [*charts, *((f"{name}: {metric}", [metric]) for metric in others)]
    return [
        Chart(title, by, "", [s for m in group if (s := _series(m, logs, m, by, smooth)) is not None])
        for title, group in found
    ]


def read_point_logs(study: Study) -> dict[str, list[list[Event]]]:
    """Return the logs of the best points of a study, those of all its seeds together."""
    found = {}
    for point in study.ranked[:BEST_POINTS]:
        logs = [RunFolder(folder).events() for folder in point.folders.values() if folder.is_dir()]
        found[f"point {point.number}"] = [events for events in logs if events]
    if not found:
        raise UsageError(f"{study.folder} has no point with a value yet")
    return found


def _series(name: str, logs: Sequence[Sequence[Event]], metric: str, by: str, smooth: float) -> Series | None:
    """Return one curve; for several logs, the mean with a band from the lowest to the highest."""
    curves = [curve for events in logs if (curve := read_curve(events, metric, by))[0]]
    curves = [(x, smooth_values(y, smooth) if smooth else list(y)) for x, y in curves]
    if not curves:
        return None
    if len(curves) == 1:
        return Series(name, *curves[0])
    x, stacked = align_curves(curves)
    return Series(name, x, stacked.mean(0).tolist(), stacked.min(0).tolist(), stacked.max(0).tolist())


def align_curves(curves: Sequence[Curve]) -> tuple[list[float], Any]:
    """Return the positions that all curves cover, and the values of each curve there, interpolated."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = sorted({float(each) for x, _ in curves for each in x if low <= each <= high}) or [float(low)]
    return places, np.stack([np.interp(places, x, y) for x, y in curves])


def plot_run(folder: Path, metrics: Sequence[str] = ()) -> Figure:
    """Draw the curves of a run."""
    return Figure(draw_history([folder], metrics))


def plot_study(study: Study) -> Figure:
    """Draw a study: the value of every point, and the curves of the best ones."""
    return Figure(study_chart(study))


def study_chart(study: Study) -> list[Chart]:
    """Draw the values of a study's trials in the order of its points, and the best value so far."""
    sign = 1 if study.mode == "min" else -1
    known = [(point.number, point.value) for point in study.points if point.value is not None]
    if not known:
        raise UsageError(f"{study.folder} has no point with a value yet")
    best: list[float] = []
    for _, value in known:
        best.append(sign * min(sign * value, sign * best[-1]) if best else value)
    x = [float(number) for number, _ in known]
    charts = [
        Chart(
            f"{study.folder.name}: {study.metric}", "point", study.metric,
            [Series("value", x, [value for _, value in known], is_dots=True), Series("best so far", x, best)],
        )
    ]  # fmt: skip
    return [*charts, *draw_history([study.folder], [study.metric])]
