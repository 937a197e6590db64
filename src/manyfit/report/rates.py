"""Figures of a sweep over learning rates."""

from __future__ import annotations

from manyfit.learn.rate_sweep import smooth_losses
from manyfit.report.charts import Chart, Figure, Mark, Series
from manyfit.report.curves import align_curves
from manyfit.run.find_lr import FoundRate


def plot_rates(found: FoundRate) -> Figure:
    """Draw the smoothed loss over the rate, with a band over seeds, and mark the suggested rate."""
    curves = [
        ([point.rate for point in points], smooth_losses([point.loss for point in points]))
        for points in found.sweeps.values()
    ]
    if len(curves) == 1:
        series = [Series("", *curves[0])]
    else:
        x, stacked = align_curves(curves)
        band = stacked.min(0).tolist(), stacked.max(0).tolist()
        series = [Series(f"{len(curves)} seeds", x, stacked.mean(0).tolist(), *band)]
    mark = Mark(found.rate, f" {found.how}: {found.rate:.3g}")
    return Figure([Chart("learning rate finder", "learning rate", "loss", series, log_x=True, marks=[mark])])
