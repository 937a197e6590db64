"""`manyfit doctor`."""

from __future__ import annotations

import click

from manyfit.cli.common import Verb, json_option, print_json, table
from manyfit.cli.output import say


@click.command(cls=Verb)
@click.option("--ray", "address", metavar="ADDRESS", help="Check this Ray cluster, too [RAY_ADDRESS].")
@json_option
def command(address: str | None, json_: bool) -> None:
    """Check versions, devices, cores, free disk space and extras, and report problems.

    With a Ray cluster, also its nodes: resources, and versions that differ from those here. Exits with 1 if
    there are problems."""
    from manyfit.run.doctor import examine_machine
    from manyfit.study.executors.ray_survey import examine_cluster

    found = examine_machine()
    cluster, problems = examine_cluster(address)
    found.facts.update(cluster)
    found.problems.extend(problems)
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
