"""`manyfit show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import Verb, json_option, print_json, run_argument, table, to_yaml
from manyfit.cli.output import say
from manyfit.core.errors import FolderError
from manyfit.core.names import pluralize


@click.command(cls=Verb)
@run_argument
@click.option("--all", "every", is_flag=True, help="Include defaults.")
@click.option("--model", "is_model", is_flag=True, help="Show the layers, with output shapes from one batch.")
@click.option("--schedule", "is_schedule", is_flag=True, help="Draw the learning rate of every step.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the drawing to a file.")
@json_option
def command(
    run: Path, every: bool, is_model: bool, is_schedule: bool, output: Path | None, json_: bool
) -> None:
    """Show one RUN: state, results, config and starts; or the tensors of a checkpoint."""
    from manyfit.store.checkpoint import is_checkpoint

    if is_model or is_schedule or is_checkpoint(run):
        (show_model if is_model else show_schedule if is_schedule else show_checkpoint)(run, output, json_)
        return
    from manyfit.store.describe import details
    from manyfit.store.folder import RunFolder

    folder = RunFolder(run)
    if not run.exists():
        folder.load_trained()  # raises, with the nearest folder
    if not folder.config.is_file():
        raise FolderError(f"{run} is not a run folder: it has no config.yaml")
    facts = details(folder)
    if json_:
        print_json(facts)
        return
    table(
        [
            ("run", facts["name"]),
            ("state", facts["state"]),
            *_troubles(facts),
            ("progress", f"epoch {facts['epoch']:g}, step {facts['step']}"),
            *((f"best {name}", f"{value:.6g}") for name, value in facts["metrics"].items()),
            *((f"test {name}", f"{value:.6g}") for name, value in facts["test"].items()),
            ("identity", facts["fingerprint"] or "–"),
        ]
    )
    if facts["config"]:
        left = set() if every else set(facts["defaults"])
        say("\nconfig" + (f" ({pluralize(len(left), 'default')} not shown: --all)" if left else ""))
        rows = [(f"  {path}", to_yaml(value)) for path, value in facts["config"].items() if path not in left]
        table(rows)
    for start in facts["starts"]:
        code = f", commit {start['commit'][:12]}" if start["commit"] else ""
        say(
            f"\nstarted {start['started']} from step {start['from_step']} on {start['device']}, "
            f"{start['threads']} threads, torch {start['versions'].get('torch', '?')}{code}"
        )


def _troubles(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the damage and the failure of a run."""
    found = [("damaged", text) for text in facts.get("damaged", ())]
    failure = facts.get("failure")
    if failure:
        found.append((failure["kind"], failure["message"].replace("\n", "\n" + " " * 14)))
    return found


def show_model(run: Path, output: Path | None, json_: bool) -> None:
    """Print the layers of a model."""
    from manyfit.run.inspect_model import list_layers

    rows = list_layers(run)
    names = ("layer", "class", "parameters", "output")
    if json_:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        table([(name, kind, f"{count:,}", shape) for name, kind, count, shape in rows], names)


def show_checkpoint(folder: Path, output: Path | None, json_: bool) -> None:
    """Print the tensors of a checkpoint."""
    from manyfit.run.inspect_model import list_tensors

    names, rows = ("tensor", "shape", "type", "norm"), list(list_tensors(folder))
    if json_:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        table([(name, shape, kind, f"{norm:.6g}") for name, shape, kind, norm in rows], names)


def show_schedule(run: Path, output: Path | None, json_: bool) -> None:
    """Draw the rates of every step."""
    from manyfit.report.charts import Chart, Figure, Series
    from manyfit.run.inspect_model import trace_schedule

    per_epoch, rates = trace_schedule(run)
    if json_:
        print_json({"steps_per_epoch": per_epoch, **rates})
        return
    charts = [
        Chart(name, "step", name, [Series("", list(map(float, range(len(values)))), values)])
        for name, values in rates.items()
    ]
    figure = Figure(charts)
    say(str(figure.save(output)) if output is not None else figure.text())
