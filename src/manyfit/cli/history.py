"""`manyfit history`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb, complete_place, json_option, print_json
from manyfit.cli.output import say


@click.command(cls=Verb)
@click.argument(
    "places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN|STUDY...",
    shell_complete=complete_place,
)  # fmt: skip
@click.option("-m", "--metric", "metrics", multiple=True, help="Draw this metric; may be repeated.")
@click.option("--by", type=click.Choice(["step", "epoch", "time"]), default="step", show_default=True)
@click.option("--smooth", type=float, default=0.0, help="Weight of a moving average, from 0 to below 1.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a .png, .svg or .pdf file.")
@json_option
def command(
    places: tuple[Path, ...],
    metrics: tuple[str, ...],
    by: str,
    smooth: float,
    output: Path | None,
    json_: bool,
) -> None:
    """Draw the curves of runs, or of the best points of studies with bands over their seeds."""
    from manyfit.report.charts import Figure
    from manyfit.report.curves import draw_history

    found = Figure(draw_history(places, metrics, by, smooth))
    if json_:
        print_json([
            {"title": c.title, "by": c.x_label,
             "series": [{"name": s.name, "x": list(s.x), "y": list(s.y)} for s in c.series]}
            for c in found.charts
        ])  # fmt: skip
    elif output is not None:
        say(str(found.save(output)))
    else:
        say(found.text())
