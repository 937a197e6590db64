"""`manyfit predict`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import (
    OverrideVerb,
    allow_change_option,
    current_overrides,
    run_argument,
    trust_option,
)
from manyfit.cli.output import say, say_data
from manyfit.core.errors import UsageError


@click.command(cls=OverrideVerb)
@run_argument
@click.option("--split", default="test", show_default=True, help="train, validation or test.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="New rows: .npy, .npz or .csv with IDs in `ids`; or what the data of the run reads itself.",
)
@allow_change_option
@click.option("--checkpoint", "which", default="best", show_default=True, help="best, last, or a step.")
@trust_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to a .csv or .parquet file; a killed command continues it.",
)
def command(
    run: Path,
    split: str,
    data: Path | None,
    which: str,
    allow_change: tuple[str, ...],
    trust: bool,
    output: Path | None,
) -> None:
    """Predict with RUN. Print CSV: ID, prediction and, for classes, confidence of every row.

    \b
    manyfit predict runs/digits-mlp --data new.npz -o new.csv
    manyfit predict runs/digits-mlp --split validation
    """
    from manyfit.run.evaluation.row_report import format_csv
    from manyfit.run.inferrer import Inferrer
    from manyfit.run.reuse import predict
    from manyfit.store import durable

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"the folder {output.parent} does not exist")
    if output is not None and not current_overrides() and not allow_change:
        with Inferrer(run, which, trust=trust) as infer:
            say(f"wrote {infer.predict_to(output, data, split)} rows to {output}")
        return
    columns = predict(run, split, data, which, current_overrides(), allow_change, trust)
    text = format_csv(columns)
    if output is not None:
        durable.write_file(output, text)
        say(f"wrote {len(columns['id'])} rows to {output}")
    else:
        say_data(text)
