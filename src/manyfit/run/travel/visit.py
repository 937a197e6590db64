"""Training on a worker that does not have the run folder: everything is returned to the keeper.

A long visit delivers what it has trained on the way, so that little is lost with the worker.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from manyfit.config import Config
from manyfit.core.errors import UsageError
from manyfit.core.position import Position
from manyfit.core.redaction import has_secrets
from manyfit.core.signals import Watch
from manyfit.core.state import State
from manyfit.run.build.builder import Built
from manyfit.run.build.shared_data import SharedData
from manyfit.run.loop.cohort import Cohort, MeasuredPart, Member, judge_events
from manyfit.run.loop.journal import Redacting, log_only_to, translate_failures
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.stopping import Ending, Judge
from manyfit.run.loop.trainer import Callback, train_cohort
from manyfit.run.loop.validation import count_visits, measure_visit
from manyfit.run.session.session import build_again, follow
from manyfit.run.travel.luggage import Luggage, Parcel
from manyfit.store import durable
from manyfit.store.checkpoint import Keep, check_state
from manyfit.store.events import RowBuffer
from manyfit.store.folder import RunFolder
from manyfit.store.manifest import Note
from manyfit.store.packed_state import PackedState

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
    visitor: _Visitor | None = None
    built: Built | None = None
    facts: dict[str, Any] = {}
    try:
        with log_only_to(folder), log_messages(text), translate_failures(folder, "the trial"):
            state = None if luggage.state is None else luggage.state.unpack()
            note = luggage.note
            for name, data in luggage.files.items():
                bring_file(config.project, name, data)
            with build_again(config, luggage, state, luggage.frozen, note, allowed, shared) as made:
                config, built, facts = made
                if luggage.visits:
                    check_shards(config, built)
                    built = follow(built, luggage.visits)
                if state is None and has_secrets():  # fail now, not when the first checkpoint is written
                    check_state(built.learner.state()[0])
                visitor = _Visitor.of(config, folder, built, luggage)
                visitor.ended = luggage.ended or read_ending(built, luggage)
                cohort, goal = join_cohort(visitor, built, luggage, until)
                if cohort.measuring is not None:
                    visitor.measured = measure_next(cohort, watch)
                if not visitor.measured:
                    send = Delivery(visitor, built, facts, text, deliver)
                    for _ in train_cohort(cohort, [*callbacks, send], watch, until=goal):
                        pass
                if visitor.ended is not None and visitor.ended.error is not None:
                    raise visitor.ended.error
                if visitor.is_over(built):
                    built.learner.end()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        parcel = None if visitor is None or built is None else visitor.wrap(built, facts, take_text(text))
        raise VisitFailed(error, parcel) from error
    return visitor.wrap(built, facts, take_text(text))


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
    """A callback that sends what was trained so far to the keeper, whenever a checkpoint is due."""

    def __init__(
        self, run: _Visitor, built: Built, facts: dict[str, Any], text: io.StringIO, deliver: Deliver | None
    ) -> None:
        self._run = run
        self._built = built
        self._facts = facts
        self._text = text
        self._deliver = deliver
        self._last = time.monotonic()

    def on_start(self, cohort: Cohort) -> None:
        """Do nothing."""

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Deliver, at a limited rate, a state that is due."""
        writer, now = self._run.writer, time.monotonic()
        assert isinstance(writer, StateCollector)
        is_due = writer.is_due and self._run.ended is None and not boundary.last
        if self._deliver is not None and is_due and now - self._last >= BETWEEN:
            self._deliver(self._run.wrap(self._built, self._facts, take_text(self._text)))
            self._run.forget_delivered()
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


def join_cohort(
    visitor: _Visitor, built: Built, luggage: Luggage, until: Position | None
) -> tuple[Cohort, int]:
    """Return the run as a cohort that reads nothing beyond its goal, and the step of this goal."""
    note = luggage.note
    step, is_measured = (0, True) if note is None else (note.step, note.measured)
    goal = built.plan.total if until is None else goal_of(built, until)
    order = built.order if until is None else replace(built.order, until=goal)
    batches = built.train.batches(order, step)
    measuring = None
    if luggage.measures_at is not None:
        measuring = (
            MeasuredPart.unpack(luggage.measured) if luggage.measured else MeasuredPart.begin([visitor])
        )
    cohort = Cohort(
        [visitor], built.learner, built.plan, batches, step, is_measured,
        measuring=measuring, puts_off=luggage.puts_off and luggage.measures_at is None,
    )  # fmt: skip
    return cohort, goal


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


class StateCollector:
    """A writer that keeps states in memory: the newest due ones, and the best ones on the way."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._held: list[tuple[Note, PackedState]] = []
        self._due: list[tuple[Note, PackedState]] = []

    def hold(self, state: State, note: Note) -> None:
        """Keep a state as one of the best."""
        check_state(state)
        self._held = self._best([*self._held, (note, PackedState.pack(state))])

    def _best(self, states: Sequence[tuple[Note, PackedState]]) -> list[tuple[Note, PackedState]]:
        best = self._keep.rank(note for note, _ in states)[: self._keep.top]
        return [each for each in states if each[0] in best]

    def put(self, state: State, note: Note, wait: bool = False) -> None:
        """Keep a state as the newest one; those before that would not be kept on disk are dropped."""
        known = [packed for held, packed in self._held if held == note]
        check_state(state)
        due = [each for each in self._due if each[0].step != note.step]
        due.append((note, known[0] if known else PackedState.pack(state)))
        self._due = due[-self._keep.last :]
        self._held = self._best([*self._held, *due[: -self._keep.last]])

    def put_held(self) -> None:
        """Do nothing: all states are returned at the end."""

    def done(self) -> int:
        """Return that nothing is committed yet."""
        return 0

    def flush(self) -> None:
        """Do nothing: all states are returned at the end."""

    def close(self) -> None:
        """Do nothing: all states are returned at the end."""

    @property
    def is_due(self) -> bool:
        """Whether a state waits that was to be written, not only held as one of the best."""
        return bool(self._due)

    def forget(self) -> None:
        """Forget all states: the keeper has them."""
        self._held, self._due = [], []

    @property
    def states(self) -> tuple[tuple[Note, PackedState], ...]:
        """The states to return, in the order of their steps."""
        best = self._best([*self._held, *self._due])
        found = {note.step: (note, packed) for note, packed in best}
        found |= {note.step: (note, packed) for note, packed in self._due}
        return tuple(found[step] for step in sorted(found))


@dataclass
class _Visitor(Member):
    """A run on a visit: its log and its states stay in memory."""

    luggage: Luggage | None = None
    measured: bytes = b""
    """What was collected from shards of validation rows, if others are left."""
    pictures: list[tuple[str, int, bytes]] = field(default_factory=list)

    @staticmethod
    def of(config: Config, folder: RunFolder, built: Built, luggage: Luggage) -> _Visitor:
        """Return the run with what it has taken along."""
        rows = RowBuffer(luggage.note.log_length if luggage.note is not None else 0)
        return _Visitor(
            config, folder, rows, validation=built.validation, batch_size=built.evaluation_batch_size,
            whole=built.whole, order=built.row_order, luggage=luggage,
        )  # fmt: skip

    def make_writer(self) -> StateCollector:
        """Return the writer that keeps states in memory."""
        return StateCollector(self.keep)

    def read_kept(self) -> list[Note]:
        """Return the checkpoints that the keeper has."""
        return list(self.luggage.kept) if self.luggage is not None else []

    def make_judge(self) -> Judge:
        """Return the judge that has seen the log so far."""
        known = self.luggage.judge if self.luggage is not None else None
        return known or judge_events(self.config, ())

    def keep_sample(self, name: str, step: int, data: bytes) -> None:
        """Keep an image or a text in memory."""
        self.pictures.append((name, step, data))

    def is_over(self, built: Built) -> bool:
        """Return whether nothing is left to train."""
        done = self.last is not None and self.last.step >= built.plan.total and self.last.measured
        return bool(self.end_reason) or done

    def forget_delivered(self) -> None:
        """Forget what the keeper has now: states, and the rows before the last of them."""
        assert isinstance(self.writer, StateCollector)
        assert isinstance(self.log, RowBuffer)
        del self.log.events[: self._count_delivered()]
        self.writer.forget()
        self.pictures.clear()

    def _count_delivered(self) -> int:
        """Return how many rows are before the last state: later ones are repeated if the worker is lost."""
        assert isinstance(self.writer, StateCollector)
        assert isinstance(self.log, RowBuffer)
        states, rows = self.writer.states, self.log.events
        end = states[-1][0].log_length if states else 0
        sizes = [len(event.line().encode()) for event in rows]
        length, count = self.log.length - sum(sizes), 0
        for size in sizes:
            length += size
            count += length <= end
        return count

    def wrap(self, built: Built, facts: dict[str, Any], messages: str) -> Parcel:
        """Return the work of the visit. Rows after its last state are left out: they are repeated."""
        assert isinstance(self.writer, StateCollector)
        assert isinstance(self.log, RowBuffer)
        states, events = self.writer.states, self.log.events[: self._count_delivered()]
        reason = self.end_reason if self.ended is not None and self.ended.error is None else ""
        return Parcel(
            tuple(events), states, self.judge, reason, self.is_over(built), facts, messages, self.measured,
            tuple(self.pictures),
        )  # fmt: skip
