"""`manyfit train`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import (
    OverrideVerb,
    allow_change_option,
    as_json,
    json_option,
    overrides,
    run_argument,
)


@click.command(cls=OverrideVerb)
@run_argument
@allow_change_option
@click.option("--debug", is_flag=True, help="Train in a folder that is removed afterwards.")
@click.option("--fast-dev-run", is_flag=True, help="One batch of everything, and keep nothing.")
@click.option(
    "--overfit-batches", type=click.IntRange(1), metavar="N", help="Train and validate on N batches."
)
@click.option("--limit-train-batches", type=click.IntRange(1), metavar="N", help="Use the first N batches.")
@click.option(
    "--limit-validation-batches", type=click.IntRange(1), metavar="N", help="Use the first N batches."
)
@click.option("--limit-test-batches", type=click.IntRange(1), metavar="N", help="Use the first N batches.")
@json_option
def command(
    run: Path,
    allow_change: tuple[str, ...],
    debug: bool,
    fast_dev_run: bool,
    json_: bool,
    **limits: int | None,
) -> None:
    """Train RUN: a run folder with a config.yaml, or a YAML file.

    A run that was cut short goes on from its last checkpoint. A finished one is not trained again, unless
    train.epochs was raised. SIGTERM, SIGUSR1 and Ctrl-C write a checkpoint and end the run.

    \b
    manyfit train runs/digits-mlp
    manyfit train runs/digits-mlp -p train.epochs 30
    manyfit train runs/digits-mlp train.optimizer.lr=3e-4
    """
    from manyfit.run.report import closing
    from manyfit.run.train import train

    given = [*overrides(), *limited(limits, fast_dev_run)]
    result = train(run, given, allow_change=allow_change, debug=debug or fast_dev_run)
    if json_:
        as_json(
            {
                "folder": result.folder,
                "step": result.step,
                "best_step": result.best_step,
                "metrics": result.metrics,
                "test": result.test,
                "trained_steps": result.trained_steps,
                "stopped": result.summary.get("stopped", ""),
            }
        )
    else:
        click.echo(closing(result))


def limited(limits: dict[str, int | None], fast: bool) -> list[str]:
    """The overrides that a mode stands for."""
    if fast:
        return ["train.epochs=1", *(f"train.limit.{split}=1" for split in ("train", "validation", "test"))]
    keys = {
        "overfit_batches": "overfit",
        "limit_train_batches": "train",
        "limit_validation_batches": "validation",
        "limit_test_batches": "test",
    }
    return [f"train.limit.{keys[name]}={count}" for name, count in limits.items() if count is not None]
