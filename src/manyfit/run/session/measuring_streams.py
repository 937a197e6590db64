"""How long steps of several groups take side by side on a GPU, on runs that are discarded afterwards."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from manyfit.config import Config
from manyfit.data.randomness import own_randomness
from manyfit.learn.fusing import Refusal
from manyfit.run.build.builder import Built, build
from manyfit.run.build.modes import compute_as
from manyfit.run.build.shared_data import SharedData
from manyfit.run.session.fusing import find_built_key, release_memory
from manyfit.run.session.measuring import (
    LONG,
    SHARE,
    TIMED,
    find_share,
    open_group,
    time_steps,
)
from manyfit.run.session.side_by_side import make_stream, use_stream

STREAMS: Final = (2, 4)
"""How many groups are measured side by side."""


@dataclass(frozen=True)
class StreamTime:
    """How long steps of several groups take side by side."""

    streams: int
    share: float
    """Of the time that they take one after another."""


def measure_streams(
    groups: Sequence[Sequence[Config]], shared: SharedData, check: Callable[[], None] = lambda: None
) -> list[StreamTime]:
    """Measure steps of groups of several structures, one after another and side by side on a GPU."""
    with ExitStack() as stack:
        stack.enter_context(own_randomness())
        stack.enter_context(compute_as(groups[0][0].run.train))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(release_memory)
        opened = list[_Timed]()
        stack.callback(opened.clear)  # before memory is released
        for configs in groups:
            check()
            timed = _open(configs, shared)
            if timed is None:
                break
            opened.append(timed)
        return [
            StreamTime(count, _compare_streams(opened[:count], check))
            for count in STREAMS
            if count <= len(opened) and all(each.steps for each in opened)
        ]


def _open(configs: Sequence[Config], shared: SharedData) -> _Timed | None:
    """Return a group to be timed; None if it is not launched, or may not fit into memory."""
    runs, stream = [build(configs[0], warm=True, shared=shared)], make_stream(configs[0].run.train)
    is_launched = runs[0].kind.launches(runs[0].learner) and not isinstance(find_built_key(runs[0]), Refusal)
    if stream is None or not is_launched or len(configs) * find_share(runs[0]) > SHARE:
        return None
    runs += [build(config, warm=True, shared=shared) for config in configs[1:]]
    return _Timed(runs, stream)


class _Timed:
    """A group whose steps are timed on a stream."""

    def __init__(self, runs: Sequence[Built], stream: Any) -> None:
        self.stream = stream
        self.steps = 0
        """How many steps are timed at once; 0 if there are too few."""
        with use_stream(stream):
            self._learner, self._batches = open_group(runs, waits=False)
            each = time_steps(self._learner, self._batches, runs[0].plan.total // 4, lambda: None)
            steps = round(LONG / each)
            if self._learner.step + (2 + 2 * TIMED * len(STREAMS)) * steps <= runs[0].plan.total:
                self.steps = steps
                self.launch()  # what has to be captured is captured
            stream.synchronize()

    def launch(self) -> None:
        """Launch the steps; they are computed meanwhile."""
        with use_stream(self.stream):
            self._learner.train(self._batches, self.steps)


def _compare_streams(groups: Sequence[_Timed], check: Callable[[], None]) -> float:
    """Return the share of the time of some groups that they take side by side."""
    alone, together = list[float](), list[float]()
    for _ in range(TIMED):
        check()
        began = time.perf_counter()
        for each in groups:
            each.launch()
            each.stream.synchronize()
        alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        for each in groups:
            each.launch()
        for each in groups:
            each.stream.synchronize()
        together.append(time.perf_counter() - began)
    return min(together) / min(alone)
