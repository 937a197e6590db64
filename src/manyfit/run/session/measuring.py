"""How long steps take: of one run, and of several in one pass, on runs that are discarded afterwards."""

from __future__ import annotations

import functools
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from manyfit.config import Config
from manyfit.core.errors import classify_error
from manyfit.data.randomness import own_randomness
from manyfit.data.walk import Walk, walk_together
from manyfit.learn.fusing import NotFusable, Refusal, Terms
from manyfit.learn.group import Part
from manyfit.learn.learner import Learner
from manyfit.learn.metrics_by_run import fetch_all
from manyfit.run.build.builder import Built, build
from manyfit.run.build.modes import compute_as
from manyfit.run.build.shared_data import SharedData
from manyfit.run.session.fusing import COMPARED, find_built_key, release_memory

LONG: Final = 0.04
"""Seconds of steps that are timed at once."""
TIMED: Final = 3
"""How many stretches of steps are timed."""
GROWTH: Final = 4
"""By what each group has more runs than the one before."""
WORSE: Final = 1.25
"""How much slower per run a group may be than the best one before larger ones are not measured."""
SHARE: Final = 0.5
"""The share of the free memory that the runs of a group may take."""
LEAST_SAVED: Final = 0.25
"""The least share of the time of its runs alone that a group must save. What it saves in a few steps on an
idle machine is less in a study of larger models: groups fill its caches, and wait for its memory."""
LAUNCHING: Final = 2e-5
"""Seconds for launching an operation on a CPU, at most."""
COPIES: Final = 4
"""How many times the memory of a state a run takes: also gradients, and states being written."""


@dataclass(frozen=True)
class StepTime:
    """How long a step of some runs takes."""

    runs: int
    seconds: float
    """Of all runs together."""

    @property
    def per_run(self) -> float:
        """Seconds for one of the runs."""
        return self.seconds / self.runs


@dataclass(frozen=True)
class Measured:
    """What was measured."""

    steps: int
    """Steps of a run."""
    build: float
    """Seconds to build a run whose data is in memory."""
    alone: float
    """Seconds of a step of one run."""
    together: Sequence[StepTime]
    """Of runs in one pass."""
    end: str
    """Why no larger groups were measured."""
    compiling: Callable[[float], float] | None = None
    """Turns the seconds of all steps of a group into those with compiling; None if that is never done."""
    memory: float = 0.0
    """The share of the free memory that a run takes."""
    saves: float = float("inf")
    """The most seconds of a step that a run can save in a group."""

    def pays(self, runs: int, seconds: float) -> bool:
        """Return whether a group whose step takes so long saves enough of the time of its runs alone."""
        return seconds < (1 - LEAST_SAVED) * runs * self.alone


def measure_steps(
    configs: Sequence[Config],
    shared: SharedData,
    budget: Callable[[float], float],
    check: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure steps of one run and of growing groups.

    `budget` returns how many seconds this may take, given the seconds that training one run takes. `check` is
    called now and then, and may raise to end it.
    """
    with ExitStack() as stack:
        stack.enter_context(own_randomness())
        stack.enter_context(compute_as(configs[0].run.train))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(release_memory)
        first = build(configs[0], warm=True, shared=shared)
        began = time.perf_counter()
        runs = [build(configs[0], warm=True, shared=shared)]
        building = time.perf_counter() - began
        steps = first.plan.total
        if first.learner.grain != 1 or first.learner.reads_data:
            return Measured(steps, building, float("inf"), [], "the model trains whole epochs itself")
        alone, saves = _time_alone(first, check), _find_most_saved(first)
        describe = functools.partial(
            Measured,
            compiling=first.kind.foresee_compiling(first.learner),
            memory=find_share(first),
            saves=saves,
        )
        if saves < LEAST_SAVED * alone:
            return describe(steps, building, alone, [], "groups could save little of such long steps")
        until = time.perf_counter() + budget(steps * alone)  # what is started once counts in any way
        found = list[StepTime]()
        for count in _grow(len(configs)):
            if reason := _refuse(runs, count, alone, found, until):
                return describe(steps, building, alone, found, reason)
            for config in configs[len(runs) : count]:
                check()
                runs.append(build(config, warm=True, shared=shared))
            try:
                found.append(StepTime(count, _time_together(runs, check)))
            except NotFusable as error:
                return describe(steps, building, alone, found, str(error))
            except Exception as error:
                if classify_error(error) != "out of memory":
                    raise
                return describe(steps, building, alone, found, f"memory ran out for {count} runs")
            # Their tensors are one memory now, which must not be in use when more are stacked.
            runs = [build(config, warm=True, shared=shared) for config in configs[:1]]
        return describe(steps, building, alone, found, "")


def _find_most_saved(built: Built) -> float:
    """Return the most seconds of a step that a run can save: on a CPU, those of launching its operations."""
    if isinstance(find_built_key(built), Refusal) or built.kind.launches(built.learner):
        return float("inf")
    if any(tensor.device.type != "cpu" for tensor in list_state_tensors(built)):
        return float("inf")
    batches = built.train.batches(built.order)
    return LAUNCHING * built.kind.count_operations(lambda: built.learner.train(batches, 1))


def list_state_tensors(built: Built) -> list[Any]:
    """Return the tensors of the state of a run."""
    return [tensor for state in built.learner.state() for tensor in state.tensors.values()]


def _grow(most: int) -> Iterator[int]:
    """Yield the sizes of groups, up to all runs."""
    count = GROWTH
    while count < most:
        yield count
        count *= GROWTH
    if most > 1:
        yield most


def _refuse(runs: Sequence[Built], count: int, alone: float, found: Sequence[StepTime], until: float) -> str:
    """Return why a group of this size is not measured; empty if it is."""
    key = find_built_key(runs[0])
    if isinstance(key, Refusal):
        return key.reason
    if len(found) > 1 and found[-1].per_run > WORSE * min(each.per_run for each in found):
        return "larger groups were slower"
    each = found[-1].per_run if found else alone
    if count * (3 * alone + 5 * each) > until - time.perf_counter():
        return f"measuring {count} runs would take longer than it may save"
    return f"{count} runs may not fit into memory" if count * find_share(runs[0]) > SHARE else ""


def find_share(built: Built) -> float:
    """Return the share of the free memory that a run takes."""
    tensors = list_state_tensors(built)
    size = sum(tensor.nbytes for tensor in tensors) * COPIES
    return max((size / find_free_memory(device) for device in {each.device for each in tensors}), default=0.0)


def find_free_memory(device: Any) -> float:
    """Return the free memory of a device in bytes."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _time_alone(built: Built, check: Callable[[], None]) -> float:
    if built.kind.launches(built.learner):
        try:
            return _time_together([built], check)
        except NotFusable:  # then its steps are not launched in training, either
            pass
    return time_steps(built.learner, built.train.batches(built.order), built.plan.total, check)


def _time_together(runs: Sequence[Built], check: Callable[[], None]) -> float:
    learner, batches = open_group(runs)
    return time_steps(learner, batches, runs[0].plan.total, check)


def open_group(runs: Sequence[Built], waits: bool = True) -> tuple[Learner, Walk]:
    """Return the learner of some runs, and their batches."""
    sources, orders = [each.train for each in runs], [each.order for each in runs]
    first: list[Any] = list(itertools.islice(walk_together(sources, orders), COMPARED))
    terms = Terms(is_brief=True, waits=waits)
    learner, _ = runs[0].kind.fuse([Part(each.learner) for each in runs], first, terms)
    return learner, walk_together(sources, orders)


def time_steps(learner: Learner, batches: Iterator[Any], most: int, check: Callable[[], None]) -> float:
    """Return the seconds of a step: the fastest of some stretches of at most `most` steps together.

    A stretch of some length is timed when it is trained again: at first, memory is allocated, and steps may
    be captured for a launch of this many.
    """
    done = 0

    def train(count: int) -> float:
        nonlocal done
        check()
        began = time.perf_counter()
        learner.train(batches, count)
        fetch_all(learner.take())  # which waits for the device
        done += count
        return time.perf_counter() - began

    count, took = 1, train(1)
    for _ in range(min(2, most - done)):
        took = train(1)
    while took < LONG and done + 4 * count <= most:
        wanted = count * LONG / max(took, 1e-6)
        count = min(max(2 * count, 1 << int(wanted).bit_length()), (most - done) // 2)
        train(count)
        took = train(count)
    times = [took]
    while len(times) < TIMED and done + count <= most:
        times.append(train(count))
    return min(times) / count
