"""The training loop of a cohort. Everything optional is a callback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from manyfit.core.errors import Interrupted, RunFailed
from manyfit.core.redaction import has_secrets, without_values
from manyfit.core.signals import StopRequested, Watch
from manyfit.learn.learner import MembersFailed
from manyfit.learn.metrics_by_run import split_by_run
from manyfit.run.loop.clock import Pace
from manyfit.run.loop.cohort import Cohort, Member
from manyfit.run.loop.pictures import keep_pictures
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.stopping import Ending
from manyfit.run.loop.validation import Row, validate


class Callback(Protocol):
    """An observer of a cohort. Callbacks do not affect the result."""

    def on_start(self, cohort: Cohort) -> None:
        """Called before the first step."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Row]) -> None:
        """Called at each pause; `rows` has the values of each run, and is empty if nothing was measured."""

    def on_end(self, cohort: Cohort) -> None:
        """Called after the last step, and also if training was interrupted."""


def fit(
    cohort: Cohort,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    pace: Pace | None = None,
    until: int | None = None,
) -> None:
    """Train every run of a cohort from its current step to its end, or until step `until`."""
    for _ in train_cohort(cohort, callbacks, watch, pace, until):
        pass


def train_cohort(
    cohort: Cohort,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    pace: Pace | None = None,
    until: int | None = None,
) -> Iterator[Member | None]:
    """Train as `fit` does, and yield each run of a group as soon as it has left the cohort.

    Yield None after the steps before a pause: a GPU may still compute them while others launch theirs.
    """
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
            # The run was interrupted while measuring: this time, the measurement is written.
            reach_boundary(cohort, replace(cohort.plan.at(cohort.step), checkpoint=True), callbacks, watch)
            yield from cohort.take_left()
        while cohort.step < end and cohort.active:
            boundary = cohort.plan.next(cohort.step, min(pace.most, end - cohort.step))
            pace.begin()
            train_to(cohort, boundary, watch, is_exact)
            if os.getpid() != this:  # user code has forked; only one process may write to the folder
                os._exit(0)
            yield None
            boundary = pace.pause(boundary, boundary.step - cohort.step)
            if boundary.step == end:
                boundary = replace(boundary, checkpoint=True)
            cohort.step = boundary.step
            cohort.release()
            ends = boundary.step == end
            reach_boundary(cohort, boundary, callbacks, watch, ends)
            yield from cohort.take_left()
        cohort.end()


def train_to(cohort: Cohort, boundary: Boundary, watch: Watch, is_exact: bool) -> None:
    """Train to the next boundary; runs of a group that fail are noted."""
    try:
        batches: Any = cohort.batches
        batches = watch.obeying(batches) if is_exact else batches
        cohort.learner.train(batches, boundary.step - cohort.step)
    except StopRequested:
        cut_short(cohort, watch)
    except MembersFailed as failed:
        cohort.fail(failed.errors)  # the other runs have trained these steps


def reach_boundary(
    cohort: Cohort, boundary: Boundary, callbacks: Sequence[Callback], watch: Watch, ends: bool = False
) -> None:
    """Do what is due at a boundary: measure, record, decide, save. Leave early if a stop was requested.

    `ends` tells that there is nothing to train after it.
    """
    cohort.measured = not boundary.measures
    if cohort.puts_off and boundary.validate and boundary.ends_epoch:
        put_off(cohort, boundary)
        return
    try:
        rows = measure_rows(cohort, boundary, watch)
    except StopRequested:
        leave_early(cohort, boundary, watch)
    except MembersFailed as failed:
        cohort.fail(failed.errors)
        cohort.release()
        reach_boundary(cohort, boundary, callbacks, watch, ends)  # no metrics were taken yet
        return
    cohort.measured = True
    if not cohort.members:
        return
    try:
        if (boundary.validate and rows) or boundary.ends_epoch:
            cohort.learner.observe(rows or [{} for _ in cohort.members])
    except MembersFailed as failed:
        cohort.fail(failed.errors)
    rows = add_logged(cohort, rows)
    keep_pictures(cohort, boundary)
    keep_states(cohort, boundary, rows, ends)
    for callback in callbacks:
        callback.on_boundary(cohort, boundary, rows)
    if watch.number and not boundary.last:
        leave_early(cohort, boundary, watch)
    dismiss(cohort, boundary)
    cohort.release()


def put_off(cohort: Cohort, boundary: Boundary) -> None:
    """Save the state of each run before its measurement, which is made elsewhere."""
    for member, state in zip(cohort.members, current_states(cohort), strict=True):
        member.save(state, boundary, cohort.plan.steps_per_epoch, measured=False)
    cohort.commit()


def cut_short(cohort: Cohort, watch: Watch) -> None:
    """Leave while waiting for a batch: the learner is between two steps."""
    done = cohort.learner.step
    if not done:
        raise Interrupted(f"ended by {watch.name} before the first step, while reading data", watch.number)
    cohort.step = done
    leave_early(cohort, cohort.plan.at(done), watch)


def measure_rows(cohort: Cohort, boundary: Boundary, watch: Watch) -> list[Row]:
    """Return the rows of this boundary. Training sums are taken last: until then, a restart is exact."""
    if not cohort.members:
        return []
    parts: list[list[Row]] = []
    if boundary.validate:
        between = boundary.step % cohort.plan.steps_per_epoch == 0
        parts.append(validate(cohort, watch, between))
    if boundary.log:
        parts.insert(0, take_metrics(cohort))
    found: list[Row] = [{k: v for row in rows for k, v in row.items()} for rows in zip(*parts, strict=True)]
    check_no_secrets(found)
    return found if any(found) else []


def add_logged(cohort: Cohort, rows: list[Row]) -> list[Row]:
    """Return the rows with what hooks have logged after the measurement."""
    logged = cohort.learner.take_logged()
    if not any(logged):
        return rows
    check_no_secrets(logged)
    return [{**row, **more} for row, more in zip(rows or [{} for _ in logged], logged, strict=True)]


def check_no_secrets(rows: Sequence[Row]) -> None:
    """Raise an error if the name of a metric contains a secret."""
    for name in {name for row in rows for name in row} if has_secrets() else ():
        if without_values(name) != name:
            raise RunFailed(f"a metric has the value of a secret in its name: {without_values(name)}")


def take_metrics(cohort: Cohort) -> list[Row]:
    """Return the metrics of each run since its last row; a run that fails here has none."""
    try:
        found = split_by_run(cohort.learner.take(), cohort.learner.n)
    except MembersFailed as failed:
        cohort.fail(failed.errors)
        found = [{} if metrics is None else split_by_run(metrics, 1)[0] for metrics in failed.found]
    return [dict(sorted(row.items(), key=lambda item: item[0] != "train_loss")) for row in found]


def keep_states(cohort: Cohort, boundary: Boundary, rows: Sequence[Row], ends: bool = False) -> None:
    """Record what was measured, and save the states that are due or among the best.

    If training `ends`, a single run waits for its last checkpoint; those of several are written side by side.
    """
    per_epoch, kept, reasons = cohort.plan.steps_per_epoch, dict[int, bool](), stop_reasons(cohort)
    for i, member in enumerate(cohort.members):
        with cohort.guard(member):
            due = record(cohort, i, boundary, (rows[i] or None) if rows else None, reasons[i])
            if due is not None:
                kept[i] = due
    states = current_states(cohort) if kept else []
    for i, due in kept.items():
        member = cohort.members[i]
        if member.error is not None:
            continue
        with cohort.guard(member):
            if due:
                member.save(states[i], boundary, per_epoch, wait=ends and not cohort.is_group)
            else:
                member.hold(states[i], boundary, per_epoch)
    cohort.commit(ends)


def stop_reasons(cohort: Cohort) -> Sequence[str]:
    """Return the reason to stop each run early; empty to continue."""
    try:
        return cohort.learner.stop_reasons()
    except MembersFailed as failed:
        cohort.fail(failed.errors)
        return [reason or "" for reason in failed.found]


def record(cohort: Cohort, number: int, boundary: Boundary, row: Row | None, reason: str) -> bool | None:
    """Record the measurements of a run. Return whether its state is due to be written.

    False means that the state is one of the best so far and is kept in memory, None that it is not needed.
    """
    member = cohort.members[number]
    member.settle()
    if member.ended is not None or member.error is not None:
        return None
    ended = member.record(boundary, row, cohort.plan.steps_per_epoch) if row is not None else None
    if ended is None and reason:
        ended = member.ended = Ending(reason)
    if ended is not None and ended.error is not None:
        member.writer.put_held()
        return None
    if boundary.checkpoint or ended is not None:
        return True
    return False if row is not None and member.is_candidate(boundary, row) else None


def current_states(cohort: Cohort) -> Sequence[Any]:
    """Return the state of each run; runs whose state cannot be read are marked as failed."""
    try:
        return cohort.learner.state()
    except MembersFailed as failed:
        cohort.fail(failed.errors)
        return failed.found


def dismiss(cohort: Cohort, boundary: Boundary) -> None:
    """Interrupt the runs of a group that were individually asked to stop, after writing checkpoints."""
    asked = [i for i, member in enumerate(cohort.members) if member.error is None and member.watch.number]
    if not cohort.is_group or not asked or boundary.last:
        return
    states = current_states(cohort)
    for member, state in ((cohort.members[i], states[i]) for i in asked):
        if member.ended is None and member.error is None:
            with cohort.guard(member):
                member.save(state, boundary, cohort.plan.steps_per_epoch, cohort.measured)
                member.error = interruption(member.watch, boundary, [member])
    cohort.commit()


def leave_early(cohort: Cohort, boundary: Boundary, watch: Watch) -> None:
    """Write checkpoints of all runs at the current step, and raise `Interrupted`."""
    for member, state in zip(cohort.members, current_states(cohort), strict=True):
        if member.ended is None and member.error is None:
            with cohort.guard(member):
                member.save(state, boundary, cohort.plan.steps_per_epoch, cohort.measured)
    cohort.commit()
    for member in cohort.members:
        cohort.close(member)
    raise interruption(watch, boundary, cohort.members)


def interruption(watch: Watch, boundary: Boundary, members: Sequence[Member]) -> Interrupted:
    """Return the error that names the signal that ended runs, and how to resume them."""
    where = ", ".join(str(member.folder.path) for member in members)
    return Interrupted(
        f"ended by {watch.name} at step {boundary.step}; run the same command again to resume in {where}",
        watch.number,
    )
