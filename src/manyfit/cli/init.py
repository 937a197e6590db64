"""`manyfit init`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb
from manyfit.cli.output import say
from manyfit.core.errors import UsageError

TEMPLATES = Path(__file__).with_name("templates")
NEXT = {
    "project": {
        "Train it": "manyfit train runs/digits-mlp",
        "Compare more": "manyfit sweep studies/digits",
    },
    "spec": {"Run it": "python digits.py", "Look at it": "manyfit status models/study"},
}
"""What to do next, by template."""


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--template",
    type=click.Choice(sorted(NEXT)),
    default="project",
    help="project: a run and a study; spec: ETL and minibatch specs over data in shards.",
)
def command(folder: Path, template: str) -> None:
    """Create a small project in FOLDER (by default, here). Existing files are not overwritten."""
    from manyfit.store import durable

    place = TEMPLATES / template
    files = {
        path.relative_to(place): path
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    targets = {
        source: folder / Path(*("." + part[4:] if part.startswith("dot_") else part for part in name.parts))
        for name, source in files.items()
    }
    existing = [str(target) for target in targets.values() if target.exists()]
    if existing:
        raise UsageError(f"nothing was written, because these files already exist: {', '.join(existing)}")
    for source, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.write_file(target, source.read_bytes())
        say(f"wrote {target}", err=True)
    steps = f"cd {folder} && " if folder != Path() else ""
    for what, line in NEXT[template].items():
        say(f"{what + ':':<15} {steps}{line}")
