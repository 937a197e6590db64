"""`manyfit track`."""

from __future__ import annotations

from pathlib import Path

import click

from manyfit.cli.common import Verb, json_option, print_json, table, trust_option


@click.group()
def command() -> None:
    """Send trackers what they have missed."""


@command.command("sync", cls=Verb)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mlflow", "uri", help="MLflow address, if not the one in the config.")
@trust_option
@json_option
def sync_command(runs: tuple[Path, ...], uri: str | None, trust: bool, json_: bool) -> None:
    """Send TensorBoard and MLflow everything they have missed of each RUN or study. Nothing is sent twice."""
    from manyfit.run.callbacks.tracking import sync_trackers as bring_up_to_date

    found = {
        str(run): _study(run, uri, trust) if holds_study(run) else bring_up_to_date(run, uri, trust)
        for run in runs
    }
    if json_:
        print_json(found)
        return
    table(
        [(run, name, count) for run, sent in found.items() for name, count in sent.items()],
        ("run", "tracker", "rows"),
    )


def holds_study(place: Path) -> bool:
    """Return whether a folder holds a study."""
    return (place / "ledger.db").is_file() and not (place / "config.resolved.yaml").exists()


def _study(place: Path, uri: str | None, trust: bool) -> dict[str, int]:
    from manyfit.config.study.study import load_mirrors
    from manyfit.config.typed.artifacts import HINT
    from manyfit.core.errors import UsageError
    from manyfit.study.ledger.reader import is_own
    from manyfit.study.mirrors import mirror

    track = load_mirrors(place)
    address = uri or track.mlflow
    if address is not None and not (trust or is_own(place / "ledger.db")):
        raise UsageError(
            f"{place} was not created by you on this machine, and would be sent to {address}; {HINT}"
        )
    return mirror(place, track.tensorboard, address)
