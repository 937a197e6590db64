"""`manyfit export`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb, allow_change_option, json_option, print_json, run_argument, trust_option
from manyfit.cli.output import say


@click.command(cls=Verb)
@run_argument
@click.option(
    "--format",
    "formats",
    multiple=True,
    default=("safetensors",),
    metavar="FORMAT",
    show_default=True,
    help="Repeatable: safetensors; torch (a torch.export program, .pt2) and onnx for modules; "
    "keras and saved_model for Keras; skops for estimators; and formats of custom learners.",
)
@allow_change_option
@click.option("--checkpoint", "which", default="best", show_default=True, help="best, last, or a step.")
@trust_option
@json_option
def command(
    run: Path, formats: tuple[str, ...], which: str, allow_change: tuple[str, ...], trust: bool, json_: bool
) -> None:
    """Export the model of RUN to its folder exported/. Each format is first checked against the original."""
    from manyfit.run.reuse import export

    written = export(run, formats, which, allow_change, trust)
    if json_:
        print_json([str(path) for path in written])
    else:
        for path in written:
            say(f"wrote {path}")
