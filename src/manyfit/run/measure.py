"""What is measured on a whole split: means over its rows, and metrics that have no value for a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import RunFailed
from manyfit.data import Batch, Source, once
from manyfit.data.randomness import own_randomness
from manyfit.learn.learner import Learner, Outputs
from manyfit.run import statistics
from manyfit.run.signals import Watch

Row = Mapping[str, float]


def is_whole(metric: Any) -> bool:
    """Whether a metric is one of torchmetrics: it sees all rows and then says one number."""
    return hasattr(metric, "update") and hasattr(metric, "compute") and hasattr(metric, "reset")


def validate(
    learner: Learner,
    source: Source | None,
    batch_size: int,
    whole: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    between: bool = False,
) -> list[Row]:
    """Means over every row of the validation split, for each run of a cohort.

    Between two epochs there are no random states to protect: a learner seeds them when an epoch begins.
    """
    if source is None or not len(source):
        return [{} for _ in range(learner.n)]
    columns: dict[str, list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]] = {}
    wholes = [Whole(whole or {}) for _ in range(learner.n)]
    with contextlib.nullcontext() if between else own_randomness():
        for outputs in learner.evaluate(watching(once(source, batch_size), watch)):
            for name, values in outputs.rows.items():
                columns.setdefault(name, []).append(values)
            for i, each in enumerate(wholes):
                each.update(outputs, i)
        means = {name: _means(name, np.concatenate(parts, axis=1)) for name, parts in columns.items()}
        own = learner.whole()
        return [
            {f"val_{name}": float(value) for name, value in values.items()}
            for values in (
                {**{name: column[i] for name, column in means.items()}, **wholes[i].values(), **own[i]}
                for i in range(learner.n)
            )
        ]


def _means(name: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The mean for each run: of a loss that is undefined somewhere, none; else of the rows that have one."""
    if name == "loss" or not np.isnan(values).any():
        return np.asarray(values.mean(axis=1))
    return np.array([statistics.mean(row) for row in values])


def watching(batches: Iterator[Batch], watch: Watch | None) -> Iterator[Batch]:
    """Batches, until somebody asks to stop."""
    return batches if watch is None else watch.obeying(batches)


class Whole:
    """Metrics of torchmetrics for one run, from what a learner gives row by row."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = {name: metric.clone() for name, metric in metrics.items()}
        for metric in self._metrics.values():
            metric.reset()

    def update(self, outputs: Outputs, member: int) -> None:
        """Let every metric see a batch."""
        import torch

        if not self._metrics or outputs.target is None:
            return
        output = torch.from_numpy(outputs.output[member])
        target = torch.from_numpy(outputs.target[member])
        for name, metric in self._metrics.items():
            try:
                metric.update(output, target)
            except Exception as error:
                shapes = f"output {tuple(output.shape)}, target {tuple(target.shape)}"
                raise RunFailed(
                    f"the metric {name!r} failed on {shapes}: {type(error).__name__}: {error}"
                ) from error

    def values(self) -> dict[str, float]:
        """One number for each metric."""
        found = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            if getattr(value, "numel", lambda: 1)() != 1:
                raise RunFailed(
                    f"the metric {name!r} must give one number, but gave shape {tuple(value.shape)}; "
                    "choose an average"
                )
            found[name] = float(value)
        return found
