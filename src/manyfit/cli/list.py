"""`manyfit list`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb, json_option, print_json, table
from manyfit.cli.output import say


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@json_option
def command(folder: Path, json_: bool) -> None:
    """List the runs in FOLDER (by default, here)."""
    from manyfit.store.describe import describe_run
    from manyfit.store.folder import run_folders

    found = [describe_run(run) for run in run_folders(folder)]
    if json_:
        print_json(found)
    elif not found:
        say(f"no runs in {folder}", err=True)
    else:
        table(
            [
                (
                    run["name"],
                    run["state"],
                    f"{run['epoch']:g}",
                    _metrics(run["metrics"]),
                    _metrics(run["test"]),
                )
                for run in found
            ],
            ("run", "state", "epoch", "best", "test"),
        )


def _metrics(values: dict[str, float]) -> str:
    shown = {name: value for name, value in values.items() if name not in ("lr", "train_loss")}
    return " ".join(f"{name}={value:.4g}" for name, value in shown.items()) or "–"
