"""`manyfit profile`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import OverrideVerb, current_overrides, json_option, print_json, run_argument, table
from manyfit.cli.output import say
from manyfit.core.names import pluralize


@click.command(cls=OverrideVerb)
@run_argument
@click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to train the copy.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a trace as .json.")
@json_option
def command(run: Path, seconds: float, output: Path | None, json_: bool) -> None:
    """Show where the time of RUN goes, by training a copy; the run itself is not changed."""
    from manyfit.run.profile import profile

    found = profile(run, current_overrides(), seconds=seconds, trace=output)
    if json_:
        print_json(found.to_dict())
        return
    rows = [
        (
            phase.name, f"{phase.share:.1%}", f"{phase.seconds:.3g}",
            f"{1e6 * phase.per_step:,.1f}" if phase.per_step is not None else "",
        )
        for phase in found.phases
    ]  # fmt: skip
    table(rows, ("phase", "share", "seconds per epoch", "µs per step"))
    how = "calculated from its parts" if found.is_extrapolated else "measured"
    say(f"\nan epoch of {found.steps_per_epoch:,} steps takes {found.epoch:.3g} s ({how})")
    say(f"{found.steps_per_second:,.0f} steps/s, {found.rows_per_second:,.0f} rows/s while training")
    if found.busy is not None:
        say(f"the GPU computes for {found.busy:.0%} of the time of steps")
    timers = f"timers make steps {max(0.0, found.slower):.0%} slower; " if found.slower is not None else ""
    say(f"{timers}{found.measured:,} steps were timed, with {pluralize(found.threads, 'thread')}")
    if found.end:
        say(f"the run ended before the time was over: {found.end}")
    say(f"\n{found.advice}")
    if output is not None:
        say(f"wrote {output}; open it at https://ui.perfetto.dev")
