"""The loop that trains a cohort. Everything optional is a callback."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from manyfit.core.errors import Interrupted, RunFailed
from manyfit.core.redaction import has_secrets, without_values
from manyfit.core.signals import StopRequested, Watch
from manyfit.learn.learner import Learner, fetch
from manyfit.run.loop.clock import Pace
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.stopping import Ending
from manyfit.run.loop.validation import Row, validate


class Callback(Protocol):
    """Sees what happens to a cohort. A callback changes nothing about the result."""

    def on_start(self, cohort: Cohort) -> None:
        """Before the first step."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Row]) -> None:
        """After each pause; `rows` has the values of each run, and is empty if nothing was measured."""

    def on_end(self, cohort: Cohort) -> None:
        """After the last step, and also when training was cut short."""


def fit(
    cohort: Cohort,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    pace: Pace | None = None,
    until: int | None = None,
) -> None:
    """Train every run of a cohort from where it stands to its end, or until some step."""
    watch, pace = watch or Watch(), pace or Pace(cohort.plan)
    is_exact = cohort.learner.stands_between_batches
    end, this = cohort.plan.total if until is None else min(until, cohort.plan.total), os.getpid()
    with ExitStack() as stack:
        for member in cohort.members:
            stack.callback(member.writer.close)
        for callback in callbacks:
            callback.on_start(cohort)
            stack.callback(callback.on_end, cohort)
        if not cohort.measured:
            # Cut short while it was measured: this time it is written down.
            reach_boundary(cohort, replace(cohort.plan.at(cohort.step), checkpoint=True), callbacks, watch)
        while cohort.step < end and cohort.active:
            boundary = cohort.plan.next(cohort.step, min(pace.most, end - cohort.step))
            pace.begin()
            try:
                batches = watch.obeying(cohort.batches) if is_exact else cohort.batches
                cohort.learner.train(batches, boundary.step - cohort.step)
            except StopRequested:
                cut_short(cohort, watch)
            if os.getpid() != this:  # user code has forked; only one process may write into the folder
                os._exit(0)
            boundary = pace.pause(boundary, boundary.step - cohort.step)
            if boundary.step == end:
                boundary = replace(boundary, checkpoint=True)
            cohort.step = boundary.step
            alone = len(cohort.members) == 1  # several are written side by side
            reach_boundary(cohort, boundary, callbacks, watch, wait=alone and boundary.step == end)
        for member in cohort.members:
            member.writer.flush()
            member.settle()


def reach_boundary(
    cohort: Cohort, boundary: Boundary, callbacks: Sequence[Callback], watch: Watch, wait: bool = False
) -> None:
    """Do what is due at a boundary: measure, record, decide, keep. Leave if somebody has asked for it.

    With `wait`, what is kept is on disk before this returns: nothing is trained meanwhile.
    """
    cohort.measured = not boundary.measures
    try:
        rows = measure_rows(cohort, boundary, watch)
    except StopRequested:
        leave_early(cohort, boundary, watch)
    cohort.measured = True
    if (boundary.validate and rows) or boundary.ends_epoch:
        cohort.learner.observe(rows or [{} for _ in cohort.members])
    keep_states(cohort, boundary, rows, wait)
    for callback in callbacks:
        callback.on_boundary(cohort, boundary, rows)
    if watch.number and not boundary.last:
        leave_early(cohort, boundary, watch)


def cut_short(cohort: Cohort, watch: Watch) -> None:
    """Leave while a batch is waited for: the learner stands between two steps."""
    done = cohort.learner.step
    if not done:
        raise Interrupted(f"ended by {watch.name} before the first step, while data was read", watch.number)
    cohort.step = done
    leave_early(cohort, cohort.plan.at(done), watch)


def measure_rows(cohort: Cohort, boundary: Boundary, watch: Watch) -> list[Row]:
    """The rows of this boundary. Sums are taken last: until then a restart is exact."""
    parts: list[list[Row]] = []
    if boundary.validate:
        between = boundary.step % cohort.plan.steps_per_epoch == 0
        parts.append(
            validate(cohort.learner, cohort.validation, cohort.batch_size, cohort.whole, watch, between)
        )
    if boundary.log:
        parts.insert(0, take_metrics(cohort.learner))
    found: list[Row] = [{k: v for row in rows for k, v in row.items()} for rows in zip(*parts, strict=True)]
    for name in {name for row in found for name in row} if has_secrets() else ():
        if without_values(name) != name:
            raise RunFailed(f"a metric has the value of a secret in its name: {without_values(name)}")
    return found if any(found) else []


def take_metrics(learner: Learner) -> list[Row]:
    """What was trained since the last row, for each run."""
    means = {name: fetch(values) for name, values in learner.take().items()}
    order = sorted(means, key=lambda name: name != "train_loss")
    return [{name: float(means[name][i]) for name in order} for i in range(learner.n)]


def keep_states(cohort: Cohort, boundary: Boundary, rows: Sequence[Row], wait: bool = False) -> None:
    """Record what was measured, and keep the states that are due or among the best."""
    per_epoch, states = cohort.plan.steps_per_epoch, None
    for i, member in enumerate(cohort.members):
        member.settle()
        if member.ended is not None:
            continue
        ended = member.record(boundary, rows[i], per_epoch) if rows else None
        reason = cohort.learner.stop_reasons()[i]
        if ended is None and reason:
            ended = member.ended = Ending(reason)
        if ended is not None and ended.error is not None:
            member.writer.put_held()
            continue
        due = boundary.checkpoint or ended is not None
        if due or (rows and member.is_candidate(boundary, rows[i])):
            states = states or cohort.learner.state()
            if due:
                member.save(states[i], boundary, per_epoch, wait=wait)
            else:
                member.hold(states[i], boundary, per_epoch)


def leave_early(cohort: Cohort, boundary: Boundary, watch: Watch) -> None:
    """Write checkpoints of where the runs stand now, and say by which signal they were ended."""
    for member, state in zip(cohort.members, cohort.learner.state(), strict=True):
        if member.ended is None:
            member.save(state, boundary, cohort.plan.steps_per_epoch, cohort.measured)
        member.writer.flush()
        member.settle()
    where = ", ".join(str(member.folder.path) for member in cohort.members)
    raise Interrupted(
        f"ended by {watch.name} at step {boundary.step}; the same command goes on from there in {where}",
        watch.number,
    )
