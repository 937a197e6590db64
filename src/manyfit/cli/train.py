"""`manyfit train`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import OverrideVerb, as_json, json_option, overrides, run_argument


@click.command(cls=OverrideVerb)
@run_argument
@json_option
def command(run: Path, json_: bool) -> None:
    """Train RUN: a run folder with a config.yaml, or a YAML file.

    A run that was cut short goes on from its last checkpoint. A finished one is not trained again, unless
    train.epochs was raised.

    \b
    manyfit train runs/digits-mlp
    manyfit train runs/digits-mlp -p train.epochs 30
    manyfit train runs/digits-mlp train.optimizer.lr=3e-4
    """
    from manyfit.run.report import closing
    from manyfit.run.train import train

    result = train(run, overrides())
    if json_:
        as_json(
            {
                "folder": result.folder,
                "step": result.step,
                "best_step": result.best_step,
                "metrics": result.metrics,
                "test": result.test,
                "trained_steps": result.trained_steps,
            }
        )
    else:
        click.echo(closing(result))
