"""The keeper of a run: it alone owns the folder, the log and the checkpoints while workers train the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from manyfit.config import Config, patch
from manyfit.config.identity import Snapshot
from manyfit.core.errors import RunFailed
from manyfit.core.files import check_file
from manyfit.core.redaction import redact
from manyfit.run.loop.cohort import describe_model, judge_events, keep_of, write_sample
from manyfit.run.loop.stopping import Ending, ending
from manyfit.run.session import resume_check
from manyfit.run.session.finish import write_summary
from manyfit.run.session.session import Reached, record_config, resumable
from manyfit.run.travel.luggage import Luggage, Parcel
from manyfit.store import durable, provenance
from manyfit.store.events import EventLog, read_events
from manyfit.store.folder import RunFolder
from manyfit.store.lock import hold_lock
from manyfit.store.manifest import Note
from manyfit.store.packed_state import PackedState
from manyfit.store.writer import Writer


@dataclass(frozen=True)
class Start:
    """What a keeper records in the folder when the run begins."""

    study: str
    """Where versions and code are recorded."""
    given: str
    """The text of `config.yaml`."""
    allowed: Collection[str] = ()
    """Changes of the run that were allowed by name."""


@dataclass(frozen=True)
class _Past:
    """What the folder of a run says about its last start; empty for a new one."""

    frozen: Mapping[str, Any] = field(default_factory=dict)
    trained: Snapshot | None = None
    starts: Sequence[Mapping[str, Any]] = ()


class Keeper:
    """The owner of one run folder.

    The newest state is in memory, from where it travels to the next worker; it is also written to disk in the
    background. After a crash, the run resumes from the last state on disk.
    """

    def __init__(self, config: Config, run: RunFolder, start: Start) -> None:
        self.run = run
        self._start = start
        self._stack = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(hold_lock(run.path))
            run.check_links()
            durable.tidy(run.path)
            found = resumable(run, keep_of(config))
            if found is not None:
                config = patch(config, frozen=run.load_frozen())
                resume_check.check_config(config, run, start.allowed)
            self.config = config
            self.note: Note | None = found[0].note if found is not None else None
            self._state = PackedState.pack(found[1]) if found is not None else None
            length = self.note.log_length if self.note is not None else 0
            self._log = stack.enter_context(EventLog(run.metrics, length))
            self._keep = keep_of(config)
            self._writer = Writer(run.checkpoint_folder, self._keep, self._log)
            stack.callback(self._writer.close)
            self._stack = stack.pop_all()
        self.events = read_events(run.metrics, length)
        self._kept = [each.note for each in run.checkpoints()]
        self._judge = judge_events(config, self.events)
        self._model = describe_model(config)
        self._ended = self._read_ending()
        self._is_begun = False
        self._has_failed = run.failure_file.exists()
        self._past: _Past | None = _Past() if self.note is None else None
        """None until it is needed: most runs that are trained by one unit never need it."""

    def _read_ending(self) -> Ending | None:
        """Return why nothing is left to train, according to the log."""
        if self.note is None or not self.note.epoch:
            return None
        return ending(self.config.run.train, self.events, round(self.note.step / self.note.epoch))

    def _read_past(self) -> _Past:
        if self._past is None:
            run = self.run
            self._past = _Past(run.load_frozen(), run.snapshot(), run.sessions()[-1:])
        return self._past

    @property
    def step(self) -> int:
        """Steps that were trained, on disk or not."""
        return self.note.step if self.note is not None else 0

    @property
    def epoch(self) -> float:
        """Epochs that were trained, on disk or not."""
        return self.note.epoch if self.note is not None else 0.0

    @property
    def size(self) -> int:
        """The memory that the newest state occupies, in bytes."""
        return self._state.size if self._state is not None else 0

    def pack(self, visits: tuple[tuple[int, ...], ...] = (), puts_off: bool = False) -> Luggage:
        """Return what the run takes along to its next worker.

        `visits` has the shards that each epoch visits first; with `puts_off`, the worker leaves the
        validation at the end of an epoch to other visits.
        """
        self._writer.check()
        past = self._read_past()
        return Luggage(
            self.run.path, self._state, self.note, tuple(self._kept), self._judge, self._ended,
            self._read_weights(), past.frozen, past.trained, past.starts, visits, puts_off=puts_off,
        )  # fmt: skip

    def _read_weights(self) -> dict[str, bytes]:
        """Return the weights that a new run starts from, if they are files of the project."""
        wanted = self.config.run.train.warm_start
        project = self.config.project.resolve()
        if wanted is None or self.note is not None:
            return {}
        path = (project / wanted.path).resolve()
        if not path.is_relative_to(project):
            return {}  # workers must see it at the same place; they say so if they do not
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        return {str(file.relative_to(project)): file.read_bytes() for file in files}

    def take(self, parcel: Parcel, is_whole: bool = True) -> Reached:
        """Take over the work of a visit, or what was delivered on the way.

        `is_whole` is False if the visit goes on, or was ended by an error or a signal.
        """
        self._writer.check()
        before = self.step
        if self._has_failed and is_whole:
            self.run.failure_file.unlink(missing_ok=True)
            self._has_failed = False
        if not self._is_begun:
            self._begin(parcel.facts)
        if parcel.messages:
            self._append_messages(parcel.messages)
        for name, step, data in parcel.pictures:
            write_sample(self.run, name, step, data)
        if parcel.states:
            self._ended = None
            self._log.extend(parcel.events)
            self.events += parcel.events
            self._take_states(parcel)
            self._judge = parcel.judge if is_whole else judge_events(self.config, self.events)
        over = parcel.is_over and is_whole
        if over:
            self._conclude(parcel.reason)
        return Reached(self.step, self.epoch, self.step - before, over, parcel.reason, self.events)

    def _take_states(self, parcel: Parcel) -> None:
        # A worker cannot vouch for the model: this machine does, which has trained it.
        states = [(replace(note, model=self._model), packed) for note, packed in parcel.states]
        notes = [note for note, _ in states]
        if notes[-1].log_length != self._log.length:
            raise RunFailed(f"the log of {self.run.path} does not match the state that a worker returned")
        self._kept = self._keep.select([*self._kept, *notes])
        self.note, self._state = states[-1]
        self._writer.put_behind([(packed.unpack(), note) for note, packed in states])

    def _begin(self, facts: Mapping[str, Any]) -> None:
        """Record the start in the folder, before the first state is committed."""
        if facts:
            session = provenance.brief_session(self._start.study, facts)
            record_config(self.config, self.run, session, self._start.given)
            self._is_begun, self._past = True, None

    def append_output(self, text: str) -> None:
        """Append the output of the run's code to `output.log`."""
        self._append_messages(redact(text), "output.log")

    def _append_messages(self, text: str, name: str = "run.log") -> None:
        path = self.run.path / name
        check_file(path)
        durable.make_own(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    def _conclude(self, reason: str) -> None:
        """Write the summary of a run that has nothing left to train, once its last state is on disk."""
        self.flush()
        assert self.note is not None
        best = next(iter(self._keep.rank(self._kept)), self.note)
        write_summary(self.config, self.run, best, self.note, reason, {})

    def fail(self, kind: str, message: str, messages: str = "") -> None:
        """Record why the run cannot continue."""
        if messages:
            self._append_messages(messages)
        self._has_failed = True
        self.run.write_failure(kind, redact(message), self.step)

    def flush(self) -> None:
        """Wait until everything that was taken over is on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write everything, and give the folder back."""
        try:
            self._writer.flush()
        finally:
            self._stack.close()

    @staticmethod
    def read_note(run: RunFolder) -> Note | None:
        """Return the position of the newest checkpoint in a folder that nobody owns."""
        found = run.checkpoints()
        return found[-1].note if found else None
