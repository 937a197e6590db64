"""One run of a session in which several may train, from opening it to closing it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from manyfit.learn.fusing import Key, Refusal, Terms
from manyfit.run.loop.cohort import Member
from manyfit.run.loop.journal import log_only_to
from manyfit.run.loop.process_state import ProcessState
from manyfit.run.session.fusing import Fuse, find_key
from manyfit.run.session.session import Opened
from manyfit.store.folder import RunFolder

Result = TypeVar("Result")
"""What became of a run that was trained."""


class TrainingSlot(ABC, Generic[Result]):
    """One run of a session."""

    here: Opened

    def __init__(
        self,
        folder: RunFolder,
        scope: Callable[[], AbstractContextManager[object]],
        is_one_of_several: bool,
        fuse: Fuse = "off",
    ) -> None:
        """`scope` is entered while working for this run."""
        self.folder = folder
        self.is_one_of_several = is_one_of_several
        self.fuse = fuse
        self.fuse_key: Key | Refusal = Refusal("")
        """What runs must have in common to train in one pass."""
        self.how = ""
        """How it was trained: in one pass with others or alone, and why."""
        self.terms = Terms()
        """How its group is opened."""
        self.groups: Path | None = None
        """The folder for checkpoints that are written together with those of other runs, if there is one."""
        self._scope = scope
        self._stack = ExitStack()
        self._process: ProcessState | None = None

    @property
    def key(self) -> Any:
        """What runs must have in common to train together."""
        fused = self.fuse_key if isinstance(self.fuse_key, Key) else None
        return self.here.built.plan, self.here.built.split("validation") is None, fused

    @property
    def can_take_turns(self) -> bool:
        """Whether it can train in turn with the others."""
        return self.here.built.kind.can_take_turns(self.here.built.learner)

    @property
    def place(self) -> tuple[int, bool]:
        """The step, and whether everything that is due there has been done."""
        last = self.here.last
        return (0, True) if last is None else (last.step, last.note.measured)

    @property
    @abstractmethod
    def goal(self) -> int:
        """The step until which it trains now."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to train until its goal."""
        last = self.here.last
        return self.here.is_over or (last is not None and last.step >= self.goal and last.note.measured)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work for this run alone: its log messages, its output and its process state are its own."""
        if not self.is_one_of_several:
            with self._scope():
                yield
            return
        outside = ProcessState.read()
        if self._process is not None:
            self._process.restore()
        try:
            with self._scope(), log_only_to(self.folder):
                yield
        finally:
            self._process = ProcessState.read()
            outside.restore()

    def open(self) -> BaseException | None:
        """Build the run and load its last state. Return the error, if any."""
        try:
            with self.turn(), ExitStack() as stack:
                self.here = self._build(stack)
                if self.fuse != "off":
                    self.fuse_key = find_key(self.here, self.fuse)
                self._stack = stack.pop_all()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return error
        return None

    @abstractmethod
    def _build(self, stack: ExitStack) -> Opened:
        """Return the open run; `stack` is closed with it."""

    @abstractmethod
    def begin(self, study: str) -> BaseException | None:
        """Prepare everything before training. Return the error, if any."""

    @abstractmethod
    def pause(self) -> None:
        """Set the newest state as the one to continue from later, as the others have caught up."""

    def finish(self, member: Member | None) -> Result | BaseException:
        """Close the run and return what became of it. Without a member, nothing was trained."""
        found: list[Result] = []
        error = self.close(then=lambda: found.append(self._conclude(member)))
        return found[0] if error is None else error

    @abstractmethod
    def _conclude(self, member: Member | None) -> Result:
        """Return what became of the run."""

    def close(
        self, error: BaseException | None = None, then: Callable[[], object] = lambda: None
    ) -> BaseException | None:
        """Close the run, after calling `then`. Return the error, if any; `error` is made user-friendly.

        Its objects are released: the tensors of runs that were trained together are one memory.
        """
        stack, self._stack = self._stack, ExitStack()
        before = error.__traceback__ if error is not None else None
        try:
            with self.turn(), stack:
                if error is not None:
                    raise error
                then()
        except KeyboardInterrupt:
            raise
        except BaseException as found:
            if found is error:  # it may end other runs, too, which should not see these frames
                found.__traceback__ = before
            return found
        finally:
            vars(self).pop("here", None)
        return None
