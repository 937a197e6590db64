"""Where time goes: functions are wrapped while it is looked at, and cost nothing otherwise."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

Mark = Callable[[str], AbstractContextManager[object]]
"""Marks a span for another tool, which may see more inside it."""


@dataclass(frozen=True)
class TimedCall:
    """A function whose calls are timed."""

    owner: Any
    """A class or a module."""
    name: str
    phase: str
    """What its time is counted as."""
    is_whole: bool = False
    """Whether the time of other places inside it is counted as its own."""


@dataclass(frozen=True, slots=True)
class Span:
    """A call of a place."""

    phase: str
    begin: float
    end: float
    thread: int


@dataclass(slots=True)
class _Open:
    phase: str
    is_whole: bool
    begin: float
    inner: float = 0.0


@dataclass
class Stopwatch:
    """Times the spans of one thread; a span inside another is subtracted from it."""

    wait: Callable[[], object] = lambda: None
    """Called at the end of each span, for work that is done elsewhere, such as on a GPU."""
    mark: Mark = nullcontext
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By phase, without the spans inside."""
    spans: list[Span] = field(default_factory=list)
    most: int = 200_000
    """The most spans that are kept."""

    def __post_init__(self) -> None:
        self._stack: list[_Open] = []
        self._thread = threading.get_ident()

    @contextmanager
    def measure(self, phase: str, is_whole: bool = False) -> Iterator[None]:
        """Time a phase. In another thread, nothing is timed."""
        if threading.get_ident() != self._thread:
            yield
            return
        with self.mark(phase):
            here = _Open(phase, is_whole, time.perf_counter())
            self._stack.append(here)
            try:
                yield
                self.wait()
            finally:
                self._stack.pop()
                self._close(here, time.perf_counter())

    def _close(self, here: _Open, end: float) -> None:
        took = end - here.begin
        if not any(outer.is_whole for outer in self._stack):
            self.seconds[here.phase] += took - (0.0 if here.is_whole else here.inner)
        if self._stack:
            self._stack[-1].inner += took
        if len(self.spans) < self.most:
            self.spans.append(Span(here.phase, here.begin, end, self._thread))


@contextmanager
def timing(places: Sequence[TimedCall], watch: Stopwatch) -> Iterator[None]:
    """Time the calls of some functions."""
    with ExitStack() as stack:
        for place in places:
            own = vars(place.owner).get(place.name)
            setattr(place.owner, place.name, _wrap(place, watch))
            undo = functools.partial(setattr, place.owner, place.name, own)
            stack.callback(undo if own is not None else functools.partial(delattr, place.owner, place.name))
        yield


def _wrap(place: TimedCall, watch: Stopwatch) -> Callable[..., Any]:
    call = inspect.getattr_static(place.owner, place.name)
    if not callable(call):
        raise TypeError(f"{place.owner!r} has no function {place.name}")

    @functools.wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with watch.measure(place.phase, place.is_whole):
            return call(*args, **kwargs)

    return timed


class TimedIterator(Iterator[Any]):
    """An iterator whose items are waited for in a phase."""

    def __init__(self, items: Iterator[Any], phase: str) -> None:
        self._items, self._phase = items, phase
        self.watch: Stopwatch | None = None
        """Times the items; None to time none."""

    def __next__(self) -> Any:
        if self.watch is None:
            return next(self._items)
        with self.watch.measure(self._phase):
            return next(self._items)
