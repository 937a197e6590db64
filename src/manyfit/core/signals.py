"""Signals that end runs: the first one requests a stop, a second Ctrl-C ends the process at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from manyfit.core.errors import Interrupted

T = TypeVar("T")
ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Watch:
    """The state of a stop request: whether there is one, and by which signal."""

    number = 0
    is_reading = False
    """Whether the main thread waits for data, which may take long: a signal then interrupts it at once."""

    def check(self) -> None:
        """Raise `StopRequested` after a signal; called where work can be repeated later, as in validation."""
        if self.number:
            raise StopRequested

    @property
    def name(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.number).name

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `StopRequested` at once on a signal within this block, even while it waits."""
        self.check()
        self.is_reading = True
        try:
            yield
        finally:
            self.is_reading = False

    @contextmanager
    def translate(self, text: str) -> Iterator[None]:
        """Turn a request to stop into an `Interrupted` error; `{name}` in its text is the signal."""
        try:
            yield
        except StopRequested:
            raise Interrupted(text.replace("{name}", self.name), self.number) from None

    def obeying(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield batches; a signal while waiting for one raises `StopRequested` at once."""
        while True:
            self.check()
            self.is_reading = True
            try:
                batch = next(batches, None)
            finally:
                self.is_reading = False
            if batch is None:
                return
            yield batch


class EitherWatch(Watch):
    """Whether all runs, or one of them, were asked to end."""

    def __init__(self, all_: Watch, one: Watch) -> None:
        self._watches = (all_, one)

    @property
    def number(self) -> int:  # type: ignore[override]
        """The signal."""
        return next((watch.number for watch in self._watches if watch.number), 0)

    def check(self) -> None:
        """Check both, which shows that the run is alive."""
        for watch in self._watches:
            watch.check()


class StopRequested(BaseException):
    """A stop was requested. Not an `Exception`, so that user code does not catch it by accident."""


@contextmanager
def watch_signals() -> Iterator[Watch]:
    """Record signals instead of terminating. Outside of the main thread, none are received."""
    watch = Watch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return

    def note(number: int, frame: FrameType | None) -> None:
        watch.number = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if watch.is_reading:
            watch.is_reading = False
            raise StopRequested

    before = {number: signal.signal(number, note) for number in ASKING}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
