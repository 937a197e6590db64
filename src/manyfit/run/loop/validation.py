"""Metrics of the validation split: means over its rows, and metrics without a per-row value."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from manyfit.core.signals import Watch
from manyfit.data import Batch, Order, once, once_over
from manyfit.data.layout import layout_of
from manyfit.data.randomness import own_randomness
from manyfit.data.resident import Resident, find_resident
from manyfit.data.walk import Walk
from manyfit.learn.metrics_by_run import split_by_run
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.loop.cohort import Cohort, MeasuredPart, Member

Row = Mapping[str, float]
T = TypeVar("T")


def validate(cohort: Cohort, watch: Watch | None = None, between: bool = False) -> list[Row]:
    """Return the metrics of the validation split, for each run of a cohort.

    With `between` (two epochs), random states are not protected: a learner seeds them when an epoch begins.
    """
    learner, members = cohort.learner, cohort.members
    sources = [member.validation for member in members]
    if not all(source is not None and len(source) for source in sources):
        return [{} for _ in members]
    with contextlib.nullcontext() if between else own_randomness():
        if visits := count_visits(cohort):
            part = cohort.measuring or MeasuredPart.begin(members)
            while part.visits < visits:
                part = measure_visit(cohort, part, watch)
            found, further = learner.summarize(part.collected), part.further
        else:
            further = [SplitMetrics(member.whole) for member in members]
            found = learner.measure(_passes(cohort, watch), further)
        means = split_by_run(found, learner.n)
        values = [{**mean, **metrics.values()} for mean, metrics in zip(means, further, strict=True)]
        return [{f"val_{name}": float(value) for name, value in row.items()} for row in values]


def count_visits(cohort: Cohort) -> int:
    """Return the number of shards in which validation rows are measured; 0 if they are not divided."""
    layouts = [layout_of(member.validation) for member in cohort.members]
    if not all(layouts) or not cohort.learner.divides_measure(any(member.whole for member in cohort.members)):
        return 0
    return max(layout.shards for layout in layouts if layout is not None)


def measure_visit(cohort: Cohort, part: MeasuredPart, watch: Watch | None) -> MeasuredPart:
    """Measure the next shard of the validation rows of each run."""
    batches = _passes(cohort, watch, part.visits)
    collected = cohort.learner.collect(batches, part.further, part.collected)
    return MeasuredPart(part.visits + 1, collected, part.further)


def _passes(cohort: Cohort, watch: Watch | None, visit: int | None = None) -> Iterator[Batch] | Walk:
    """Return one pass over the validation rows of each run; it ends early if a stop is requested.

    With a visit, only the rows of one shard: in cyclic order from the first shard of the run, as in training.
    """

    def once_through(member: Member) -> Iterator[Batch]:
        source, layout = member.validation, layout_of(member.validation)
        assert source is not None
        if visit is None or layout is None:
            return watching(once(source, member.batch_size), watch)
        if visit >= layout.shards:
            return iter(())
        first = member.order.first_shard if member.order is not None else 0
        shard = (first + visit) % layout.shards
        return watching(once_over(source, layout, member.batch_size, shard), watch)

    if not isinstance(cohort.batches, Walk):
        return once_through(cohort.members[0])
    make: dict[object, Callable[[], Iterator[Batch]]] = {}
    keys = [_stream_key(member, visit) or number for number, member in enumerate(cohort.members)]
    for key, member in zip(keys, cohort.members, strict=True):
        make.setdefault(key, functools.partial(once_through, member))
    numbers = {key: number for number, key in enumerate(make)}
    resident = [_find_resident(cohort.members[keys.index(key)], watch, visit) for key in make]
    return Walk(list(make.values()), [numbers[key] for key in keys], resident)


def _find_resident(member: Member, watch: Watch | None, visit: int | None) -> Resident | str:
    """Return the rows of a whole validation split, if they are in memory, or why there are none."""
    if visit is not None:
        return "its rows are visited shard by shard"
    found = find_resident(member.validation, Order(member.batch_size, epochs=1))
    if isinstance(found, str):
        return found
    return Resident(found.columns, lambda start: watching(found.rows(start), watch))


def _stream_key(member: Member, visit: int | None) -> object:
    """Return what determines the batches of a pass; None if they may depend on the reader."""
    is_constant = vars(type(member.validation)).get("is_constant", False)
    return (id(member.validation), member.batch_size) if is_constant and visit is None else None


def watching(batches: Iterator[T], watch: Watch | None) -> Iterator[T]:
    """Return batches that raise `StopRequested` once a stop is requested."""
    return batches if watch is None else watch.obeying(batches)
