"""Every hyperparameter of a study against every metric: regressions for numbers, violins for categories."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing, pluralize
from manyfit.report.charts import Drawable
from manyfit.report.leaderboard import inherit_values
from manyfit.store.events import read_events
from manyfit.store.folder import RunFolder
from manyfit.study.result import Study

MANY: Final = 5
"""The number of distinct numbers from which on a hyperparameter is drawn as a number."""
WIDE: Final = 30.0
"""The ratio of the largest to the smallest value from which on the axis is logarithmic."""


@dataclass(frozen=True)
class Effect:
    """The trials of a study by one hyperparameter and one metric."""

    key: str
    metric: str
    x: Sequence[Any]
    y: npt.NDArray[np.float64]

    @property
    def is_number(self) -> bool:
        """Whether the hyperparameter is a number with many values."""
        return all(map(is_measure, self.x)) and len(set(self.x)) >= MANY

    @property
    def is_log(self) -> bool:
        """Whether the values span orders of magnitude."""
        return self.is_number and min(self.x) > 0 and max(self.x) / min(self.x) >= WIDE

    @property
    def places(self) -> npt.NDArray[np.float64]:
        """The values of a number, as logarithms if they span orders of magnitude."""
        found = np.asarray(self.x, dtype=np.float64)
        return np.log10(found) if self.is_log else found

    def fit(self) -> tuple[float, float, float]:
        """Return the slope, the intercept and the share of the variance that a line explains."""
        slope, intercept = np.polyfit(self.places, self.y, 1)
        rest = self.y - (slope * self.places + intercept)
        total = float(((self.y - self.y.mean()) ** 2).sum())
        return float(slope), float(intercept), 1 - float((rest**2).sum()) / total if total else 0.0

    def by_value(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return the metric of the trials with each value: numbers in order, then others."""
        keys = [identify(value) for value in self.x]
        values = dict(sorted(zip(keys, self.x, strict=True), key=lambda pair: _place(pair[1])))
        names = [name_value(value) for value in values.values()]
        shown = [name if names.count(name) == 1 else key for key, name in zip(values, names, strict=True)]
        return {name: self.y[[each == key for each in keys]] for key, name in zip(values, shown, strict=True)}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data: a line through a number, or the means by value."""
        found: dict[str, Any] = {"metric": self.metric, "key": self.key, "trials": len(self.y)}
        if self.is_number:
            slope, intercept, share = self.fit()
            return {**found, "log": self.is_log, "slope": slope, "intercept": intercept, "explained": share}
        return {**found, "means": {name: float(values.mean()) for name, values in self.by_value().items()}}

    def describe(self) -> str:
        """Describe it in a few words."""
        if self.is_number:
            slope, _, share = self.fit()
            unit = "a factor of 10" if self.is_log else "1"
            return f"{slope:+.4g} per {unit}, explains {share:.0%}"
        return ", ".join(f"{name}: {values.mean():.4g}" for name, values in self.by_value().items())


@dataclass(frozen=True)
class EffectsFigure(Drawable):
    """A panel for every hyperparameter and metric."""

    effects: Sequence[Effect]
    note: str = ""
    """What the effects do not show."""
    header: ClassVar[Sequence[str]] = ("metric", "key", "trials", "effect")

    def cells(self) -> list[list[str]]:
        """Return a table in words."""
        return [[each.metric, each.key, str(len(each.y)), each.describe()] for each in self.effects]

    def draw(self) -> Any:
        """Return a figure of matplotlib."""
        figures = import_optional("matplotlib.figure", "plots")
        metrics = list(dict.fromkeys(each.metric for each in self.effects))
        keys = list(dict.fromkeys(each.key for each in self.effects))
        figure = figures.Figure(figsize=(3.6 * len(keys), 3 * len(metrics)), layout="constrained")
        panels = figure.subplots(len(metrics), len(keys), squeeze=False)
        for each in self.effects:
            draw_effect(panels[metrics.index(each.metric)][keys.index(each.key)], each)
        return figure


def draw_effect(axes: Any, effect: Effect) -> None:
    """Draw the trials, and a line through them or their distribution by value."""
    axes.set(xlabel=effect.key, ylabel=effect.metric)
    axes.grid(alpha=0.3)
    if effect.is_number:
        axes.scatter(effect.x, effect.y, s=10, alpha=0.6)
        slope, intercept, share = effect.fit()
        ends = np.linspace(effect.places.min(), effect.places.max(), 50)
        axes.plot(10**ends if effect.is_log else ends, slope * ends + intercept, color="C1")
        axes.set_title(f"explains {share:.0%}", fontsize=9)
        if effect.is_log:
            axes.set_xscale("log")
        return
    groups = effect.by_value()
    for place, values in enumerate(groups.values()):
        if len(values) > 2 and np.ptp(values) > 0:
            axes.violinplot(values, [place], showextrema=False, showmeans=True)
        axes.scatter([place] * len(values), values, s=10, alpha=0.6, color="C0")
    axes.set_xticks(
        range(len(groups)), [textwrap.shorten(name, 20, placeholder="…") for name in groups], fontsize=8
    )


def is_measure(value: Any) -> bool:
    """Return whether a value is a number; truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _place(value: Any) -> tuple[bool, float, str]:
    return (not is_measure(value), float(value) if is_measure(value) else 0.0, identify(value))


def identify(value: Any) -> str:
    """Return a text that differs for different values."""
    return json.dumps(value, sort_keys=True, default=str)


def name_value(value: Any) -> str:
    """Return a value of a search space in a few words."""
    if isinstance(value, dict):
        rest = ", ".join(f"{key}={name_value(each)}" for key, each in value.items() if key != "class")
        return f"{str(value.get('class', '')).rpartition('.')[2]} {rest}".strip()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def find_effects(study: Study, metrics: Sequence[str] = ()) -> EffectsFigure:
    """Return every hyperparameter that varies against every metric, or some; the objective comes first.

    The value of the objective is the best one of a trial, that of other metrics the last one.
    """
    trials = []
    for point in study.points:
        for seed, value in point.trials.items():
            if value is not None:
                events = read_events(RunFolder(point.folders[seed]).metrics)
                last = {name: each for event in events for name, each in event.values.items()}
                values = {**inherit_values(study.base, point.values), **point.values}
                trials.append((values, {**last, study.metric: value}))
    if not trials:
        raise UsageError(f"{study.folder} has no trial with a value yet")
    known = [study.metric, *sorted({n for _, found in trials for n in found} - {study.metric})]
    if missing := [name for name in metrics if name not in known]:
        raise UsageError(f"no trial has a metric named {missing[0]!r}; there are {listing(known)}")
    chosen = list(metrics) or [name for name in known if name == study.metric or name.startswith("val_")]
    keys = list(dict.fromkeys(key for values, _ in trials for key in values))
    keys = [key for key in keys if len({identify(v.get(key)) for v, _ in trials if key in v}) > 1]
    if not keys:
        raise UsageError(f"no hyperparameter of {study.folder} varies")
    effects = []
    for metric in chosen:
        for key in keys:
            pairs = [
                (v[key], f[metric]) for v, f in trials if key in v and np.isfinite(f.get(metric, np.nan))
            ]
            if pairs:
                x, y = zip(*pairs, strict=True)
                effects.append(Effect(key, metric, x, np.asarray(y, dtype=np.float64)))
    stopped = sum(point.state == "stopped" for point in study.points)
    without = sum(value is None for point in study.points for value in point.trials.values())
    notes = []
    if stopped:
        notes.append(f"stopped early, after fewer epochs: {pluralize(stopped, 'point')}")
    if without:
        notes.append(f"left out, without a value: {pluralize(without, 'trial')}")
    if not effects:
        raise UsageError(f"no trial of {study.folder} has a finite value of {listing(chosen)}")
    return EffectsFigure(effects, "; ".join(notes))
