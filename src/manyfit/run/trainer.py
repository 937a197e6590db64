"""The loop that trains a cohort. Everything optional is a callback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from manyfit.data import Source, once
from manyfit.learn.learner import Learner, Metrics, fetch
from manyfit.run.cohort import Cohort
from manyfit.run.plan import Boundary

Row = Mapping[str, float]


class Callback(Protocol):
    """Sees what happens to a cohort. A callback changes nothing about the result."""

    def on_start(self, cohort: Cohort) -> None:
        """Before the first step."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Row]) -> None:
        """After each pause; `rows` has the values of each run, and is empty within an epoch."""

    def on_end(self, cohort: Cohort) -> None:
        """After the last step, and also when training was cut short."""


def fit(cohort: Cohort, callbacks: Sequence[Callback] = ()) -> None:
    """Train every run of a cohort from where it stands to its end."""
    learner, sums = cohort.learner, []
    try:
        for callback in callbacks:
            callback.on_start(cohort)
        for boundary in cohort.plan.boundaries(cohort.step):
            sums.append(learner.train(cohort.batches, boundary.step - cohort.step))
            cohort.step = boundary.step
            rows: list[Row] = []
            if boundary.ends_epoch:
                rows = merged(averages(sums), validate(learner, cohort.validation, cohort.batch_size))
                sums = []
                learner.observe(rows)
                for member, row, state in zip(cohort.members, rows, learner.state(), strict=True):
                    member.record(boundary, row)
                    member.commit(state, boundary)
            for callback in callbacks:
                callback.on_boundary(cohort, boundary, rows)
    finally:
        for callback in callbacks:
            callback.on_end(cohort)


def averages(sums: Sequence[Metrics]) -> list[Row]:
    """Sums since the last row → means for each run."""
    loss = np.sum([fetch(part["loss"]) for part in sums], axis=0)
    rows = np.sum([fetch(part["rows"]) for part in sums], axis=0)
    rates = fetch(sums[-1]["lr"])
    return [
        {"train_loss": float(mean), "lr": float(rate)} for mean, rate in zip(loss / rows, rates, strict=True)
    ]


def validate(learner: Learner, source: Source | None, batch_size: int) -> list[Row]:
    """Means over every row of the validation split, for each run."""
    if source is None:
        return [{} for _ in range(learner.n)]
    columns: dict[str, list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]] = {}
    for outputs in learner.evaluate(once(source, batch_size)):
        for name, values in outputs.rows.items():
            columns.setdefault(name, []).append(values)
    means = {f"val_{name}": np.concatenate(parts, axis=1).mean(axis=1) for name, parts in columns.items()}
    return [{name: float(values[i]) for name, values in means.items()} for i in range(learner.n)]


def merged(*parts: Sequence[Row]) -> list[Row]:
    """Put the values of each run together."""
    return [{name: value for row in rows for name, value in row.items()} for rows in zip(*parts, strict=True)]
