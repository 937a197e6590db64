"""What is done for one batch size, on fixed memory: computed now, captured as CUDA graphs, or compiled."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from manyfit.learn.fusing import CompiledStore
from manyfit.learn.torch.fused.launch.compiling import Tolerance, compile_step
from manyfit.learn.torch.fused.launch.slots import Slots, make_aligned
from manyfit.learn.torch.fused.self_check import LOSS
from manyfit.learn.torch.randomness import cuda_generator

log = logging.getLogger("manyfit")

FAR: Final = 100.0
"""How much farther than a loss a parameter may be, as an optimizer divides by small numbers."""
ON_EDGE: Final = 0.05
"""The share of the values of a metric that may differ: a few rows may be on the edge between two classes."""
Compute = Callable[[list[Tensor], list[Tensor]], Mapping[str, Tensor]]
"""A function of a state, which it may change in place, and of a slot; it returns results by name."""


class Program:
    """Something that is computed for each slot; its results go to a buffer."""

    def __init__(
        self, what: str, compute: Compute, state: Sequence[Tensor], slots: Slots, compiles: bool = False
    ) -> None:
        """`what` it computes is named in messages. With `compiles`, it is worth compiling."""
        self.what, self.slots, self.compiles = what, slots, compiles
        self.has_run = False
        """Whether it was computed for a slot, after which it can be captured."""
        self._compute, self._state = compute, list(state)
        self._device = slots.device
        self._captures = self._device.type == "cuda"
        self._compiled: Any = None
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None
        self._names: list[str] = []
        self._results: list[Tensor] = []

    @property
    def is_compiled(self) -> bool:
        """Whether it was compiled."""
        return self._compiled is not None

    def compile(self, mode: str, kind: str, store: CompiledStore | None = None) -> None:
        """Compile it, or load it from a store; raise `NotCompiled` if that fails. A slot is filled."""
        self.slots.gather(1)
        slot, count = self.slots.tensors(0), len(self._state)
        if not self._results:
            with torch.no_grad():
                self._open_results(self._call([each.clone() for each in self._state], slot))

        def step(changed: list[Tensor], slot: list[Tensor]) -> None:
            for result, value in zip(changed[count:], self._call(changed[:count], slot), strict=True):
                result.copy_(value)

        shares = [0.0] * count + [0.0 if name == "loss" else ON_EDGE for name in self._names]
        near = Tolerance(LOSS[kind] * FAR, shares)
        self._compiled = compile_step(step, self._list_changed(0), slot, mode, near, store)
        self._graphs.clear()
        self._pool = None
        self.has_run = False

    def time_copy(self) -> float | None:
        """Return the seconds of a slot, captured, on a copy of the state; None if it cannot be captured."""
        try:
            copied = Program(self.what, self._compute, [each.clone() for each in self._state], self.slots)
            copied.run(1)
            copied._capture(self.slots.steps)
            torch.cuda.synchronize(self._device)
            began = time.perf_counter()
            copied.run(self.slots.steps)
            torch.cuda.synchronize(self._device)
        except Exception as error:  # capturing it in earnest will tell
            log.debug("a launch could not be timed: %s", error)
            return None
        return (time.perf_counter() - began) / self.slots.steps

    def must_capture(self, count: int) -> bool:
        """Return whether the next `run` begins by capturing."""
        return self._captures and self.has_run and count not in self._graphs

    def count_next(self, most: int) -> int:
        """Return how many slots are computed next: all of them, or a power of two, so that graphs are few."""
        if not self.has_run:
            return 1
        return self.slots.steps if most >= self.slots.steps else 1 << (most.bit_length() - 1)

    def run(self, count: int) -> dict[str, Tensor]:
        """Compute the first slots; return the results, each of shape (slots, ...)."""
        if self.must_capture(count):
            try:
                self._capture(count)
            except Exception as error:  # nothing was computed
                self._give_up(error)
        with torch.no_grad():
            if count in self._graphs:
                self._graphs[count].replay()
            else:
                self._compute_slots(count)
                self.has_run = True
        return {name: found[:count].clone() for name, found in zip(self._names, self._results, strict=True)}

    def _call(self, state: list[Tensor], slot: list[Tensor]) -> list[Tensor]:
        found = self._compute(state, slot)
        self._names = list(found)
        return list(found.values())

    def _open_results(self, examples: Sequence[Tensor]) -> None:
        self._results = [make_aligned(self.slots.steps, e.shape, e.dtype, e.device) for e in examples]

    def _list_changed(self, number: int) -> list[Tensor]:
        """Return what a slot changes: the state, and its own results."""
        return [*self._state, *(results[number] for results in self._results)]

    def _compute_slots(self, count: int) -> None:
        self.slots.gather(count)
        for number in range(count):
            if self._compiled is not None:
                self._compiled(self._list_changed(number), self.slots.tensors(number))
                continue
            found = self._call(self._state, self.slots.tensors(number))
            if not self._results:
                self._open_results(found)
            for value, results in zip(found, self._results, strict=True):
                results[number].copy_(value)

    def _capture(self, count: int) -> None:
        """Capture the first slots, without computing them."""
        graph, generator = torch.cuda.CUDAGraph(), cuda_generator(self._device)
        before = None if generator is None else generator.clone_state()
        gc.disable()  # if it deleted another graph meanwhile, capturing would fail
        release_workspaces()
        try:
            with torch.no_grad(), torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                self._compute_slots(count)
        except BaseException:
            if generator is not None and before is not None:  # it would stay in the mode of a capture
                generator.graphsafe_set_state(before)
            raise
        finally:
            release_workspaces()  # those of the graph stay in its own memory, and go with it
            gc.enable()
        self._graphs[count] = graph
        self._pool = graph.pool()  # they are replayed one after another, and leave nothing there

    def _give_up(self, error: Exception) -> None:
        """Compute one slot after another from now on."""
        text = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        log.warning("%s is launched operation by operation, as it cannot be captured: %s", self.what, text)
        self._captures = False
        self._graphs.clear()
        self._pool = None
        torch.cuda.empty_cache()


def release_workspaces() -> None:
    """Give back the workspaces of cuBLAS; the next operation that needs one makes another."""
    torch._C._cuda_clearCublasWorkspaces()
