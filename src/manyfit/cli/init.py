"""`manyfit init`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb
from manyfit.cli.output import say
from manyfit.core.errors import UsageError

TEMPLATE = Path(__file__).with_name("templates") / "project"


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def command(folder: Path) -> None:
    """Create a small project in FOLDER (by default, here). Existing files are not overwritten."""
    from manyfit.store import durable

    files = {
        path.relative_to(TEMPLATE): path
        for path in sorted(TEMPLATE.rglob("*"))
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
    say(f"Train it:       {steps}manyfit train runs/digits-mlp")
    say(f"Compare more:   {steps}manyfit sweep studies/digits")
