"""`manyfit list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import Verb, json_option, print_json, table, to_yaml
from manyfit.cli.output import say

MOST_METRICS = 4
"""The number of metrics in a cell; all are in the output of --json, and of `show`."""


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("-w", "--where", multiple=True, metavar="CONDITION", help="Such as 'train.optimizer.lr<1e-3'.")
@click.option("-s", "--sort", metavar="KEY", help="Sort by a metric, a config key, started or changed.")
@click.option("-r", "--reverse", is_flag=True, help="Sort from high to low.")
@click.option(
    "-c", "--column", "columns", multiple=True, metavar="KEY", help="Show a value; may be repeated."
)
@click.option("--dates", is_flag=True, help="Show when runs were started and last changed.")
@json_option
def command(
    folder: Path,
    where: tuple[str, ...],
    sort: str | None,
    reverse: bool,
    columns: tuple[str, ...],
    dates: bool,
    json_: bool,
) -> None:
    """List the runs and studies in FOLDER (by default, here)."""
    from manyfit.report.records import list_studies, runs

    found = runs(folder).where(*where)
    found = found.sort(sort, reverse) if sort is not None else found
    studies = list_studies(folder) if not where and not sort else []
    shown = [*columns, *(["started", "changed"] if dates else [])]
    if json_:
        print_json([dict(run.facts) for run in found])
        return
    if not found and not studies:
        say(f"no runs in {folder}" + (" satisfy the conditions" if where else ""), err=True)
    if found:
        extra = list(
            dict.fromkeys([*shown, *([sort] if sort and sort not in ("name", "state", "epoch") else [])])
        )
        found.check(*extra)
        rows = [
            (r.name, r.state, f"{r.facts['epoch']:g}", *(_cell(r.values.get(c)) for c in extra),
             _metrics(r.metrics), _metrics(r.test))
            for r in found
        ]  # fmt: skip
        table(rows, ("run", "state", "epoch", *extra, "best", "test"))
    if studies:
        say("")
        table(studies, ("study", "state", "points", "best", "values"))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else to_yaml(value)


def _metrics(values: Any) -> str:
    shown = [f"{n}={v:.4g}" for n, v in values.items() if not n.startswith(("lr", "train_", "momentum"))]
    return " ".join([*shown[:MOST_METRICS], *(["…"] if len(shown) > MOST_METRICS else [])]) or "–"
