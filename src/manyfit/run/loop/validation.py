"""What is measured on a whole split: means over its rows, and metrics that have no value for a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from manyfit.core.signals import Watch
from manyfit.data import Batch, Source, once
from manyfit.data.randomness import own_randomness
from manyfit.learn.learner import Learner, fetch
from manyfit.learn.split_metrics import SplitMetrics

Row = Mapping[str, float]


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
    further = [SplitMetrics(whole or {}) for _ in range(learner.n)]
    with contextlib.nullcontext() if between else own_randomness():
        found = learner.measure(watching(once(source, batch_size), watch), further)
        means = {name: fetch(values) for name, values in found.items()}
        return [
            {f"val_{name}": float(value) for name, value in values.items()}
            for values in (
                {**{name: column[i] for name, column in means.items()}, **further[i].values()}
                for i in range(learner.n)
            )
        ]


def watching(batches: Iterator[Batch], watch: Watch | None) -> Iterator[Batch]:
    """Batches, until somebody asks to stop."""
    return batches if watch is None else watch.obeying(batches)
