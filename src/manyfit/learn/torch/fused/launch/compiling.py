"""A step as a graph of tensor operations, compiled: the same with fewer, larger kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from manyfit.learn.fusing import CompiledStore
from manyfit.learn.torch.fused.launch.artifacts import compile_graph
from manyfit.learn.torch.fused.launch.convolutions import multiply_convolutions
from manyfit.learn.torch.fused.launch.products import replace_products

Step = Callable[[list[Tensor], list[Tensor]], object]
"""A step as a function of what it changes in place, state and losses, and of a slot."""
MODES: Final[Mapping[str, dict[str, Any]]] = {
    "default": {"deterministic": True},
    "max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
}
"""The options of `torch.compile` by their names in a config. Graphs are captured by the learner.

By default, no kernel is chosen by its time, as another one may round in another way: a run that is resumed
without the cache has the same bits.
"""


class NotCompiled(Exception):
    """A step that cannot be compiled, or computes something else then."""


@dataclass(frozen=True)
class Tolerance:
    """How far the results of a compiled step may be from those of the step as it is written."""

    near: float
    """The largest distance of a tensor, as a share of its norm."""
    shares: Sequence[float]
    """By tensor: the share of its values that may differ by more, such as a metric of rows on the edge."""

    def check(self, expected: Sequence[Tensor], actual: Sequence[Tensor]) -> None:
        """Raise `NotCompiled` if a tensor differs too much."""
        for one, other, share in zip(expected, actual, self.shares, strict=True):
            if torch.equal(one, other) or not bool(torch.isfinite(one).all()):
                continue
            one, other = _widen(one), _widen(other)
            apart, size = _measure_norm(one - other), _measure_norm(one)
            if apart <= self.near * max(size, 1e-6) or self._count_apart(one, other) <= share:
                continue
            raise NotCompiled(f"its results differ by {apart / max(size, 1e-30):.2g} of their norm")

    def _count_apart(self, one: Tensor, other: Tensor) -> float:
        return 1 - float(torch.isclose(one, other, rtol=self.near, atol=self.near).double().mean())


def _widen(values: Tensor) -> Tensor:
    """Return a tensor of numbers whose differences are exact enough; most are as they are."""
    is_wide = values.dtype in (torch.float32, torch.float64) or values.is_complex()
    return values if is_wide else values.double()


def _measure_norm(values: Tensor) -> float:
    """Return the norm of a tensor, summed in double precision without a copy of it."""
    return float(torch.linalg.vector_norm(values, dtype=None if values.is_complex() else torch.float64))


def compile_step(
    step: Step,
    changed: Sequence[Tensor],
    slot: Sequence[Tensor],
    mode: str,
    tolerance: Tolerance,
    store: CompiledStore | None = None,
) -> Step:
    """Return a compiled step, compared with the given one on copies of what it changes.

    It is loaded from the store, if that has it, and compiled anew if its results differ. Raise `NotCompiled`
    if that fails, too.
    """
    use_cache()
    is_loaded = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, is_loaded = _compile(step, changed, slot, mode, store)
            expected, actual = _try(step, changed, slot), _try(found, changed, slot)
        tolerance.check(expected, actual)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if is_loaded:
            return compile_step(step, changed, slot, mode, tolerance)
        if isinstance(error, NotCompiled):
            raise
        text = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        raise NotCompiled(f"{type(error).__name__}: {text}") from error
    return found


def _compile(
    step: Step, changed: Sequence[Tensor], slot: Sequence[Tensor], mode: str, store: CompiledStore | None
) -> tuple[Step, bool]:
    """Return a compiled step, and whether it was loaded."""
    from torch.fx.experimental.proxy_tensor import make_fx

    device, runs, count = changed[0].device, len(changed[0]), len(changed)

    def trace(*tensors: Tensor) -> object:
        return step(list(tensors[:count]), list(tensors[count:]))

    table = {**replace_products(device, runs), **multiply_convolutions(device, runs)}
    traced = make_fx(trace, table)(*(each.clone() for each in changed), *slot)
    artifact, is_loaded = compile_graph(traced, [*changed, *slot], MODES[mode], store)

    def compiled(changed: list[Tensor], slot: list[Tensor]) -> None:
        artifact(*changed, *slot)

    return compiled, is_loaded


def _try(step: Step, changed: Sequence[Tensor], slot: Sequence[Tensor]) -> Sequence[Tensor]:
    """Call a step on copies of what it changes; return them."""
    own = [each.clone() for each in changed]
    with torch.no_grad():
        step(own, list(slot))
    return own


def use_cache() -> None:
    """Keep compiled kernels in the user's cache, unless the environment names another place."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyfit" / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
