"""`manyfit sweep`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from manyfit.cli.common import (
    OverrideVerb,
    allow_change_option,
    current_overrides,
    gpu_option,
    json_option,
    print_json,
    study_argument,
    table,
)
from manyfit.cli.output import say

if TYPE_CHECKING:
    from manyfit.study.result import Study


@click.command(cls=OverrideVerb)
@study_argument
@click.option("--dry-run", is_flag=True, help="Check all trials and estimate their cost, without training.")
@click.option(
    "--retry",
    multiple=True,
    metavar="KIND",
    help="Retry failed trials: failed (all), oom, nan, user, data, infrastructure, timeout.",
)
@click.option("--only", multiple=True, metavar="POINT", help="Train only this point, by number or name.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first failure.")
@allow_change_option
@gpu_option
@json_option
def command(
    study: Path,
    dry_run: bool,
    retry: tuple[str, ...],
    only: tuple[str, ...],
    fail_fast: bool,
    allow_change: tuple[str, ...],
    json_: bool,
) -> None:
    """Train every trial of STUDY: a folder with a study.yaml, or such a file.

    Run the same command again to resume. If values, seeds, epochs or trials were added, it trains what is
    missing. Exits with 1 if a trial has failed, after the others are finished.

    \b
    manyfit sweep studies/lr
    manyfit sweep studies/lr --dry-run
    manyfit sweep studies/lr search.seeds=5 execute.workers=4
    """
    if dry_run:
        print_rehearsal(study, json_)
        return
    from manyfit.study.sweep import sweep

    found = sweep(
        study, current_overrides(), retry=retry, only=only, fail_fast=fail_fast, allow_change=allow_change
    )
    if json_:
        from manyfit.study.status import status

        print_json({**status(found.folder), "best": _best(found)})
    else:
        print_closing(found)
    if found.failures:
        click.get_current_context().exit(1)


def print_rehearsal(study: Path, json_: bool) -> None:
    """Print what a study would train."""
    from manyfit.study.dry_run import dry_run

    found = dry_run(study, current_overrides())
    if json_:
        print_json(found)
        return
    table([(name.replace("_", " "), text) for name, text in found["shown"].items()])


def _best(found: Study) -> dict[str, object] | None:
    if not found.ranked:
        return None
    return {"point": found.best.number, "value": found.best.value, "values": dict(found.best.values)}


def print_closing(found: Study) -> None:
    """Print the leaderboard, the failures, and where the results are."""
    from manyfit.cli.status import describe_fused, describe_repeated, print_failures
    from manyfit.report.leaderboard import leaderboard, leaderboard_cells
    from manyfit.study.status import status

    board = leaderboard(found, 10)
    if board.rows:
        header, body = leaderboard_cells(board)
        table(body, header)
        if len(found.ranked) > len(body):
            say(f"… and {len(found.ranked) - len(body)} more: manyfit status {found.folder} --all")
    if board.verdict:
        say(f"\n{board.verdict}")
    facts = status(found.folder)
    print_failures(facts["failures"], found.folder)
    if found.unfinished:
        say(f"\n{found.unfinished} trials are not finished; run the same command again to resume them")
    counts = ", ".join(f"{count} {state}" for state, count in facts["trials"].items())
    say(f"\ntrials       {counts}")
    for name, text in [*describe_repeated(facts), *describe_fused(facts)]:
        say(f"{name:12} {text}")
    best = found.folder / "best"
    if (best / "best.json").exists():
        quoted = shlex.quote(str(best))
        splits = [split for split in ("test", "validation") if (best / "reports" / f"{split}.csv").exists()]
        evaluated = f", and evaluated on the {splits[0]} split" if splits else ""
        say(f"best model   {best}  (a run folder: exported{evaluated})")
        if splits:
            say(f"its rows     {best / 'reports' / splits[0]}.csv")
        say(f"predict      manyfit predict {quoted} --data new.npz")
