"""Groups that train side by side on one GPU: each launches its steps on a stream of its own, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Generic, TypeVar

from manyfit.config.schema.run import Train
from manyfit.run.build.modes import compute_as
from manyfit.run.loop.clock import Suspension

Found = TypeVar("Found")


def are_side_by_side(groups: int, streams: int) -> bool:
    """Return whether some groups train at the same time."""
    return min(groups, streams) > 1


def train_side_by_side(
    groups: Sequence[tuple[Train, Callable[[], Iterator[Found | None]]]], streams: int
) -> Iterator[Found]:
    """Yield what groups yield while they train, at most `streams` of them at a time.

    Each has its settings, and a function that returns its iterator, in which None ends a turn: what was
    launched is then computed on its stream, while others launch their steps.
    """
    has_streams = are_side_by_side(len(groups), streams)
    waiting, active = deque(groups), deque[_Lane[Found]]()
    try:
        while waiting or active:
            while waiting and len(active) < streams:
                settings, train = waiting.popleft()
                active.append(_Lane(settings, train(), make_stream(settings) if has_streams else None))
            found = active[0].go_on()
            if active[0].is_over:
                active.popleft()
            elif found is None:
                active.rotate(-1)
            else:
                yield found
    finally:
        with ExitStack() as stack:  # all of them, also if one cannot be closed
            for lane in active:
                stack.callback(lane.close)


class _Lane(Generic[Found]):
    """A group and its stream."""

    def __init__(self, settings: Train, turns: Iterator[Found | None], stream: Any) -> None:
        self.is_over = False
        self._settings, self._turns, self._stream = settings, turns, stream
        self._suspension = Suspension()

    def go_on(self) -> Found | None:
        """Wait for what was launched, and return what the group yields next."""
        with self._suspension.end(), compute_as(self._settings), use_stream(self._stream):
            if self._stream is not None:
                self._stream.synchronize()
            for found in self._turns:
                return found
            self.is_over = True
            return None

    def close(self) -> None:
        """End the group where it is: what it has opened is closed now."""
        with compute_as(self._settings), use_stream(self._stream):
            if isinstance(self._turns, Generator):
                self._turns.close()


def use_stream(stream: Any) -> AbstractContextManager[object]:
    """Launch what follows on a stream, if there is one."""
    import torch

    return nullcontext() if stream is None else torch.cuda.stream(stream)


def make_stream(settings: Train) -> Any:
    """Return a stream of the GPU on which a group trains; None on a CPU, where groups only take turns."""
    import torch

    if not torch.cuda.is_available() or not settings.device.startswith(("auto", "cuda")):
        return None
    device = torch.device("cuda" if settings.device == "auto" else settings.device)
    torch.cuda.synchronize(device)  # what was built is there
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
