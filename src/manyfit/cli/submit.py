"""`manyfit submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import OverrideVerb, current_overrides, json_option, print_json
from manyfit.cli.output import say


@click.command(cls=OverrideVerb)
@click.argument("place", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--time", metavar="HH:MM:SS", help="Time limit.")
@click.option("--memory", metavar="SIZE", help="Memory, such as 16G.")
@click.option("--cpus", type=click.IntRange(1), metavar="N", help="CPU cores.")
@click.option("--gpus", metavar="N", help="GPUs, such as 1 or a100:2.")
@click.option("--partition", metavar="NAME", help="Slurm partition.")
@click.option("--account", metavar="NAME", help="Slurm account.")
@click.option(
    "--tasks", type=click.IntRange(1), metavar="N", help="Number of jobs that a study is divided into."
)
@click.option(
    "--at-once", type=click.IntRange(1), metavar="N", help="Number of jobs that run at the same time."
)
@click.option(
    "--max-queued", type=click.IntRange(1), metavar="N", help="Refuse to submit if more jobs would be queued."
)
@click.option("--print", "only_show", is_flag=True, help="Print the script without submitting it.")
@json_option
def command(place: Path, only_show: bool, json_: bool, **given: Any) -> None:
    """Submit RUN, a run or a study, to Slurm.

    The script is written to RUN/submit.sh. Its resources come from the section `submit` of the config, or
    from these options. Before the time limit, a checkpoint is written and the job requeues itself. A study
    whose points are all known becomes a job array, followed by a job that collects the results.

    \b
    manyfit submit runs/digits-mlp --time 02:00:00 --cpus 4
    manyfit submit studies/lr --tasks 16 --print
    """
    from manyfit.study.submit import submit

    asked = {name: value for name, value in given.items() if value is not None}
    job = submit(place, asked, overrides=[word(item) for item in current_overrides()], only_show=only_show)
    if json_:
        print_json({"file": job.file, "tasks": job.tasks, "sent": job.sent, "script": job.script})
    elif only_show:
        say("\n".join(filter(None, [job.script, job.then])), nl=False)
    elif job.sent:
        say(f"{job.sent}  ({job.file})")
    else:
        say(f"sbatch was not found; the script is {job.file}")


def word(item: Any) -> str:
    """Return an override as one word of a command line."""
    if isinstance(item, str):
        return item
    import json

    from manyfit.config.tree.nodes import join_path, plain

    return f"{join_path(item.path)}={json.dumps(plain(item.value))}"
