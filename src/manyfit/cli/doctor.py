"""`manyfit doctor`."""

from __future__ import annotations

import click

from manyfit.cli.common import Verb, json_option, print_json, table
from manyfit.cli.output import say


@click.command(cls=Verb)
@json_option
def command(json_: bool) -> None:
    """Check versions, devices, cores, free disk space and extras, and report problems.

    Exits with 1 if there are problems."""
    from manyfit.run.doctor import examine_machine

    found = examine_machine()
    if json_:
        print_json({"facts": found.facts, "extras": found.extras, "problems": found.problems})
    else:
        table(found.facts.items())
        say("\nextras")
        table((f"  {name}", state) for name, state in found.extras.items())
        say("\nproblems" if found.problems else "\nno problems")
        for problem in found.problems:
            say(f"  {problem}")
    if found.problems:
        click.get_current_context().exit(1)
