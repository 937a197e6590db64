"""Comparisons of the points of a study: paired over seeds, and corrected if there are several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from manyfit.core.errors import UsageError
from manyfit.report.replicates import Paired, compare_seeds, holm
from manyfit.study.result import Point, Study


@dataclass(frozen=True, slots=True)
class PointComparison:
    """A point against another one, on the same seeds."""

    point: Point
    reference: Point
    paired: Paired
    """Positive differences mean that the point is better."""


def compare_points(study: Study, pairs: Sequence[tuple[Point, Point]]) -> list[PointComparison]:
    """Compare points with their references; p-values of several comparisons are corrected (Holm)."""
    sign = 1 if study.mode == "min" else -1
    found = []
    for point, reference in pairs:
        values = [{s: sign * v for s, v in p.trials.items() if v is not None} for p in (point, reference)]
        paired = compare_seeds(values[0], values[1], study.folds)
        if paired is None:
            raise UsageError(f"points {point.number} and {reference.number} have no seed in common yet")
        found.append(PointComparison(point, reference, paired))
    if len(found) < 2:
        return found
    corrected = holm([each.paired.p for each in found])
    return [
        replace(each, paired=replace(each.paired, p=p, is_corrected=True))
        for each, p in zip(found, corrected, strict=True)
    ]


def find_ablations(study: Study) -> list[tuple[Point, Point]]:
    """Return each point of an ablation with the base: the point that sets none of its additional values."""
    done = [point for point in study.points if point.state == "finished" and point.value is not None]
    items = {
        point.number: {json.dumps([k, v], sort_keys=True) for k, v in point.values.items()} for point in done
    }
    found = []
    for point in done:
        below = [other for other in done if items[other.number] < items[point.number]]
        if below:
            found.append((point, max(below, key=lambda other: len(items[other.number]))))
    return found


def find_points(study: Study, names: Sequence[str]) -> list[Point]:
    """Return points by number or name."""
    known = {str(point.number): point for point in study.points} | {point.id: point for point in study.points}
    if lost := [name for name in names if name not in known]:
        hint = f"manyfit status {study.folder} --all lists them"
        raise UsageError(f"{study.folder} has no point {lost[0]!r}; {hint}")
    return [known[name] for name in names]


def choose_pairs(study: Study, names: Sequence[str]) -> list[tuple[Point, Point]]:
    """Return the pairs to compare: points with the first of them, or without names an ablation's points."""
    if len(names) == 1:
        raise UsageError("two or more points are required: manyfit study compare STUDY 3 5")
    if not names:
        found = find_ablations(study)
        if not found:
            raise UsageError("the study has no ablation; name the points: manyfit study compare STUDY 3 5")
        return found
    first, *others = find_points(study, names)
    return [(other, first) for other in others]


def comparison_cells(
    found: Sequence[PointComparison], replicates: str = "seeds"
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table; `replicates` are seeds or folds."""
    header = ["point", "against", "difference", replicates, "p", "verdict"]
    body = []
    for each in found:
        paired, p = each.paired, each.paired.p
        short = paired.verdict.partition(",")[0].partition(":")[0]
        shown = "–" if p is None else f"{p:.2g}"
        count = str(paired.difference.count)
        body.append(
            [f"{each.point.number}", f"{each.reference.number}", f"{paired.difference}", count, shown, short]
        )
    return header, body
