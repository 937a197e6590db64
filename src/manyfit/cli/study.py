"""`manyfit study`: stop, resume, compare, effects, clone, add, scale, export, share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import (
    OverrideVerb,
    Verb,
    current_overrides,
    json_option,
    print_json,
    study_argument,
    table,
)
from manyfit.cli.output import say
from manyfit.core.names import pluralize


@click.group()
def command() -> None:
    """Change a study, also while it is running; export it."""


@command.command(cls=Verb)
@study_argument
@click.argument("points", nargs=-1, required=True)
def stop(study: Path, points: tuple[str, ...]) -> None:
    """Stop POINTS, by number or name: their progress is committed, and they are not trained further."""
    send_each(study, "stop", points)


@command.command(cls=Verb)
@study_argument
@click.argument("points", nargs=-1, required=True)
def resume(study: Path, points: tuple[str, ...]) -> None:
    """Resume POINTS that were stopped, manually or by a stopper."""
    send_each(study, "resume", points)


@command.command("compare", cls=Verb)
@study_argument
@click.argument("points", nargs=-1)
@json_option
def compare_command(study: Path, points: tuple[str, ...], json_: bool) -> None:
    """Compare POINTS with the first of them, seed by seed; without POINTS, an ablation with its base."""
    from manyfit.report.comparisons import choose_pairs, compare_points, comparison_cells
    from manyfit.study.result import read_study

    found = read_study(study)
    compared = compare_points(found, choose_pairs(found, points))
    if json_:
        print_json([
            {"point": c.point.number, "against": c.reference.number, "difference": c.paired.difference.mean,
             "interval": c.paired.difference.half, "seeds": c.paired.difference.count, "p": c.paired.p,
             "verdict": c.paired.verdict} for c in compared
        ])  # fmt: skip
        return
    header, body = comparison_cells(compared, found.replicates)
    table(body, header)
    for each in compared:
        say(f"\npoint {each.point.number} against point {each.reference.number}: {each.paired.verdict}")


@command.command(cls=Verb)
@study_argument
@click.option("-m", "--metric", "metrics", multiple=True, help="This metric only; may be repeated.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a .png, .svg or .pdf file.")
@json_option
def effects(study: Path, metrics: tuple[str, ...], output: Path | None, json_: bool) -> None:
    """Show every hyperparameter against every metric: regressions of numbers, distributions by category."""
    from manyfit.report.effects import find_effects
    from manyfit.study.result import read_study

    found = find_effects(read_study(study), metrics)
    if output is not None:
        say(str(found.save(output)), err=json_)
    if json_:
        print_json([each.as_dict() for each in found.effects])
    elif output is None:
        table(found.cells(), found.header)
    if found.note:
        say(found.note, err=True)


@command.command(cls=OverrideVerb)
@study_argument
@click.argument("point")
@click.option("--weights", is_flag=True, help="Start from the current weights of the point.")
def clone(study: Path, point: str, weights: bool) -> None:
    """Train POINT again with other values: manyfit study clone studies/lr 3 train.optimizer.lr=1e-4"""
    from manyfit.study.drive.commands import leave_command, points_of

    number = points_of(study, [point])[0]
    leave_command(study, "clone", number, current_values(), weights)
    tell(study, f"clone of point {number}")


@command.command(cls=OverrideVerb)
@study_argument
def add(study: Path) -> None:
    """Add a point: manyfit study add studies/lr train.optimizer.lr=3e-4 model.hidden=96"""
    from manyfit.study.drive.commands import leave_command

    found = current_values()
    if not found:
        raise click.UsageError("the values of the point are required: manyfit study add STUDY KEY=VALUE ...")
    leave_command(study, "add", None, found)
    tell(study, "new point")


@command.command(cls=Verb)
@study_argument
@click.argument("workers", type=click.IntRange(1, 4096))
def scale(study: Path, workers: int) -> None:
    """Train with this many WORKERS from now on; trials of workers that leave continue on others.

    It applies to the current start of the study; later ones use execute.workers again."""
    from manyfit.study.drive.commands import leave_command

    leave_command(study, "scale", values={"workers": workers})
    tell(study, pluralize(workers, "worker"))


@command.command("export", cls=Verb)
@study_argument
@click.option("--optuna", "storage", metavar="URL", help="Optuna storage, such as sqlite:///study.db")
@click.option("--csv", "csv_", type=click.Path(path_type=Path), help="CSV file with one row per trial.")
def export_command(study: Path, storage: str | None, csv_: Path | None) -> None:
    """Export a study to an Optuna storage or a table."""
    from manyfit.study.storage_export import to_csv, to_optuna

    if storage is None and csv_ is None:
        raise click.UsageError("a target is required: --optuna sqlite:///study.db or --csv trials.csv")
    if storage is not None:
        name, count = to_optuna(study, storage)
        say(f"wrote {count} points as the study {name!r} to {storage}")
    if csv_ is not None:
        say(f"wrote {to_csv(study, csv_)} trials to {csv_}")


@command.command(cls=Verb)
@study_argument
@click.argument("task", type=int)
@click.argument("of", type=click.IntRange(1))
def share(study: Path, task: int, of: int) -> None:
    """Train every OF-th trial of STUDY, starting with number TASK: one independent job of a job array.

    `manyfit sweep` collects the results.
    """
    from manyfit.study.job_array import train_share

    found = train_share(study, task, of)
    for outcome in found:
        how = f", {outcome.how.partition('; ')[0]}" if outcome.how else ""
        text = f"failed: {outcome.failure.message}" if outcome.failure else f"epoch {outcome.epoch:g}{how}"
        say(f"{outcome.trial}  {text}")
    if any(outcome.failure is not None for outcome in found):
        raise click.exceptions.Exit(1)


def current_values() -> dict[str, Any]:
    """Return the overrides of the command as values of a point."""
    from manyfit.study.drive.commands import parse_values

    return parse_values(current_overrides())


def send_each(study: Path, action: str, points: Sequence[str]) -> None:
    """Send a command for each point."""
    from manyfit.study.drive.commands import leave_command, points_of

    for number in points_of(study, points):
        leave_command(study, action, number)
        tell(study, f"{action} point {number}")


def tell(study: Path, what: str) -> None:
    """Report whether the command is executed now or later."""
    from manyfit.store.lock import is_owned

    when = "now" if is_owned(study) else f"when the study is started: manyfit sweep {study}"
    say(f"{what}: {when}")
