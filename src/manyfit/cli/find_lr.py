"""`manyfit find-lr`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import OverrideVerb, current_overrides, json_option, print_json, run_argument
from manyfit.cli.output import say


@click.command(cls=OverrideVerb)
@run_argument
@click.option("--low", type=float, default=1e-6, show_default=True, help="The lowest rate.")
@click.option("--high", type=float, default=1.0, show_default=True, help="The highest rate.")
@click.option("--steps", type=int, default=100, show_default=True, help="One step at each rate.")
@click.option("--seeds", type=int, default=1, show_default=True, help="Repeat with several seeds.")
@click.option("--choose", default="steepest", show_default=True, help="steepest, minimum, or a metric.")
@click.option("--higher", is_flag=True, help="Higher values of the metric are better.")
@click.option("--optimizer", default="", help="Which of several optimizers.")
@click.option("--checkpoint", help="Start from this checkpoint: best, last, or a step.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a .png, .svg or .pdf file.")
@click.option("--csv", "table_file", type=click.Path(path_type=Path), help="Write the measurements as CSV.")
@click.option("--apply", "is_applied", is_flag=True, help="Write a run next to RUN with the rate found.")
@json_option
def command(
    run: Path,
    low: float,
    high: float,
    steps: int,
    seeds: int,
    choose: str,
    higher: bool,
    optimizer: str,
    checkpoint: str | None,
    output: Path | None,
    table_file: Path | None,
    is_applied: bool,
    json_: bool,
) -> None:
    """Find a learning rate for RUN by a sweep on a copy; the run itself is not changed."""
    from manyfit.report.charts import check_output
    from manyfit.run.find_lr import check_variant, find_lr, write_variant
    from manyfit.store import durable

    check_output(output)
    if table_file is not None and not table_file.parent.is_dir():
        raise click.UsageError(f"the folder {table_file.parent} does not exist")
    if is_applied and current_overrides():
        raise click.UsageError(
            "--apply writes a run that extends RUN, so write the overrides to its config first"
        )
    if is_applied:
        check_variant(run, optimizer)
    found = find_lr(
        run, current_overrides(), low=low, high=high, steps=steps, seeds=seeds, choose=choose, higher=higher,
        optimizer=optimizer, checkpoint=checkpoint,
    )  # fmt: skip
    if table_file is not None:
        durable.write_file(table_file, found.to_csv())
    if output is not None:
        found.plot().save(output)
    folder = write_variant(run, found) if is_applied else None
    if json_:
        print_json(
            {"rate": found.rate, "how": found.how, "key": found.key, "run": str(folder) if folder else None}
        )
        return
    if output is None:
        say(found.plot().text())
    say(f"\n{found.key}: {found.rate:.3g}  ({found.how})")
    if folder is not None:
        say(f"wrote {folder}/config.yaml; train it with: manyfit train {folder}")
