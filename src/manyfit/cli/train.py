"""`manyfit train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import (
    OverrideVerb,
    allow_change_option,
    check_failed,
    current_overrides,
    gpu_option,
    json_option,
    print_json,
    run_argument,
)
from manyfit.cli.output import say

LIMIT = "Use N batches, chosen at random with the seed; the first N of a sequential source."


@click.command(cls=OverrideVerb)
@run_argument
@allow_change_option
@gpu_option
@click.option(
    "--warm-start-checkpoint",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Start from the weights of a run, a checkpoint or an export.",
)
@click.option("--warm-start-vars", metavar="REGEX", help="Load only the weights whose names match.")
@click.option("--debug", is_flag=True, help="Train in a temporary folder, which is removed afterwards.")
@click.option("--fast-dev-run", is_flag=True, help="Run one batch of each split, and keep nothing.")
@click.option(
    "--overfit-batches", type=click.IntRange(1), metavar="N", help="Train and validate on N batches."
)
@click.option("--limit-train-batches", type=click.IntRange(1), metavar="N", help=LIMIT)
@click.option("--limit-validation-batches", type=click.IntRange(1), metavar="N", help=LIMIT)
@click.option("--limit-test-batches", type=click.IntRange(1), metavar="N", help=LIMIT)
@json_option
def command(
    run: Path,
    allow_change: tuple[str, ...],
    debug: bool,
    fast_dev_run: bool,
    json_: bool,
    warm_start_checkpoint: Path | None,
    warm_start_vars: str | None,
    **limits: int | None,
) -> None:
    """Train RUN: a run folder with a config.yaml, a YAML file, or the name of a variant.

    An interrupted run resumes from its last checkpoint. A finished run is not trained again, unless
    train.epochs was increased. SIGTERM, SIGUSR1 and Ctrl-C write a checkpoint and end the run.

    \b
    manyfit train runs/digits-mlp
    manyfit train runs/digits-mlp -p train.epochs 30
    manyfit train runs/digits-mlp train.optimizer.lr=3e-4
    manyfit train toy -p model.model_dir /tmp/toy
    """
    from manyfit.run.closing_summary import print_summary
    from manyfit.run.train import train

    given = [
        *current_overrides(),
        *list_limits(limits, fast_dev_run),
        *warm_start_overrides(warm_start_checkpoint, warm_start_vars),
    ]
    result = train(run, given, allow_change=allow_change, debug=debug or fast_dev_run)
    if json_:
        print_json(
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
        say(print_summary(result))
    check_failed(result.failed_rows)


def warm_start_overrides(checkpoint: Path | None, pattern: str | None) -> list[Any]:
    """Return the overrides for a warm start."""
    from manyfit.config.tree.nodes import from_plain
    from manyfit.config.tree.overrides import Override
    from manyfit.core.errors import Origin

    if checkpoint is None:
        if pattern is not None:
            raise click.UsageError("--warm-start-vars requires --warm-start-checkpoint")
        return []
    origin = Origin("command line (--warm-start-checkpoint)")
    value = {"path": str(checkpoint.resolve()), "match": pattern or ""}
    return [Override("set", ("train", "warm_start"), from_plain(value, origin), origin)]


def list_limits(limits: dict[str, int | None], fast: bool) -> list[str]:
    """Return the overrides that the limit options and --fast-dev-run stand for."""
    if fast:
        return ["train.epochs=1", *(f"train.limit.{split}=1" for split in ("train", "validation", "test"))]
    keys = {
        "overfit_batches": "overfit",
        "limit_train_batches": "train",
        "limit_validation_batches": "validation",
        "limit_test_batches": "test",
    }
    return [f"train.limit.{keys[name]}={count}" for name, count in limits.items() if count is not None]
