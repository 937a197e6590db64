"""`manyfit check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from manyfit.cli.common import (
    OverrideVerb,
    current_overrides,
    json_option,
    print_json,
    run_argument,
    trust_option,
)
from manyfit.cli.output import say

if TYPE_CHECKING:
    from manyfit.run.check import Finding


@click.command(cls=OverrideVerb)
@run_argument
@click.option(
    "--resume", is_flag=True, help="Train a few steps, kill and resume them at several points, and compare."
)
@trust_option
@json_option
def command(run: Path, resume: bool, trust: bool, json_: bool) -> None:
    """Try out RUN: its classes, data, model, one batch and evaluation. Nothing is written to its folder.

    RUN may also be a study: every point is checked, and one of each structure is tried out.

    With --resume, verify that it resumes exactly: a few steps are trained, killed at several points, resumed,
    and compared bit for bit. Exits with 1 if a check fails.
    """
    found = []
    for finding in findings_of(run, resume, trust):
        found.append(finding)
        if not json_:
            say(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.name}: {finding.detail}")
    if json_:
        print_json([{"name": f.name, "ok": f.ok, "detail": f.detail} for f in found])
    if not all(finding.ok for finding in found):
        click.get_current_context().exit(1)


def findings_of(place: Path, resume: bool, trust: bool) -> Iterator[Finding]:
    """Return the checks of a run, of its resume, or of a study."""
    if place.name == "study.yaml" or (place / "study.yaml").is_file():
        if resume:
            raise click.UsageError("--resume checks a run, not a study: name the run of its base config")
        from manyfit.study.dry_run import check_study

        return check_study(place.parent if place.name == "study.yaml" else place, current_overrides())
    from manyfit.run.check import check_resume, check_run

    return (check_resume if resume else check_run)(place, current_overrides(), trust)
