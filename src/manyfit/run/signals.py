"""Schedulers and people end runs by signals: the first one asks, a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Watch:
    """Whether somebody has asked to stop, and by which signal."""

    number = 0

    def check(self) -> None:
        """Leave what can be done again later, such as a validation."""
        if self.number:
            raise Asked


class Asked(Exception):
    """Somebody has asked to stop."""


@contextmanager
def watched() -> Iterator[Watch]:
    """Note signals instead of dying of them. Outside of the main thread there is nothing to note."""
    watch = Watch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return

    def note(number: int, frame: FrameType | None) -> None:
        watch.number = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in ASKING}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
