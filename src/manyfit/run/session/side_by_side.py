"""Groups that train side by side on one GPU: each launches its steps on a stream of its own, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from manyfit.config.schema.run import Train
from manyfit.run.build.modes import compute_as

T = TypeVar("T")
Found = TypeVar("Found")


def train_side_by_side(
    groups: Sequence[tuple[Train, Callable[[], Iterator[Found | None]]]], streams: int
) -> Iterator[Found]:
    """Yield what groups yield while they train, at most `streams` of them at a time.

    Each has its settings, and a function that returns its iterator, in which None ends a turn: what was
    launched is then computed on its stream, while others launch their steps.
    """
    is_alone = min(streams, len(groups)) <= 1
    waiting, active, free = deque(groups), deque[_Lane[Found]](), list[Any]()
    try:
        while waiting or active:
            while waiting and len(active) < streams:
                settings, train = waiting.popleft()
                stream = free.pop() if free else None if is_alone else make_stream(settings)
                active.append(_Lane(settings, train(), stream))
            found = active[0].go_on()
            if active[0].is_over:
                free.append(active.popleft().stream)
            elif found is None:
                active.rotate(-1)
            else:
                yield found
    finally:
        for lane in active:
            lane.close()


class _Lane(Generic[Found]):
    """A group and its stream."""

    def __init__(self, settings: Train, turns: Iterator[Found | None], stream: Any) -> None:
        self.stream = stream
        self.is_over = False
        self._settings, self._turns = settings, turns

    def go_on(self) -> Found | None:
        """Wait for what was launched, and return what the group yields next."""
        with compute_as(self._settings), use_stream(self.stream):
            if self.stream is not None:
                self.stream.synchronize()
            for found in self._turns:
                return found
            self.is_over = True
            return None

    def close(self) -> None:
        """End the group where it is."""
        with compute_as(self._settings), use_stream(self.stream), _close_early(self._turns):
            pass


@contextmanager
def _close_early(turns: Iterator[T]) -> Iterator[Iterator[T]]:
    """Yield an iterator, and close it if it is a generator: what it has opened is closed now."""
    try:
        yield turns
    finally:
        if isinstance(turns, Generator):
            turns.close()


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
