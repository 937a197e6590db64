"""Comparison of two runs on the same rows: paired differences, their mean with a confidence interval."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import FolderError, UsageError
from manyfit.core.names import listing, nearest
from manyfit.store.folder import RunFolder

SPLITS: Final = ("train", "validation", "test")
LABELS: Final = ("id", "row", "part", "target", "prediction", "confidence", "failed")
RESAMPLES: Final = 10_000
MOST_DRAWS: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """One row in both runs."""

    id: str
    before: float
    after: float
    target: str
    predictions: tuple[str, str]

    @property
    def difference(self) -> float:
        """The second value minus the first."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two reports on their common rows."""

    metric: str
    rows: int
    only_first: int
    only_second: int
    means: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    level: float
    lower: int
    higher: int
    changes: Sequence[Change]

    @property
    def verdict(self) -> str:
        """The conclusion, which is valid for these rows, not for other seeds."""
        low, high = self.interval
        if not (math.isfinite(low) and math.isfinite(high)):
            return "the difference is not a number"
        if low <= 0 <= high:
            return "no significant difference on these rows"
        return f"the second is {'higher' if low > 0 else 'lower'} on these rows"


def compare(
    first: str | Path,
    second: str | Path,
    metric: str = "loss",
    split: str = "test",
    worst: int = 10,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two runs row by row, by their reports of a split."""
    left, right = read_report(Path(first), split), read_report(Path(second), split)
    for place, report in ((first, left), (second, right)):
        known = [name for name in report.columns if name not in LABELS]
        if metric not in known:
            best = nearest(metric, known)
            hint = f"; did you mean {best!r}?" if best else f"; it has {listing(known)}"
            raise UsageError(f"the report of {place} has no column {metric!r}{hint}")
    shared = [id_ for id_ in left.ids if id_ in right.rows]
    if not shared:
        raise UsageError(f"{first} and {second} have no rows of the {split} split in common")
    a, b = left.values(metric, shared), right.values(metric, shared)
    differences = b - a
    order = np.argsort(-np.abs(np.nan_to_num(differences, nan=np.inf)), kind="stable")[:worst]
    changes = [
        Change(
            shared[i], float(a[i]), float(b[i]), left.cell("target", shared[i]),
            (left.cell("prediction", shared[i]), right.cell("prediction", shared[i])),
        )
        for i in order
        if differences[i] != 0
    ]  # fmt: skip
    return Comparison(
        metric,
        len(shared),
        len(left.ids) - len(shared),
        len(right.ids) - len(shared),
        (float(a.mean()), float(b.mean())),
        float(differences.mean()),
        bootstrap(differences, level, seed),
        level,
        int((differences < 0).sum()),
        int((differences > 0).sum()),
        changes,
    )


def bootstrap(values: npt.NDArray[np.float64], level: float, seed: int) -> tuple[float, float]:
    """Return the confidence interval of a mean: the percentiles of the means of bootstrap resamples."""
    if not np.isfinite(values).all():
        return math.nan, math.nan
    rounds = int(min(RESAMPLES, max(1_000, MOST_DRAWS // len(values))))
    state = np.random.RandomState(np.random.MT19937(seed))
    at_once = max(1, 2_000_000 // len(values))
    means = np.concatenate(
        [
            values[state.randint(0, len(values), size=(min(at_once, rounds - done), len(values)))].mean(
                axis=1
            )
            for done in range(0, rounds, at_once)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A row report, read from its file."""

    ids: Sequence[str]
    rows: Mapping[str, int]
    columns: Mapping[str, Sequence[str]]

    def values(self, column: str, ids: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return a column of numbers for some rows."""
        found = self.columns[column]
        try:
            return np.array([float(found[self.rows[id_]]) for id_ in ids], dtype=np.float64)
        except ValueError as error:
            raise FolderError(f"a report is damaged: in its column {column}: {error}") from error

    def cell(self, column: str, id_: str) -> str:
        """Return one cell; empty if the column does not exist."""
        return self.columns[column][self.rows[id_]] if column in self.columns else ""


def read_report(run: Path, split: str) -> ReportFile:
    """Read `reports/<split>.csv` of a run."""
    if split not in SPLITS:
        raise UsageError(f"there is no split {split!r}; valid are {', '.join(SPLITS)}")
    folder = RunFolder(run)
    file = folder.reports / f"{split}.csv"
    if not file.is_file():
        folder.load_trained()
        raise FolderError(
            f"{run} has no report of the {split} split; create it: manyfit evaluate {run} --split {split}"
        )
    try:
        csv.field_size_limit(sys.maxsize)
        with file.open(newline="", encoding="utf-8") as stream:
            header, *rows = list(csv.reader(stream))
    except (OSError, ValueError, csv.Error) as error:
        raise FolderError(f"{file} is damaged: {error}") from error
    if "id" not in header or any(len(row) != len(header) for row in rows):
        raise FolderError(f"{file} is damaged: it is not a report with an ID in every row")
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    keys = list(columns["id"])
    for name in ("row", "part"):  # if IDs do not distinguish the rows
        keys = [
            f"{key}, {name} {cell}" for key, cell in zip(keys, columns.get(name, ()), strict=False)
        ] or keys
    by_id = {id_: i for i, id_ in enumerate(keys)}
    if len(by_id) != len(rows):
        raise FolderError(f"{file} is damaged: some IDs are repeated")
    return ReportFile(keys, by_id, columns)
