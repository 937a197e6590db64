"""`manyfit status`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from manyfit.cli.common import Verb, json_option, print_json, study_argument, table
from manyfit.cli.output import say


@click.command(cls=Verb)
@study_argument
@click.option("--all", "every", is_flag=True, help="Show all points instead of the best ten.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "csv", "latex"]),
    default="text",
    show_default=True,
    help="Format of the leaderboard.",
)
@click.option("--traceback", is_flag=True, help="Show the traceback of each group of failures.")
@json_option
def command(study: Path, every: bool, form: str, traceback: bool, json_: bool) -> None:
    """Show the progress of STUDY, also while it is running or after a crash."""
    from manyfit.report.comparisons import compare_points, comparison_cells, find_ablations
    from manyfit.report.leaderboard import FORMATS, leaderboard, leaderboard_cells
    from manyfit.study.ledger.reader import read_only
    from manyfit.study.result import read_study, rows
    from manyfit.study.status import status
    from manyfit.study.work.folder import StudyFolder

    place, read = study, read_only(StudyFolder(study).ledger)
    facts = status(place, read)
    found = read_study(place, read)
    board = leaderboard(found, None if every or form != "text" or json_ else 10)
    if json_:
        ranking = [
            {"rank": r.rank, "point": r.point, "mean": r.mean.mean, "interval": r.mean.half,
             "seeds": r.mean.count, "state": r.state, "values": r.values}
            for r in board.rows
        ]  # fmt: skip
        print_json({**facts, "leaderboard": ranking, "verdict": board.verdict, "table": rows(place)})
        return
    if form != "text":
        say(FORMATS[form](board))
        return
    counts = ", ".join(f"{count} {state}" for state, count in facts["trials"].items())
    table(
        [
            ("study", f"{facts['study']} is {facts['state']}"),
            ("trials", counts or "none"),
            ("trained", f"{facts['steps']:,} steps in {facts['seconds']:g} s"),
            *describe_repeated(facts),
            *describe_planned(facts),
            *describe_fused(facts),
        ]
    )
    if facts["training"]:
        say("\ntraining")
        table(
            [
                (t["point"], t["trial"], f"seed {t['seed']}", f"epoch {t['epoch']:g}")
                for t in facts["training"]
            ]
        )
    if board.rows:
        header, body = leaderboard_cells(board)
        say("")
        table(body, header)
        if board.count > len(body):
            say("… and more: --all")
    if board.note:
        say(f"\n{board.note}")
    if board.verdict:
        say(f"\n{board.verdict}")
    if ablations := find_ablations(found):
        say("\nagainst the base")
        header, body = comparison_cells(compare_points(found, ablations), found.replicates)
        table(body, header)
    print_failures(facts["failures"], place, traceback)


def describe_repeated(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row of a table with the steps that were trained twice, if there are any."""
    count = facts["repeated_steps"]
    return [("repeated", f"{count:,} steps or more, lost with workers or a killed command")] if count else []


def describe_planned(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row of a table with the way in which the study is executed, if it was planned."""
    from manyfit.study.drive.planner import Way

    planned = facts["execution"]
    return [("planned", Way(**planned["ways"][0]).describe())] if planned else []


def describe_fused(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows of a table with how many trials were trained in one pass, and why others were not."""
    return [
        ("fused" if not i else "", f"{count} {how}")
        for i, (how, count) in enumerate(facts["trained"].items())
    ]


def print_failures(failures: Sequence[dict[str, Any]], place: Path, traceback: bool = False) -> None:
    """Print failures grouped by place, with their points."""
    if not failures:
        return
    say("\nfailed")
    for group in failures:
        points = ", ".join(map(str, group["points"][:10]))
        more = f" and {len(group['points']) - 10} more" if len(group["points"]) > 10 else ""
        say(f"  {group['count']} × {group['kind']}, points {points}{more}")
        text = group["traceback"] if traceback and group["traceback"] else group["message"]
        say("    " + text.strip().replace("\n", "\n    "))
    say(f"  to retry them: manyfit sweep {place} --retry failed")
