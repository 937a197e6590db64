"""The results of a study, as `sweep` returns them and as they are read from its folder later."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.core.errors import FolderError
from manyfit.core.lazy import call_later, import_optional
from manyfit.store.lock import is_owned
from manyfit.study.ledger.reader import Read, read_only
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.records import PointRecord, fair_epoch

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the search space: its values and its results."""

    number: int
    id: str
    values: Mapping[str, Any]
    state: str
    value: float | None
    """The mean over its seeds of the best value of the objective."""
    trials: Mapping[int, float | None]
    """The best value of the objective, by seed."""
    folders: Mapping[int, Path]
    reason: str = ""
    epochs: float = 0.0
    """Epochs that all of its seeds have completed."""


@dataclass(frozen=True, slots=True)
class Study:
    """The results of a study, from its ledger: the best point, all trials, and the best model.

    >>> study = manyfit.sweep("studies/lr")     # doctest: +SKIP
    >>> study.best.values                       # doctest: +SKIP
    {'train.optimizer.lr': 0.003}
    """

    folder: Path
    metric: str
    mode: str
    points: Sequence[Point]
    """All points, in the order in which they were added."""
    failures: Mapping[str, int]
    """The number of failed trials, by kind of failure."""
    unfinished: int = 0
    """Trials left to train, because the budget is exhausted or the study was interrupted."""
    seconds: float = 0.0
    base: Mapping[str, Any] = field(default_factory=dict)
    """The values of the base for the keys of the search space."""
    folds: int | None = None
    """The number of folds, if the replicates are folds."""

    @property
    def replicates(self) -> str:
        """What the replicates of a point are: seeds or folds."""
        return "seeds" if self.folds is None else "folds"

    @property
    def best(self) -> Point:
        """The best point by the mean over its seeds; points that were trained to the end come first."""
        if not self.ranked:
            raise FolderError(f"{self.folder} has no point with a value yet")
        return self.ranked[0]

    @property
    def ranked(self) -> list[Point]:
        """The comparable points, best first; those that were stopped early come last."""
        sign = 1 if self.mode == "min" else -1
        known = [point for point in self.points if point.value is not None]
        return sorted(known, key=lambda p: (p.state != "finished", sign * (p.value or 0.0), p.id))

    @property
    def trials(self) -> pandas.DataFrame:
        """A table with one row per trial: point, seed, state, value, epochs, and the values of the space."""
        pandas = import_optional("pandas", "search")
        return pandas.DataFrame(rows(self.folder))

    def frame(self) -> pandas.DataFrame:
        """Return the same table as `trials`."""
        return self.trials

    def plot(self) -> Any:
        """Draw the value of every point, and the curves of the best points; a notebook shows the figure."""
        return call_later("manyfit.report.curves.plot_study", self)

    def plot_effects(self, *metrics: str) -> Any:
        """Draw every hyperparameter against every metric; a notebook shows the figure."""
        return call_later("manyfit.report.effects.find_effects", self, metrics)

    def _repr_html_(self) -> str:
        return str(call_later("manyfit.report.leaderboard.as_html", self))

    def load_model(self) -> Any:
        """Load the best model, ready to predict."""
        from manyfit.run.result import load_model

        return load_model(StudyFolder(self.folder).best, trust=True)


def read_study(place: str | os.PathLike[str], read: Read | None = None) -> Study:
    """Read a study from its folder, also while it is running. `read` is its ledger, if already read."""
    folder = StudyFolder(Path(place))
    points, facts, _ = read or read_only(folder.ledger)
    current = select_seeds(points, facts)
    objective = facts.get("objective", {"metric": "val_loss", "mode": "min"})
    sign = 1 if objective["mode"] == "min" else -1
    failures: dict[str, int] = {}
    for trial in (t for p in current for t in p.trials):
        if trial.failure is not None and trial.state in ("failed", "infeasible"):
            failures[trial.failure.kind] = failures.get(trial.failure.kind, 0) + 1
    waiting = sum(not t.is_done for p in current if p.state == "open" for t in p.trials)
    made = [_point(point, folder, sign, facts.get("epochs")) for point in current]
    return Study(
        folder.path,
        objective["metric"],
        objective["mode"],
        made,
        failures,
        waiting,
        facts.get("seconds") or 0.0,
        facts.get("base_values") or {},
        facts.get("folds"),
    )


def select_seeds(points: Sequence[PointRecord], facts: Mapping[str, Any]) -> list[PointRecord]:
    """Return the points that the study currently has, with the trials of its current seeds."""
    seeds = facts.get("seeds")
    current = [point for point in points if point.current]
    for point in current:
        if seeds is not None:
            point.trials = [trial for trial in point.trials if trial.seed in seeds]
    return current


def _point(point: PointRecord, folder: StudyFolder, sign: int, epochs: int | None) -> Point:
    limit = fair_epoch(point, epochs) if epochs is not None else math.inf
    return Point(
        point.number,
        point.id,
        point.values,
        point.state,
        point.value(sign, limit),
        {trial.seed: trial.best(limit, sign) for trial in point.trials},
        {trial.seed: folder.trial(trial.id).path for trial in point.trials},
        point.reason,
        min(limit, max((trial.epoch for trial in point.trials), default=0.0)),
    )


def rows(place: Path) -> list[dict[str, Any]]:
    """Return one row per trial, as plain data."""
    folder = StudyFolder(place)
    points, facts, _ = read_only(folder.ledger)
    owned = is_owned(folder.path)
    found = []
    folds = facts.get("folds")
    for point in select_seeds(points, facts):
        for trial in point.trials:
            replicate = {"seed": trial.seed}
            if folds is not None:
                replicate = dict(zip(("seed", "fold"), divmod(trial.seed, folds), strict=True))
            state = trial.state if trial.state != "running" or owned else "interrupted"
            found.append(
                {
                    "point": point.number,
                    "trial": trial.id,
                    **replicate,
                    "state": "stopped" if point.state == "stopped" and state == "paused" else state,
                    "value": trial.value,
                    "epoch": trial.epoch,
                    "step": trial.step,
                    "seconds": round(trial.seconds, 3),
                    "failure": trial.failure.kind if trial.failure is not None else "",
                    **point.values,
                }
            )
    return found
