"""Training several steps per launch: rows stay on the device, and nothing waits for it in between."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyfit.core.quiet import PROGRESS
from manyfit.data import Batch
from manyfit.data.batch import split_rows
from manyfit.data.walk import Walk
from manyfit.learn.fusing import Terms
from manyfit.learn.torch.fused.calls import StackedBatch, spread_rows
from manyfit.learn.torch.fused.dropout import make_keys
from manyfit.learn.torch.fused.launch.compiling import NotCompiled
from manyfit.learn.torch.fused.launch.feed import DeviceRows, RowFeed, count_alike, find_batch_size
from manyfit.learn.torch.fused.launch.launched import Launched
from manyfit.learn.torch.fused.launch.program import Program, release_workspaces
from manyfit.learn.torch.fused.launch.slots import SlotLayout, Slots, flatten_batch
from manyfit.learn.torch.fused.options import OptionTable
from manyfit.learn.torch.fused.self_check import Checked, precision_of
from manyfit.learn.torch.fused.step import StackedStep
from manyfit.learn.torch.fused.update import FactorField
from manyfit.learn.torch.launching import OFF, Launching

log = logging.getLogger("manyfit")

STEPS: Final = 32
"""The most steps of a launch."""
MOST_BYTES: Final = 1 << 27
"""The most bytes of rows in the slots of a launch."""


class Launcher:
    """Launches the steps of a group, and its validation."""

    def __init__(
        self,
        step: StackedStep,
        checked: Checked,
        rows: Sequence[int],
        streams: Sequence[int],
        stack: Callable[[Sequence[Batch]], StackedBatch],
        options: Launching,
        terms: Terms,
    ) -> None:
        """`rows` has the run of each row of a stack, `streams` the number of its stream of dropout."""
        self._step, self._checked = step, checked
        self._rows, self._streams, self._stack = list(rows), list(streams), stack
        self._is_cuda = step.base.device.type == "cuda"
        self._on_device = DeviceRows(step.base.objective.tensor)
        self._feed: RowFeed | None = None
        self._programs: dict[tuple[object, ...], Program] = {}
        self._measuring: dict[tuple[int, ...], Program] = {}
        if self._is_cuda:
            weakref.finalize(self, release_workspaces).atexit = False
        self._total, self._options, self._store = terms.total, options, terms.store
        # All graphs read the seed of one generator, so those of other groups must not be computed meanwhile.
        self._waits = self._is_cuda and (terms.waits or bool(checked.draws))
        self._wanted: str | None = options.compile
        """The mode in which steps are compiled, or `off`; None if that is not decided yet."""
        if options.compile == "auto":
            known = terms.compiled or None
            self._wanted = known if self._is_cuda and self._total is not None else known or OFF
        if terms.is_brief:
            self._wanted = OFF
        if checked.draws:
            if self._wanted not in (None, OFF):
                log.warning("the steps are not compiled, as the model draws random numbers by itself")
            self._wanted = OFF

    @property
    def compiled(self) -> str:
        """The mode in which steps are compiled, or `off`; empty if that is not decided yet."""
        return self._wanted or ""

    def can_launch(self) -> bool:
        """Return whether the next step can be launched."""
        return self._step.can_launch()

    def train(
        self, walk: Walk, begin: int, table: OptionTable, done: int, until: int, found: Launched
    ) -> int:
        """Train steps of a table from `done` up to at most `until`; return how many.

        `begin` is the step at which the table begins. The losses are added to `found`.
        """
        if self._feed is None or self._feed.walk is not walk:
            self._feed = RowFeed(walk, self._rows, self._on_device, self._stack)
        ahead, trained = self._feed.read(min(STEPS, until - done)), 0
        while ahead:
            alike = ahead[: count_alike(ahead)]
            count = self._launch(self._feed, alike, begin + done + trained, table, done + trained, found)
            ahead, trained = ahead[count:], trained + count
        return trained

    def finish(self) -> None:
        """Wait for the device before a pause, unless others launch their steps meanwhile."""
        if self._feed is not None:
            self._feed.walk.look_ahead()  # while the device computes
        if self._waits:
            torch.cuda.current_stream().synchronize()

    def measure(
        self, walk: Walk, check: Callable[[StackedBatch], object] | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the per-row values of the rest of a walk by name, each of shape (steps, stack, rows).

        `check` is called with the first batch.
        """
        feed, full = RowFeed(walk, self._rows, self._on_device, self._stack), walk.full
        while ahead := feed.read(STEPS):
            full = full or find_batch_size(ahead[0])
            while ahead:
                alike = ahead[: count_alike(ahead)]
                if check is not None:
                    check(feed.make_batch(alike[0]))
                    check = None
                program = self._find_measuring(feed, alike[0], full)
                count = program.count_next(len(alike))
                program.slots.fill(alike[:count], None, ())
                if program.compiles and not program.is_compiled and self.compiled not in ("", OFF):
                    self._compile(program, self.compiled)
                yield program.run(count)
                ahead = ahead[count:]

    def _find_measuring(self, feed: RowFeed, rows: Any, full: int) -> Program:
        """Return the program that measures these rows; a full batch has `full` of them."""
        size = find_batch_size(rows)
        key = size, *(id(each) for each in (feed.columns.tensors if feed.columns is not None else ()))
        if key not in self._measuring:
            layout, evaluated = SlotLayout(feed.make_batch(rows), None, (), ()), self._step.list_evaluated()
            slots = Slots(layout, self._count_slots(layout.batch), feed.columns)
            compute = functools.partial(_measure_slot, self._step, self._checked, layout, list(evaluated))
            is_full = size >= full
            state = list(evaluated.values())
            self._measuring[key] = Program("validation", compute, state, slots, compiles=is_full)
        return self._measuring[key]

    def _launch(
        self, feed: RowFeed, rows: Sequence[Any], step: int, table: OptionTable, number: int, found: Launched
    ) -> int:
        """Train some of these steps, whose batches have the same size; return how many."""
        update, moved = self._step.update, self._step.moved[tuple(self._step.trained)]
        fields = update.divide_factors(moved)
        names = [tuple(update.list_factors(field, table, number, 1)) for field in fields]
        program = self._find_program(feed, rows[0], fields, names)
        count = program.count_next(len(rows))
        factors = [update.list_factors(field, table, number, count) for field in fields]
        if any(tuple(each) != own for each, own in zip(factors, names, strict=True)):
            count, factors = 1, [update.list_factors(field, table, number, 1) for field in fields]
        program.slots.fill(rows[:count], self._make_keys(program, step, count), factors)
        if program.compiles and not program.is_compiled:
            if self._wanted is None:
                self._wanted = self._decide(program, step)
            if self._wanted != OFF and not self._compile(program, self._wanted):
                self._wanted = OFF  # the state says so: a run that resumes compiles nothing, either
                self._programs.clear()
                self._measuring.clear()
        self._step.seed(self._checked, step)
        losses = program.run(count)
        self._step.count(moved, count)
        found.extend(losses, [find_batch_size(rows[0])] * count)
        return count

    def _find_program(
        self, feed: RowFeed, rows: Any, fields: Sequence[FactorField], names: Sequence[tuple[str, ...]]
    ) -> Program:
        """Return the program for these rows and for what is trained now."""
        key = find_batch_size(rows), tuple(tuple(field.names) for field in fields), tuple(names)
        if key not in self._programs:
            batch = feed.make_batch(rows)
            parts = len(split_rows(batch.rows, self._step.base.accumulate))
            rates = self._checked.rates
            layers = 0 if rates is None else rates.shape[1]
            keys = (parts, len(self._rows), layers, 2) if self._checked.replaces else None
            layout = SlotLayout(batch, keys, fields, names, parts)
            is_full = find_batch_size(rows) >= feed.walk.full  # wherever the run was resumed
            steps = self._count_slots(batch) if is_full and not self._checked.draws else 1
            slots = Slots(layout, steps, feed.columns)
            compute = functools.partial(_train_slot, self._step, self._checked, layout)
            state = [state[name] for state, name in self._step.places()]
            self._programs[key] = Program("the step", compute, state, slots, compiles=is_full)
        return self._programs[key]

    @staticmethod
    def _count_slots(batch: StackedBatch) -> int:
        """Return the number of slots for batches like this one."""
        size = sum(each.nbytes for each in flatten_batch(batch))
        return max(1, min(STEPS, MOST_BYTES // max(1, size)))

    def _make_keys(self, program: Program, step: int, count: int) -> npt.NDArray[np.int32] | None:
        shape = program.slots.layout.keys
        if shape is None:
            return None
        parts, _, layers, _ = shape
        each = [
            [make_keys(self._streams, step + i, part, layers) for part in range(parts)] for i in range(count)
        ]
        return np.array(each, dtype=np.int32).reshape(count, *shape)

    def _decide(self, program: Program, step: int) -> str:
        """Return the mode in which steps are compiled if that pays, by the time of a launch on copies.

        This is decided once, before the first launch: a run that resumes goes on as it was begun.
        """
        assert self._total is not None
        seconds = program.time_copy()
        if seconds is None:
            return OFF
        left = (self._total - step) * seconds
        return self._options.choose_mode(self._step.base.device, left, len(self._step.leaves))

    def _compile(self, program: Program, mode: str) -> bool:
        """Compile a program, and return whether that succeeded."""
        kind = precision_of(self._step.base, next(iter(self._step.leaves.values())))
        began = time.perf_counter()
        log.info("compiling %s, which may take a minute", program.what, extra=PROGRESS)
        try:
            program.compile(mode, kind, self._store)
        except (NotCompiled, torch.OutOfMemoryError) as error:
            log.warning("%s is not compiled: %s", program.what, str(error).partition("\n")[0])
            program.compiles = False
            return False
        log.info("compiled %s in %.1f s", program.what, time.perf_counter() - began)
        return True


def _train_slot(
    step: StackedStep, checked: Checked, layout: SlotLayout, state: list[Tensor], slot: list[Tensor]
) -> Mapping[str, Tensor]:
    """Train the step of a slot; return its losses."""
    batch, keys, factors = layout.read(slot)
    with step.use_state(state):
        return step.launch(checked, batch, keys, factors)


def _measure_slot(
    step: StackedStep,
    checked: Checked,
    layout: SlotLayout,
    names: Sequence[str],
    state: list[Tensor],
    slot: list[Tensor],
) -> Mapping[str, Tensor]:
    """Return the per-row values of the batch of a slot; `state` has the tensors of these names."""
    batch, _, _ = layout.read(slot)
    found = step.measure(checked, dict(zip(names, state, strict=True)), batch)[1]
    return {name: spread_rows(value, batch) for name, value in found.items()}
