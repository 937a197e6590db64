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
@json_option
def command(run: Path, every: bool, json_: bool) -> None:
    """Show one RUN: state, results, config and starts."""
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
