"""What people ask of a study, from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyfit.config.study.space import to_patch
from manyfit.config.study.study import load_study
from manyfit.config.tree.nodes import join_path, plain
from manyfit.config.tree.overrides import COMMAND_LINE, Overrides, collect
from manyfit.core.errors import ConfigError, Problem, UsageError
from manyfit.study.drive.inbox import Command, number_of, send_command
from manyfit.study.ledger.reader import read_only
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import candidate


def points_of(place: Path, texts: Sequence[str]) -> list[int]:
    """The numbers of points, from what a person writes."""
    points, _, _ = read_only(StudyFolder(place).ledger)
    ids = {point.id: point.number for point in points}
    ids |= {trial.id: point.number for point in points for trial in point.trials}
    return [number_of(text, len(points), ids) for text in texts]


def leave_command(
    place: Path,
    action: str,
    point: int | None = None,
    values: Mapping[str, Any] | None = None,
    weights: bool = False,
) -> None:
    """Leave a command for the driver, after seeing that it can be carried out."""
    points, _, _ = read_only(StudyFolder(place).ledger)
    if "seed" in (values or {}):
        raise UsageError("seeds are replicates, and no value of a point: raise search.seeds")
    if action in ("add", "clone"):
        base = points[point].values if point is not None else {}
        candidate(load_study(place), to_patch({**base, **(values or {})}, COMMAND_LINE), action)
    send_command(StudyFolder(place).inbox, Command(action, point, values or {}, weights))


def parse_values(overrides: Overrides) -> dict[str, Any]:
    """Overrides as the values of a point."""
    problems: list[Problem] = []
    found = collect(overrides, problems)
    if problems:
        raise ConfigError(problems)
    for override in found:
        if override.action != "set":
            raise UsageError(f"{override.origin}: a point has values only: KEY=VALUE")
    return {join_path(override.path): plain(override.value) for override in found}
