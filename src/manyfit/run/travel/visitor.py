"""A run on a visit to a worker that does not have its folder: its log and its states stay in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyfit.config import Config
from manyfit.core.state import State
from manyfit.run.build.builder import Built
from manyfit.run.loop.cohort import Member, judge_events
from manyfit.run.loop.stopping import Judge
from manyfit.run.travel.luggage import Luggage, Parcel
from manyfit.store.checkpoint import Keep, check_state
from manyfit.store.events import RowBuffer
from manyfit.store.folder import RunFolder
from manyfit.store.manifest import Note
from manyfit.store.packed_state import PackedState


class StateCollector:
    """A writer that keeps states in memory: the newest due ones, and the best ones on the way."""

    def __init__(self, keep: Keep) -> None:
        self.forgotten: tuple[Note, PackedState] | None = None
        """The newest of the states that the keeper has."""
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
        self.forgotten = self.newest
        self._held, self._due = [], []

    @property
    def newest(self) -> tuple[Note, PackedState] | None:
        """The newest state, also if the keeper has it."""
        return next(reversed(self.states), self.forgotten)

    @property
    def states(self) -> tuple[tuple[Note, PackedState], ...]:
        """The states to return, in the order of their steps."""
        best = self._best([*self._held, *self._due])
        found = {note.step: (note, packed) for note, packed in best}
        found |= {note.step: (note, packed) for note, packed in self._due}
        return tuple(found[step] for step in sorted(found))


@dataclass
class Visitor(Member):
    """A run on a visit: its log and its states stay in memory."""

    luggage: Luggage | None = None
    measured: bytes = b""
    """What was collected from shards of validation rows, if others are left."""
    pictures: list[tuple[str, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known = copy.deepcopy(self.judge)
        """The judge of the rows that the keeper has."""

    @staticmethod
    def of(config: Config, folder: RunFolder, built: Built, luggage: Luggage) -> Visitor:
        """Return the run with what it has taken along."""
        rows = RowBuffer(luggage.note.log_length if luggage.note is not None else 0)
        return Visitor(
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

    @property
    def is_due(self) -> bool:
        """Whether a state waits that was to be written, not only held as one of the best."""
        assert isinstance(self.writer, StateCollector)
        return self.writer.is_due

    def forget_delivered(self) -> None:
        """Forget what the keeper has now: states, and the rows before the last of them."""
        assert isinstance(self.writer, StateCollector)
        assert isinstance(self.log, RowBuffer)
        count = self._count_delivered()
        for event in self.log.events[:count]:
            self._known.see(event)
        del self.log.events[:count]
        self.writer.forget()
        self.pictures.clear()

    def repack(self) -> Luggage:
        """Return what the run takes along to begin again from the last state that the keeper has."""
        assert isinstance(self.writer, StateCollector)
        assert self.luggage is not None
        luggage, newest = replace(self.luggage, judge=copy.deepcopy(self._known)), self.writer.forgotten
        if newest is None:
            return luggage
        note, state = newest
        kept = tuple(each for each in self.kept if each.step <= note.step)
        return replace(luggage, state=state, note=note, kept=kept, files={}, ended=None)

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

    def wrap(self, built: Built, facts: Mapping[str, Any], messages: str) -> Parcel:
        """Return the work of the visit. Rows after its last state are left out: they are repeated."""
        assert isinstance(self.writer, StateCollector)
        assert isinstance(self.log, RowBuffer)
        states, events = self.writer.states, self.log.events[: self._count_delivered()]
        reason = self.end_reason if self.ended is not None and self.ended.error is None else ""
        return Parcel(
            tuple(events), states, self.judge, reason, self.is_over(built), facts, messages, self.measured,
            tuple(self.pictures),
        )  # fmt: skip
