"""The n ≥ 1 runs that one loop drives together. Each has its own folder, log, checkpoints and ending."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from manyfit.config import Config
from manyfit.config.identity import normal
from manyfit.config.typed.artifacts import seal_model
from manyfit.core.png import SIGNATURE
from manyfit.core.signals import Watch
from manyfit.core.state import State
from manyfit.data import Batch, Order, Source
from manyfit.data.walk import Walk
from manyfit.learn.learner import Learner
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.loop.plan import Boundary, Plan
from manyfit.run.loop.stopping import Ending, Judge
from manyfit.store import durable
from manyfit.store.checkpoint import Keep
from manyfit.store.events import Event, EventLog, RowBuffer
from manyfit.store.folder import RunFolder
from manyfit.store.group_writer import GroupPart, GroupWriter
from manyfit.store.manifest import Note
from manyfit.store.writer import StateWriter, Writer


@dataclass
class Member:
    """One run of a cohort: its config, its folder and its measurements."""

    config: Config
    folder: RunFolder
    log: EventLog | RowBuffer
    committed: list[Event] = field(default_factory=list)
    pending: list[tuple[int, Event]] = field(default_factory=list)
    ended: Ending | None = None
    error: BaseException | None = None
    """Why it could not continue: an exception, or a request to stop it."""
    validation: Source | None = None
    batch_size: int = 1
    """Rows per validation batch."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Metrics of a whole split, which have no per-row value."""
    watch: Watch = field(default_factory=Watch)
    """Whether this run alone was asked to stop."""
    turn: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context manager entered while working for this run, for example to direct log messages to it."""
    order: Order | None = None
    """The order of its rows, from which a checkpoint takes the shards that it has visited."""

    def __post_init__(self) -> None:
        self.keep = keep_of(self.config)
        self.writer: StateWriter = self.make_writer()
        self._saved: tuple[int, bool] | None = None
        self.kept = self.read_kept()
        """The states that were handed to the writer, as far as they are kept."""
        self.last: Note | None = self.kept[-1] if self.kept else None
        """The newest state that was handed to the writer."""
        self.judge = self.make_judge()
        self._model = describe_model(self.config)

    def make_writer(self) -> StateWriter:
        """Return the writer of its checkpoints."""
        assert isinstance(self.log, EventLog)
        return Writer(self.folder.checkpoint_folder, self.keep, self.log)

    def read_kept(self) -> list[Note]:
        """Return the notes of the checkpoints that it has, the oldest first."""
        return [found.note for found in self.folder.checkpoints()]

    def make_judge(self) -> Judge:
        """Return the judge of its log, which has seen the committed rows."""
        return judge_events(self.config, self.committed)

    def keep_sample(self, name: str, step: int, data: bytes) -> None:
        """Write an image or a text to its folder."""
        write_sample(self.folder, name, step, data)

    @property
    def end_reason(self) -> str:
        """Why it has ended early; empty if it has not."""
        return self.ended.reason if self.ended is not None else ""

    @property
    def events(self) -> list[Event]:
        """All measurements, committed or not."""
        return [*self.committed, *(event for _, event in self.pending)]

    def record(self, boundary: Boundary, values: Mapping[str, float], steps_per_epoch: int) -> Ending | None:
        """Append one row to the log, and return the ending if it ends the run."""
        event = self.log.append(boundary.step, boundary.epoch, values)
        self.pending.append((self.log.length, event))
        self.ended = self.judge.see(event, steps_per_epoch)
        return self.ended

    def is_candidate(self, boundary: Boundary, values: Mapping[str, float]) -> bool:
        """Return whether this step ranks among the best of those whose states were kept."""
        now = Note(boundary.step, boundary.epoch, values, 0)
        return now in self.keep.rank([*self.kept, now])[: self.keep.top]

    def hold(self, state: State, boundary: Boundary, steps_per_epoch: int) -> None:
        """Keep a state in memory as one of the best until the next checkpoint is written."""
        note = self._note(boundary, steps_per_epoch, measured=True)
        self.kept.append(note)
        self.writer.hold(state, note)

    def save(
        self,
        state: State,
        boundary: Boundary,
        steps_per_epoch: int,
        measured: bool = True,
        wait: bool = False,
    ) -> None:
        """Hand a checkpoint to the writer; once it is on disk, the rows before it are committed."""
        if self._saved == (boundary.step, measured):
            return
        self._saved = (boundary.step, measured)
        note = self._note(boundary, steps_per_epoch, measured)
        self.kept = [*self.keep.rank(self.kept)[: self.keep.top], note]
        self.last = note
        self.writer.put(state, note, wait)

    @property
    def best(self) -> Note | None:
        """The best of the kept states, or else the last one."""
        return next(iter(self.keep.rank(self.kept)), self.last)

    def settle(self) -> None:
        """Update which rows are committed. Raises errors that occurred while writing."""
        length = self.writer.done()
        while self.pending and self.pending[0][0] <= length:
            self.committed.append(self.pending.pop(0)[1])

    def _note(self, boundary: Boundary, steps_per_epoch: int, measured: bool) -> Note:
        newest = self.pending[-1][1] if self.pending else next(reversed(self.committed), None)
        metrics = newest.values if measured and newest and newest.step == boundary.step else {}
        position = locate_batch(boundary.step, steps_per_epoch, self.order)
        return Note(
            boundary.step, boundary.epoch, dict(metrics), self.log.length, measured, position, self._model
        )


def keep_of(config: Config) -> Keep:
    """Return the rule for keeping checkpoints of a config."""
    export = config.run.export
    return Keep(export.metric, export.mode, export.keep, export.top)


def judge_events(config: Config, events: Iterable[Event]) -> Judge:
    """Return a judge that has seen these rows of a log."""
    judge = Judge(config.run.train)
    for event in events:
        judge.see(event)
    return judge


def locate_batch(step: int, steps_per_epoch: int, order: Order | None) -> dict[str, Any]:
    """Return the position of the next batch: epoch and batch, and on sharded data also the visited shards.

    `path` has the shards of the open epoch, including the current one if `within` batches of it are done;
    `visits` has those of the epochs before, by epoch, unless their order was cyclic.
    """
    epoch, batch = divmod(step, steps_per_epoch)
    position: dict[str, Any] = {"epoch": epoch, "batch": batch}
    if order is None or order.layout is None:
        return position
    path, within = list[int](), batch
    cycle = order.cycle()
    chosen = [[] if list(shards) == cycle[: len(shards)] else list(shards) for shards in order.visits[:epoch]]
    if any(chosen):
        position["visits"] = chosen
    for shard, steps in zip(order.path(epoch), order.steps_of_visits(epoch), strict=True):
        if within <= 0:
            break
        path.append(shard)
        left, within = within, within - steps
    return {**position, "path": path, "within": left if within < 0 else 0}


def write_sample(run: RunFolder, name: str, step: int, data: bytes) -> None:
    """Write an image to `images/<name>/step-<step>.png`, or a text to `texts/<name>/step-<step>.txt`."""
    is_image = data.startswith(SIGNATURE)
    folder = (run.images if is_image else run.texts) / name
    folder.mkdir(parents=True, exist_ok=True)
    durable.write_file(folder / f"step-{step:06d}{'.png' if is_image else '.txt'}", data)


def describe_model(config: Config) -> dict[str, Any]:
    """Return what is needed to rebuild the model without the config: class path, arguments, source folder.

    A trainer without a model is rebuilt itself, with its networks.
    """
    key = "model" if config.run.model is not None else "trainer"
    given = normal(config.meaning.items[key], config.classes, (key,))
    source = config.project / config.run.src_code_path
    relative = source.is_relative_to(config.project)
    described = {
        "component": given,
        "src_code_path": str(source.relative_to(config.project) if relative else source),
        **({"role": key} if key != "model" else {}),
    }
    if config.given.artifact is not None:  # from elsewhere: this machine must not vouch for it
        return described
    return seal_model(described, config.project)


@dataclass(frozen=True)
class MeasuredPart:
    """A validation over shards that is under way: what was collected from those that were visited."""

    visits: int
    """The number of shards that were visited."""
    collected: Any
    further: Sequence[SplitMetrics]

    @staticmethod
    def begin(members: Sequence[Member]) -> MeasuredPart:
        """Return the part in which nothing is measured yet."""
        return MeasuredPart(0, None, [SplitMetrics(member.whole) for member in members])

    def pack(self) -> bytes:
        """Return it as bytes, for another worker of the same study."""
        return pickle.dumps(self)

    @staticmethod
    def unpack(data: bytes) -> MeasuredPart:
        """Return what another worker has collected."""
        found: MeasuredPart = pickle.loads(data)
        return found


@dataclass
class Cohort:
    """Runs that train together, and what they share: learner, plan and data."""

    members: list[Member]
    learner: Learner
    plan: Plan
    batches: Iterator[Batch] | Walk
    step: int = 0
    measured: bool = True
    """Whether everything that is due at this step has been done."""
    is_group: bool = False
    """Whether there are several runs, or were: each may leave, fail or end without the others."""
    measuring: MeasuredPart | None = None
    """The validation that was begun elsewhere, at the current step."""
    puts_off: bool = False
    """Whether the measurement at the end of an epoch is left to others, who have the shards of its rows."""
    writer: GroupWriter | None = None
    """The writer that commits the states of all runs together, if there is one."""

    def __post_init__(self) -> None:
        self.is_group = self.is_group or len(self.members) > 1
        self._left: list[Member] = []

    @property
    def active(self) -> bool:
        """Whether any run continues."""
        return any(member.ended is None for member in self.members)

    @contextmanager
    def guard(self, member: Member) -> Iterator[None]:
        """Guard work for one run: if it fails, the other runs of a group continue."""
        try:
            with member.turn():
                yield
        except Exception as error:
            if not self.is_group:
                raise
            member.error = error

    def fail(self, errors: Mapping[int, BaseException]) -> None:
        """Record the errors of failed runs; a single run raises its error."""
        if not self.is_group:
            raise next(iter(errors.values()))
        for i, error in errors.items():
            self.members[i].error = error

    def commit(self, ends: bool = False) -> None:
        """Write what was saved for runs that are written together; with `ends`, all of them leave."""
        if self.writer is not None:
            over = [each for each in self.members if ends or each.ended is not None or each.error is not None]
            self.writer.commit(self._list_parts(over))

    def _leave(self, members: Sequence[Member]) -> None:
        if self.writer is not None:
            self.writer.leave(self._list_parts(members))

    @staticmethod
    def _list_parts(members: Sequence[Member]) -> list[GroupPart]:
        return [member.writer for member in members if isinstance(member.writer, GroupPart)]

    def end(self) -> None:
        """Flush what all runs still have to write, and end their work in a group."""
        self._leave(self.members)
        for member in self.members:
            self.close(member)

    def release(self) -> None:
        """Remove ended and failed runs from a group, after flushing what they have to write."""
        if not self.is_group:
            return
        stays = [i for i, each in enumerate(self.members) if each.ended is None and each.error is None]
        if len(stays) == len(self.members):
            return
        self._leave([member for i, member in enumerate(self.members) if i not in stays])
        for i, member in enumerate(self.members):
            if i not in stays:
                self.close(member)
                self._left.append(member)
        self.members[:] = [self.members[i] for i in stays]
        if stays:
            self.learner.keep(stays)
            assert isinstance(self.batches, Walk)
            self.batches.keep(stays)

    def take_left(self) -> list[Member]:
        """Return the runs that have left since the last call."""
        found, self._left = self._left, []
        return found

    def close(self, member: Member) -> None:
        """Flush what a run still has to write."""
        with self.guard(member):
            member.writer.flush()
            member.settle()
