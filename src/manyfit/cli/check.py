"""`manyfit check`."""

from __future__ import annotations

from pathlib import Path

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


@click.command(cls=OverrideVerb)
@run_argument
@click.option(
    "--resume", is_flag=True, help="Train a few steps, kill and resume them at several points, and compare."
)
@trust_option
@json_option
def command(run: Path, resume: bool, trust: bool, json_: bool) -> None:
    """Try out RUN: its classes, data, model, one batch and evaluation. Nothing is written to its folder.

    With --resume, verify that it resumes exactly: a few steps are trained, killed at several points, resumed,
    and compared bit for bit. Exits with 1 if a check fails.
    """
    from manyfit.run.check import check_resume, check_run

    found = []
    for finding in (
        check_resume(run, current_overrides(), trust)
        if resume
        else check_run(run, current_overrides(), trust)
    ):
        found.append(finding)
        if not json_:
            say(f"{'ok   ' if finding.ok else 'WRONG'}  {finding.name}: {finding.detail}")
    if json_:
        print_json([{"name": f.name, "ok": f.ok, "detail": f.detail} for f in found])
    if not all(finding.ok for finding in found):
        click.get_current_context().exit(1)
