"""Metrics of the validation split: means over its rows, and metrics without a per-row value."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping

from manyfit.core.signals import Watch
from manyfit.data import Batch, once
from manyfit.data.randomness import own_randomness
from manyfit.data.walk import Walk
from manyfit.learn.metrics_by_run import split_by_run
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.loop.cohort import Cohort, Member

Row = Mapping[str, float]


def validate(cohort: Cohort, watch: Watch | None = None, between: bool = False) -> list[Row]:
    """Return the metrics of the validation split, for each run of a cohort.

    With `between` (two epochs), random states are not protected: a learner seeds them when an epoch begins.
    """
    learner, members = cohort.learner, cohort.members
    sources = [member.validation for member in members]
    if not all(source is not None and len(source) for source in sources):
        return [{} for _ in members]
    further = [SplitMetrics(member.whole) for member in members]
    with contextlib.nullcontext() if between else own_randomness():
        found = learner.measure(_passes(cohort, watch), further)
        means = split_by_run(found, learner.n)
        values = [{**mean, **metrics.values()} for mean, metrics in zip(means, further, strict=True)]
        return [{f"val_{name}": float(value) for name, value in row.items()} for row in values]


def _passes(cohort: Cohort, watch: Watch | None) -> Iterator[Batch] | Walk:
    """Return one pass over the validation rows of each run; it ends early if a stop is requested."""

    def once_through(member: Member) -> Iterator[Batch]:
        assert member.validation is not None
        return watching(once(member.validation, member.batch_size), watch)

    if not cohort.is_group:
        return once_through(cohort.members[0])
    make = [functools.partial(once_through, member) for member in cohort.members]
    return Walk(make, range(len(make)))


def watching(batches: Iterator[Batch], watch: Watch | None) -> Iterator[Batch]:
    """Return batches that raise `StopRequested` once a stop is requested."""
    return batches if watch is None else watch.obeying(batches)
