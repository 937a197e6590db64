"""Training on a worker that does not have the run folder: everything is returned to the keeper.

A long visit delivers what it has trained on the way, so that little is lost with the worker.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from manyfit.config import Config
from manyfit.core.errors import UsageError
from manyfit.core.position import Position
from manyfit.core.redaction import has_secrets
from manyfit.core.signals import Watch
from manyfit.learn.fusing import GroupFailed
from manyfit.learn.group import Part
from manyfit.run.build.builder import Built
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import Cohort, MeasuredPart, Member
from manyfit.run.loop.journal import Redacting, log_only_to, translate_failures
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.stopping import Ending
from manyfit.run.loop.trainer import Callback, train_cohort
from manyfit.run.loop.validation import count_visits, measure_visit
from manyfit.run.session.fusing import launch_run
from manyfit.run.session.session import Opened, build_again, follow, read_together
from manyfit.run.travel.luggage import Luggage, Parcel
from manyfit.run.travel.visitor import Visitor
from manyfit.store import durable
from manyfit.store.checkpoint import Checkpoint, check_state
from manyfit.store.folder import RunFolder

log = logging.getLogger("manyfit")

Deliver: TypeAlias = Callable[[Parcel], None]
"""Sends what was trained so far to the keeper."""
BETWEEN: Final = 0.5
"""Seconds between deliveries: a worker that is lost loses the steps since its last one."""


class VisitFailed(Exception):
    """A visit that has ended with an error, with the part of its work that is still valid, if any."""

    def __init__(self, error: BaseException, parcel: Parcel | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.parcel = parcel


@dataclass
class Visit:
    """A run that a worker has opened."""

    visitor: Visitor
    built: Built
    facts: Mapping[str, Any]
    text: io.StringIO
    """The messages that were not delivered yet."""
    deliver: Deliver | None = None

    def wrap(self) -> Parcel:
        """Return what was not delivered yet."""
        return self.visitor.wrap(self.built, self.facts, take_text(self.text))

    def send(self) -> None:
        """Send what was trained so far to the keeper."""
        if self.deliver is not None:
            self.deliver(self.wrap())
            self.visitor.forget_delivered()


@contextmanager
def open_visit(
    config: Config,
    luggage: Luggage,
    text: io.StringIO,
    deliver: Deliver | None = None,
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
) -> Iterator[Visit]:
    """Build a run and load the state that it has taken along, if it is still the same run."""
    state = None if luggage.state is None else luggage.state.unpack()
    for name, data in luggage.files.items():
        bring_file(config.project, name, data)
    with build_again(config, luggage, state, luggage.frozen, luggage.note, allowed, shared) as made:
        config, built, facts = made
        if luggage.visits:
            check_shards(config, built)
            built = follow(built, luggage.visits)
        if state is None and has_secrets():  # fail now, not when the first checkpoint is written
            check_state(built.learner.state()[0])
        visitor = Visitor.of(config, RunFolder(luggage.path), built, luggage)
        visitor.ended = luggage.ended or read_ending(built, luggage)
        yield Visit(visitor, built, facts, text, deliver)


def train_visit(
    config: Config,
    luggage: Luggage,
    until: Position | None,
    watch: Watch,
    *,
    callbacks: Sequence[Callback] = (),
    allowed: Collection[str] = (),
    shared: SharedData | None = None,
    deliver: Deliver | None = None,
) -> Parcel:
    """Train a run from where it is until a position, or to its end; return what was not delivered before.

    Raises `VisitFailed`.
    """
    folder, text = RunFolder(luggage.path), io.StringIO()
    visit: Visit | None = None
    try:
        with (
            log_only_to(folder),
            log_messages(text),
            translate_failures(folder, "the trial"),
            open_visit(config, luggage, text, deliver, allowed, shared) as visit,
        ):
            visitor, built = visit.visitor, visit.built
            cohort, goal = join_cohort(Visiting.open(visit, luggage, until, watch), luggage, until)
            if cohort.measuring is not None:
                visitor.measured = measure_next(cohort, watch)
            if not visitor.measured:
                _train(cohort, [*callbacks, Delivery([visit])], watch, goal)
            if visitor.ended is not None and visitor.ended.error is not None:
                raise visitor.ended.error
            if visitor.is_over(built):
                built.learner.end()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise VisitFailed(error, visit.wrap() if visit is not None else None) from error
    return visit.wrap()


def _train(cohort: Cohort, callbacks: Sequence[Callback], watch: Watch, goal: int) -> None:
    """Train a run, and raise its error also if its steps are launched."""
    try:
        for _ in train_cohort(cohort, callbacks, watch, until=goal):
            pass
    except GroupFailed as error:
        raise error.__cause__ or error from None


def bring_file(project: Path, name: str, data: bytes) -> None:
    """Write a file of the project that this machine lacks, whole or not at all."""
    path = project / name
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(project.resolve()):
        raise UsageError(f"{name} leads out of the project, so the weights in it cannot be sent")
    durable.write_file(path, data)


class Delivery:
    """A callback that sends what was trained so far to the keepers, whenever a checkpoint is due."""

    def __init__(self, visits: Sequence[Visit]) -> None:
        """`visits` may change: those of a group are opened one after another."""
        self._visits = visits
        self._last = time.monotonic()

    def on_start(self, cohort: Cohort) -> None:
        """Do nothing."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Deliver, at a limited rate, the states that are due."""
        if boundary.last or time.monotonic() - self._last < BETWEEN:
            return
        here = {id(member) for member in cohort.members if member.ended is None and member.error is None}
        for visit in self._visits:
            if id(visit.visitor) in here and visit.visitor.is_due:
                visit.send()
                self._last = time.monotonic()

    def on_end(self, cohort: Cohort) -> None:
        """Do nothing: the rest is returned."""


def take_text(text: io.StringIO) -> str:
    """Return the messages since the last call."""
    found = text.getvalue()
    text.seek(0)
    text.truncate()
    return found


def read_ending(built: Built, luggage: Luggage) -> Ending | None:
    """Return why a run that is resumed has nothing left to train, if its learner says so."""
    reason = built.learner.stop_reasons()[0] if luggage.note is not None else ""
    return Ending(reason) if reason else None


def check_shards(config: Config, built: Built) -> None:
    """Raise an error for a run that cannot hop."""
    if built.order.layout is None:
        raise UsageError(f"{config.run.data.origin}: data: a run hops over shards, but its data has none")
    if built.learner.grain > 1:
        raise UsageError(
            f"the model trains {built.learner.grain} steps at once, which a visit to a shard would cut"
        )


@dataclass(frozen=True)
class Visiting(Opened):
    """An open run whose folder is elsewhere."""

    visitor: Visitor = field(kw_only=True)

    @staticmethod
    def open(
        visit: Visit, luggage: Luggage, until: Position | None, watch: Watch, part: Part | None = None
    ) -> Visiting:
        """Return the run of a visit, which reads nothing beyond its goal."""
        visitor, built = visit.visitor, visit.built
        if until is not None:
            built = replace(built, order=replace(built.order, until=goal_of(built, until)))
        last = None
        if luggage.note is not None and luggage.state is not None:
            last = Checkpoint(luggage.path, luggage.note, luggage.state.values, {})
        return Visiting(
            visitor.config, RunFolder(luggage.path), built, last, visit.facts, watch, part, luggage.puts_off,
            visitor=visitor,
        )  # fmt: skip

    @property
    def ending(self) -> Ending | None:
        """Why the run has stopped early, if it has."""
        return self.visitor.ended

    def join(self, stack: ExitStack) -> Member:
        """Return the run as a member of a cohort."""
        return self.visitor


def join_cohort(here: Visiting, luggage: Luggage, until: Position | None) -> tuple[Cohort, int]:
    """Return the run as a cohort, whose steps are launched together if possible, and the step of its goal."""
    visitor, built = here.visitor, here.built
    measuring, launched = None, None
    if luggage.measures_at is None:
        launched = launch_run(here)
    else:
        measuring = (
            MeasuredPart.unpack(luggage.measured) if luggage.measured else MeasuredPart.begin([visitor])
        )
    cohort = Cohort(
        [visitor], launched or built.learner, built.plan, read_together([here], launched is not None),
        here.step, luggage.note is None or luggage.note.measured,
        measuring=measuring, puts_off=luggage.puts_off and luggage.measures_at is None,
    )  # fmt: skip
    return cohort, built.plan.total if until is None else goal_of(built, until)


def measure_next(cohort: Cohort, watch: Watch) -> bytes:
    """Measure the next shard of the validation rows, unless it is the last; return what was collected."""
    part = cohort.measuring
    assert part is not None
    if part.visits + 1 >= count_visits(cohort):
        return b""  # the training loop measures the last one, and completes the row of the log
    return measure_visit(cohort, part, watch).pack()


def goal_of(built: Built, until: Position) -> int:
    """Return the step of a position. The last visits of an epoch may measure, and train no step."""
    if built.row_order.layout is None:
        return until.in_steps(built.plan.steps_per_epoch)
    visits = built.row_order.steps_of_visits(until.epoch)
    visits += [0] * max(0, until.visit - len(visits))
    return until.in_steps(built.plan.steps_per_epoch, visits)


@contextmanager
def log_messages(text: io.StringIO) -> Iterator[None]:
    """Collect the messages of a run, which its keeper writes to `run.log`."""
    handler = logging.StreamHandler(text)
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(message)s"))
    before = log.level
    log.addHandler(handler)
    if not before or before > logging.INFO:
        log.setLevel(logging.INFO)  # slow, as it clears the caches of all loggers; hence the condition
    try:
        yield
    finally:
        log.removeHandler(handler)
        if log.level != before:
            log.setLevel(before)
