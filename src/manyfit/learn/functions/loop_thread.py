"""A loop of the user's, which runs in a thread of its own so that it can be paused between epochs.

Only one of the two threads runs at any time: control is handed over and back.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch


class LoopCancelled(BaseException):
    """Raised in a loop that is not continued. Not an `Exception`, so that user code does not catch it."""


class LoopThread:
    """A function in a thread of its own, which hands control over whenever it pauses."""

    def __init__(self, function: Callable[[], Any], device: torch.device) -> None:
        self._function = function
        self._device = device
        self._threads = torch.get_num_threads()
        self._turn = threading.Condition()
        self._is_running = False
        self._is_cancelled = False
        self.has_ended = False
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="train()", daemon=True)

    def advance(self) -> None:
        """Run the function until it pauses or ends; raise what it raises."""
        self._is_running = True
        if not self._thread.ident:
            self._thread.start()
        with self._turn:
            self._turn.notify_all()
            while self._is_running:
                self._turn.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pause(self) -> None:
        """Called by the function: hand control over until it is continued."""
        with self._turn:
            self._is_running = False
            self._turn.notify_all()
            while not self._is_running:
                self._turn.wait()
        if self._is_cancelled:
            raise LoopCancelled

    @property
    def is_here(self) -> bool:
        """Whether the caller is the function of this thread."""
        return threading.current_thread() is self._thread

    def cancel(self) -> None:
        """End the function where it pauses."""
        if not self._thread.ident or self.has_ended:
            return
        self._is_cancelled = True
        self.advance()

    def frames(self) -> Iterator[FrameType]:
        """Yield the frames of the function, while it pauses or asks for them: the innermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._threads)
            if self._device.type == "cuda" and self._device.index is not None:
                torch.cuda.set_device(self._device)
            self._function()
        except LoopCancelled:
            pass
        except BaseException as error:  # raised again where the loop was continued
            self._error = error
        finally:
            self.has_ended = True
            with self._turn:
                self._is_running = False
                self._turn.notify_all()
