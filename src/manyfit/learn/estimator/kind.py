"""The kind of estimators with `fit` and `predict`, such as those of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from manyfit.config.schema.run import Train
from manyfit.core.lazy import import_optional
from manyfit.core.state import State
from manyfit.data import ArraySource, Batch
from manyfit.learn.estimator.learner import EstimatorLearner
from manyfit.learn.kind import Format, LearnerKind, Setup


def write_skops(learner: EstimatorLearner, batch: Batch, file: Path) -> None:
    """Write an estimator as a skops file, which can be loaded without manyfit."""
    skops: Any = import_optional("skops.io", "estimators")
    skops.dump(learner.model, file)


class EstimatorKind(LearnerKind):
    """The kind of learner for estimators."""

    name: ClassVar[str] = "estimator"
    noun: ClassVar[str] = "an estimator"
    formats: ClassVar[Mapping[str, Format]] = {"skops": Format("model.skops", write_skops)}

    def claims(self, model: Any) -> bool:
        """Return whether a model has `fit` and `predict`."""
        return hasattr(model, "fit") and hasattr(model, "predict")

    def budget(self, train: Train, count_steps: Callable[[], int]) -> tuple[int, int]:
        """Return one epoch of one step: the fit."""
        return 1, 1

    def build(self, setup: Setup) -> EstimatorLearner:
        """Build the learner."""
        return EstimatorLearner(setup.made.model, setup.train, setup.order.batch_size, setup.config.run.seed)

    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Return the estimator that a skops file holds."""
        learner = EstimatorLearner(model, ArraySource(np.zeros((0, 1))))
        learner.load([State(dict(state), {"step": 1, "loss": None})])
        return learner.model

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return skops, always."""
        return ["skops"]
