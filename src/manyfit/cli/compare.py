"""`manyfit compare`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from manyfit.cli.common import Verb, complete_run, json_option, print_json, table
from manyfit.cli.output import say


@click.command(cls=Verb)
@click.argument("first", type=click.Path(path_type=Path), shell_complete=complete_run)
@click.argument("second", type=click.Path(path_type=Path), shell_complete=complete_run)
@click.option("--metric", default="loss", show_default=True, help="Column to compare.")
@click.option("--split", default="test", show_default=True, help="Split to compare on.")
@click.option(
    "--worst", default=10, show_default=True, type=click.IntRange(0), help="Number of rows to show."
)
@click.option(
    "--level", default=0.95, show_default=True, type=click.FloatRange(0.5, 0.9999), help="Confidence level."
)
@json_option
def command(
    first: Path, second: Path, metric: str, split: str, worst: int, level: float, json_: bool
) -> None:
    """Compare two runs row by row: paired differences by row ID, with a bootstrap confidence interval."""
    from manyfit.report.compare import compare

    found = compare(first, second, metric, split, worst, level)
    if json_:
        print_json({**dataclasses.asdict(found), "verdict": found.verdict})
        return
    low, high = found.interval
    table(
        [
            ("metric", f"{metric} on {found.rows} rows of the {split} split"),
            ("first", f"{found.means[0]:.6g}  {first}"),
            ("second", f"{found.means[1]:.6g}  {second}"),
            ("difference", f"{found.difference:+.6g}  [{low:+.6g}, {high:+.6g}] at {level:.0%}"),
            ("rows", f"{found.lower} lower, {found.higher} higher in the second"),
        ]
    )
    if found.only_first or found.only_second:
        say(
            f"not compared: {found.only_first} rows only in the first, {found.only_second} only in the second"
        )
    say(found.verdict)
    say("each was trained once: this does not account for other seeds")
    if found.changes:
        say("\nlargest changes")
        table(
            [
                (
                    c.id,
                    c.target,
                    " → ".join(c.predictions),
                    f"{c.before:.4g} → {c.after:.4g}",
                    f"{c.difference:+.4g}",
                )
                for c in found.changes
            ],
            ("id", "target", "prediction", metric, "change"),
        )
