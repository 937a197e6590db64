"""Schedulers and people end runs by signals: the first one asks, a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Watch:
    """Whether somebody has asked to stop, and by which signal."""

    number = 0
    is_reading = False
    """Whether the main thread waits for data, which may take long: then it leaves at once."""

    def check(self) -> None:
        """Leave what can be done again later, such as a validation."""
        if self.number:
            raise StopRequested

    @property
    def name(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.number).name

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise `StopRequested` as soon as somebody asks, whatever is waited for."""
        self.check()
        self.is_reading = True
        try:
            yield
        finally:
            self.is_reading = False

    def obeying(self, batches: Iterator[T]) -> Iterator[T]:
        """Batches; while one is waited for, `StopRequested` is raised as soon as somebody asks."""
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


class StopRequested(BaseException):
    """Somebody has asked to stop. Users' code that catches every `Exception` does not catch this."""


@contextmanager
def watch_signals() -> Iterator[Watch]:
    """Note signals instead of dying of them. Outside of the main thread there is nothing to note."""
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
