"""The results of an experiment: all models, the best one, its test and its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.data import once
from manyfit.data.nested import named_arrays
from manyfit.data.prepared import open_split
from manyfit.store.folder import RunFolder
from manyfit.study.result import Study
from manyfit.study.work.folder import StudyFolder

if TYPE_CHECKING:
    import pandas

PREFIX = "trainer.hyperparams."


@dataclass(frozen=True)
class FittedModel:
    """One model: its hyperparameters and its results."""

    number: int
    hyperparams: Mapping[str, Any]
    value: float | None
    """The best value of the objective, as a mean over its seeds."""
    state: str
    folders: Mapping[int, Path]
    """Its run folders, by seed."""

    def history(self, seed: int | None = None) -> list[dict[str, float]]:
        """Return the metrics that were logged, in order."""
        folder = self.folders[seed if seed is not None else min(self.folders)]
        return [{"step": e.step, "epoch": e.epoch, **e.values} for e in RunFolder(folder).events()]


@dataclass(frozen=True)
class FitResult:
    """The results of `run_fit`."""

    study: Study

    @cached_property
    def models(self) -> list[FittedModel]:
        """All models, in the order in which they were added."""
        return [
            FittedModel(
                point.number,
                {name.removeprefix(PREFIX): value for name, value in point.values.items()},
                point.value,
                point.state,
                point.folders,
            )
            for point in self.study.points
        ]

    @property
    def best(self) -> FittedModel:
        """The best model, by the direction of the objective."""
        number = self.study.best.number
        return next(model for model in self.models if model.number == number)

    @property
    def best_folder(self) -> Path:
        """The run folder of the best model."""
        return StudyFolder(self.study.folder).best

    def columns(self) -> dict[str, list[Any]]:
        """Return one row per model, as columns."""
        names = list(dict.fromkeys(name for model in self.models for name in model.hyperparams))
        head: dict[str, list[Any]] = {
            "model": [model.number for model in self.models],
            "state": [model.state for model in self.models],
            self.study.metric: ["" if model.value is None else model.value for model in self.models],
        }
        return head | {name: [model.hyperparams.get(name, "") for model in self.models] for name in names}

    def history_columns(self) -> dict[str, list[Any]]:
        """Return every metric of every model, as columns."""
        rows = [
            {"model": model.number, "seed": seed, **row}
            for model in self.models
            for seed in model.folders
            for row in model.history(seed)
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name, "") for row in rows] for name in names}

    @property
    def table(self) -> pandas.DataFrame:
        """One row per model."""
        return import_optional("pandas", "search").DataFrame(self.columns())

    @property
    def history(self) -> pandas.DataFrame:
        """Every metric of every model."""
        return import_optional("pandas", "search").DataFrame(self.history_columns())


@dataclass(frozen=True)
class TestResult:
    """The metrics of the best model on the test rows."""

    __test__ = False  # it is not a test of pytest

    metrics: Mapping[str, float]
    rows: int


@dataclass(frozen=True)
class Predictions:
    """Predictions by row ID, each row exactly once."""

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(self.columns["id"])

    @property
    def by_id(self) -> dict[str, Any]:
        """The predicted class of each row."""
        name = next(name for name in self.columns if name != "id")
        return dict(zip(self.columns["id"], self.columns[name], strict=True))

    @property
    def table(self) -> pandas.DataFrame:
        """One row per prediction."""
        return import_optional("pandas", "search").DataFrame(dict(self.columns))


def predict_rows(place: Path, etl: Path) -> Predictions:
    """Predict the rows of the split `predict` of prepared data with a trained model."""
    from manyfit.run.reuse import reopen_run

    source = open_split(etl, "predict")
    if source is None:
        raise UsageError(f"{etl} has no rows to predict")
    ids: list[str] = []
    parts: dict[str, list[Any]] = {}
    with reopen_run(place, "best", (), (), True) as (_, run, built, _found):
        if not built.learner.functions.has_predictions:  # type: ignore[attr-defined]
            raise UsageError(f"{run.path} has no predictions: its spec has no method predict")
        for batch in once(source, built.evaluation_batch_size):
            outputs = built.learner.predict(batch)
            for name, array in named_arrays(outputs):
                found = np.asarray(array)
                if len(found) != len(batch):
                    raise RunFailed(f"predict returned {len(found)} values of {name!r} for {len(batch)} rows")
                parts.setdefault(name or "prediction", []).append(found)
            ids += source.ids(batch.index)
    if len(set(ids)) != len(source) or len(ids) != len(source):
        raise RunFailed(f"{len(source)} rows were to be predicted, but {len(set(ids))} were")
    return Predictions({"id": ids, **{name: np.concatenate(found).tolist() for name, found in parts.items()}})
