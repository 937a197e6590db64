"""The leaderboard of a study: its points, the best first, and a test of the first two."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from manyfit.report.replicates import Mean, compare_seeds, mean_of, mean_of_winner
from manyfit.study.result import Point, Study, read_study


@dataclass(frozen=True, slots=True)
class Row:
    """One point of the leaderboard."""

    rank: int
    point: int
    mean: Mean
    seeds: str
    """The number of seeds with a value, and of how many if some have none."""
    epochs: float
    state: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The points of a study that have a value."""

    metric: str
    keys: Sequence[str]
    rows: Sequence[Row]
    verdict: str
    count: int = 0
    """The number of points, shown or not."""
    note: str = ""
    """How the interval of the best point was corrected."""
    replicates: str = "seeds"
    """What the replicates of a point are: seeds or folds."""


def leaderboard(study: Study | str | Path, count: int | None = None) -> Leaderboard:
    """Rank the points of a study by their means."""
    found = study if isinstance(study, Study) else read_study(study)
    ranked = found.ranked
    known = {point.number for point in ranked}
    failed = [p for p in found.points if p.number not in known and p.state == "failed" and _values(p)]
    shown = [*ranked, *failed]
    keys = list(dict.fromkeys(key for point in shown for key in point.values))
    rows = [_row(i, point, found.base, found.folds) for i, point in enumerate(shown[:count], 1)]
    verdict = _verdict(ranked, 1 if found.mode == "min" else -1, found.folds)
    note = ""
    if rows and len(ranked) > 1 and rows[0].mean.half is not None:
        first, *others = [_values(point) for point in ranked]
        rows[0] = replace(rows[0], mean=mean_of_winner(first, others, folds=found.folds))
        note = f"the interval of the best point is corrected for choosing it among {len(ranked)} points"
    return Leaderboard(found.metric, keys, rows, verdict, len(shown), note, found.replicates)


def _row(rank: int, point: Point, base: Mapping[str, Any], folds: int | None) -> Row:
    values, seeds = _values(point), len(point.trials)
    shown = str(seeds) if len(values) == seeds else f"{len(values)} of {seeds}"
    given = {**inherit_values(base, point.values), **point.values}
    return Row(rank, point.number, mean_of(values, folds=folds), shown, point.epochs, point.state, given)


def inherit_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the base that a point does not set; none of a component that the point replaces."""
    found: dict[str, Any] = {}
    for key, value in base.items():
        around = next((other for other in values if key.startswith(f"{other}.")), None)
        inside = (
            values[around].get(key[len(around) + 1 :])
            if around and isinstance(values[around], dict)
            else None
        )
        if around is None or inside is not None:
            found[key] = value if around is None else inside
    return found


def _values(point: Point) -> list[float]:
    return [value for value in point.trials.values() if value is not None]


def _verdict(ranked: Sequence[Point], sign: int, folds: int | None) -> str:
    """Return whether the first point is better than the second, if both were trained to the end."""
    if len(ranked) < 2 or any(point.state != "finished" for point in ranked[:2]):
        return ""
    first, second = ({s: sign * v for s, v in p.trials.items() if v is not None} for p in ranked[:2])
    found = compare_seeds(first, second, folds)
    if found is None:
        return ""
    return f"point {ranked[0].number} against point {ranked[1].number}: {found.verdict}"


def leaderboard_cells(board: Leaderboard) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows as text."""
    names = [_unique(key, board.keys) for key in board.keys]
    header = ["rank", "point", board.metric, board.replicates, "epochs", "state", *names]
    body = [
        [
            str(row.rank), str(row.point), str(row.mean), row.seeds, f"{row.epochs:g}", row.state,
            *(_cell(row.values.get(key)) for key in board.keys),
        ]
        for row in board.rows
    ]  # fmt: skip
    return header, body


def _unique(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, or the whole key if another one ends with the same part."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        rest = " ".join(f"{key}={_cell(item)}" for key, item in value.items() if key != "class")
        return f"{value.get('class', '')} {rest}".strip()
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_markdown(board: Leaderboard) -> str:
    """Format the leaderboard as a Markdown table."""
    header, body = leaderboard_cells(board)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_html(study: Study) -> str:
    """Format the leaderboard of a study for a notebook."""
    board = leaderboard(study, 10)
    header, body = leaderboard_cells(board)
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in header)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in body]
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{rows}</table><p>{html.escape(board.verdict)}</p>"


def leaderboard_csv(board: Leaderboard) -> str:
    """Format the leaderboard as CSV, with full precision and the interval in a separate column."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header = ["rank", "point", board.metric, "interval", board.replicates, "epochs", "state", *board.keys]
    writer.writerow(header)
    for row in board.rows:
        half = "" if row.mean.half is None else repr(row.mean.half)
        shown = ["" if (value := row.values.get(key)) is None else _plain(value) for key in board.keys]
        writer.writerow(
            [row.rank, row.point, repr(row.mean.mean), half, row.seeds, f"{row.epochs:g}", row.state, *shown]
        )
    return stream.getvalue().rstrip("\n")


def _plain(value: Any) -> Any:
    return _cell(value) if isinstance(value, dict | bool) else value


def as_latex(board: Leaderboard) -> str:
    """Format the leaderboard as a LaTeX tabular."""
    header, body = leaderboard_cells(board)
    lines = [" & ".join(map(_escape_latex, line)) + r" \\" for line in (header, *body)]
    return "\n".join(
        [f"\\begin{{tabular}}{{{'l' * len(header)}}}", "\\hline", lines[0], "\\hline", *lines[1:], "\\hline",
         "\\end{tabular}"]
    )  # fmt: skip


def _escape_latex(text: str) -> str:
    marks = {"\\": "\\textbackslash{}", **{character: f"\\{character}" for character in "&%$#_{}"}}
    text = "".join(marks.get(character, character) for character in text)
    return text.replace("±", "$\\pm$").replace("–", "--")


FORMATS: Final[dict[str, Callable[[Leaderboard], str]]] = {
    "md": as_markdown,
    "csv": leaderboard_csv,
    "latex": as_latex,
}
