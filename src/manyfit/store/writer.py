"""Writing of checkpoints in the background, one at a time. Training only waits for a copy in memory."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from manyfit.core.errors import RunFailed, classify_error
from manyfit.core.state import State
from manyfit.store import checkpoint
from manyfit.store.buffers import Buffers, separate
from manyfit.store.checkpoint import Keep
from manyfit.store.events import EventLog
from manyfit.store.manifest import Note

log = logging.getLogger("manyfit")

MOST_DUE: Final = 2
"""Number of due states that may wait to be written, each a copy of the model and its optimizer."""


def fail_to_write(folder: Path, error: BaseException) -> RunFailed:
    """Return the error of a run whose checkpoint could not be written."""
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    failed = RunFailed(
        f"a checkpoint could not be written to {folder}: {reason}; "
        "earlier checkpoints are intact, and the same command resumes from them"
    )
    failed.kind = classify_error(error)
    return failed


class StateWriter(Protocol):
    """What training needs of a writer of states."""

    def hold(self, state: State, note: Note) -> None:
        """Hold a state in memory, because it may be one of the best."""
        ...

    def put(self, state: State, note: Note, wait: bool = False) -> None:
        """Write a state; with `wait`, before this returns."""
        ...

    def put_held(self) -> None:
        """Write all held states: no more will follow."""
        ...

    def done(self) -> int:
        """Return the committed length of the log."""
        ...

    def flush(self) -> None:
        """Wait until all states that were put are written."""
        ...

    def close(self) -> None:
        """End after all states that were put are written."""
        ...


class Writer:
    """A background thread that writes states as checkpoints.

    A state is either due, and written as soon as possible; or held in memory until the next due state,
    because it is one of the best so far. Waiting states that would not be kept are dropped, so the final
    checkpoints do not depend on the speed of the disk. If states arrive faster than they are written, the
    caller waits.
    """

    def __init__(self, folder: Path, keep: Keep, log: EventLog) -> None:
        """`log` is flushed to disk before a checkpoint that refers to it is committed."""
        self._folder = folder
        self._keep = keep
        self._log = log
        self._buffers = Buffers()
        self._waiting: list[_Waiting] = []
        self._until = -1
        self._busy = False
        self._done = 0
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def hold(self, state: State, note: Note) -> None:
        """Hold a state in memory, because it may be one of the best."""
        with self._changed:
            self._waiting.append(_Waiting(self._buffers.copy(state), note))
            self._drop()

    def put(self, state: State, note: Note, wait: bool = False) -> None:
        """Write a state, and all held ones, as soon as possible; with `wait`, before this returns."""
        self.check()
        here = wait and self._thread is None  # a thread would only add overhead
        if not here:
            self._make_room()
        if not any(waiting.note == note for waiting in self._waiting):
            if here:
                self._waiting.append(_Waiting(separate(state), note, is_lent=False))
            else:
                self.hold(state, note)
        with self._changed:
            self._until = note.step
            next(waiting for waiting in self._waiting if waiting.note == note).is_due = True
            self._drop()
            if not here:
                self._start()
        if here:
            while (found := self._next()) is not None:
                self._waiting.remove(found)
                try:
                    self._write(found)
                except Exception as error:
                    self._error = error
                    break
        if wait:
            self.flush()

    def put_behind(self, states: Sequence[tuple[State, Note]]) -> None:
        """Write states that nobody will change, without ever waiting for the disk.

        While the disk is slow, only those that would be kept are written.
        """
        self.check()
        with self._changed:
            for state, note in states:
                waiting = _Waiting(state, note, is_lent=False)
                waiting.is_due = True
                self._waiting.append(waiting)
                self._until = max(self._until, note.step)
            self._drop()
            self._start()

    def _make_room(self) -> None:
        """Wait until another due state fits into memory."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self._due()) < MOST_DUE)
        self.check()

    def _due(self) -> list[_Waiting]:
        return [waiting for waiting in self._waiting if waiting.is_due]

    def put_held(self) -> None:
        """Write all held states: no more will follow."""
        with self._changed:
            self._until = max((waiting.note.step for waiting in self._waiting), default=self._until)
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            # The thread logs in the context of the run that starts it.
            work = contextvars.copy_context().run
            self._thread = threading.Thread(
                target=work, args=(self._work,), name="manyfit-writer", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def done(self) -> int:
        """Return the committed length of the log. Raise the error of the thread, if any."""
        self.check()
        return self._done

    def flush(self) -> None:
        """Wait until all states that were put are on disk."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not (self._busy or self._next()))
        self.check()

    def close(self) -> None:
        """End the thread after it has written all states that were put."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error of the thread, if any."""
        if self._error is not None:
            raise fail_to_write(self._folder, self._error) from self._error

    def _next(self) -> _Waiting | None:
        return next((waiting for waiting in self._waiting if waiting.note.step <= self._until), None)

    def _drop(self) -> None:
        """Drop waiting states that would be removed at once."""
        notes = [waiting.note for waiting in self._waiting]
        kept = {note.step for note in self._keep.rank(notes)[: self._keep.top]}
        kept |= {waiting.note.step for waiting in self._due()[-self._keep.last :]}
        if notes:
            kept.add(notes[-1].step)
        for waiting in [waiting for waiting in self._waiting if waiting.note.step not in kept]:
            self._waiting.remove(waiting)
            self._give_back(waiting)

    def _give_back(self, waiting: _Waiting) -> None:
        if waiting.is_lent:
            self._buffers.give_back(waiting.state)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                found = self._next()
                if found is None:
                    return
                self._waiting.remove(found)
                self._busy = True
            try:
                self._write(found)
            except BaseException as error:
                with self._changed:
                    self._error, self._busy = error, False
                    self._changed.notify_all()
                return
            del found  # its memory may be an open file

    def _write(self, found: _Waiting) -> None:
        self._log.write_out()
        checkpoint.save_checkpoint(self._folder, found.state, found.note, self._log.sync)
        log.debug("wrote the checkpoint of step %d", found.note.step)
        checkpoint.prune_checkpoints(self._folder, self._keep)
        with self._changed:
            self._give_back(found)
            self._done, self._busy = max(self._done, found.note.log_length), False
            self._changed.notify_all()


class _Waiting:
    """A state that is waiting to be written."""

    def __init__(self, state: State, note: Note, is_lent: bool = True) -> None:
        """`is_lent` tells whether its memory belongs to the buffers."""
        self.state = state
        self.note = note
        self.is_lent = is_lent
        self.is_due = False
