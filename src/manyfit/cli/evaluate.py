"""`manyfit evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import (
    OverrideVerb,
    allow_change_option,
    check_failed,
    current_overrides,
    json_option,
    print_json,
    run_argument,
    table,
    trust_option,
)


@click.command(cls=OverrideVerb)
@run_argument
@click.option("--split", default="test", show_default=True, help="train, validation or test.")
@allow_change_option
@click.option("--checkpoint", "which", default="best", show_default=True, help="best, last, or a step.")
@trust_option
@json_option
def command(
    run: Path, split: str, which: str, allow_change: tuple[str, ...], trust: bool, json_: bool
) -> None:
    """Evaluate RUN again, row by row, and write reports/<split>.csv.

    With another checkpoint, or with overrides (such as data.root=/new), the report has a different name.
    """
    from manyfit.run.reuse import evaluate

    report = evaluate(run, split, which, current_overrides(), allow_change, trust)
    if json_:
        print_json({"rows": len(report), "values": report.values, "summary": report.summary(10)})
    else:
        table(
            [
                ("rows", f"{len(report)} of the {split} split"),
                *((name, f"{value:.6g}") for name, value in report.values.items()),
            ]
        )
    check_failed({split: len(report.failed)})
