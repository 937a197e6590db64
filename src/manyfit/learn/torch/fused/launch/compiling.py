"""A step as a graph of tensor operations, compiled: the same with fewer, larger kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

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


def compile_step(
    step: Step, changed: Sequence[Tensor], slot: Sequence[Tensor], mode: str, nears: Sequence[float]
) -> Step:
    """Return a compiled step, compared with the given one on copies of what it changes.

    Raise `NotCompiled` if that fails, or if something differs by more than these shares of its norm.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    use_cache()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = changed[0].device
            table = {**replace_products(device, len(changed[0])), **multiply_convolutions(device)}
            traced = make_fx(step, table)([each.clone() for each in changed], list(slot))
            found: Any = torch.compile(traced, options=MODES[mode], fullgraph=True, dynamic=False)
            expected, actual = _try(step, changed, slot), _try(found, changed, slot)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        raise NotCompiled(f"{type(error).__name__}: {text}") from error
    for one, other, near in zip(expected, actual, nears, strict=True):
        _compare(one, other, near)
    compiled: Step = found
    return compiled


def _try(step: Step, changed: Sequence[Tensor], slot: Sequence[Tensor]) -> Sequence[Tensor]:
    """Call a step on copies of what it changes; return them."""
    own = [each.clone() for each in changed]
    with torch.no_grad():
        step(own, list(slot))
    return own


def _compare(one: Tensor, other: Tensor, near: float) -> None:
    if torch.equal(one, other) or not bool(torch.isfinite(one.double()).all()):
        return
    apart, size = (one.double() - other.double()).norm(), one.double().norm()
    if not bool(apart <= near * size.clamp(min=1e-6)):
        raise NotCompiled(f"its results differ by {float(apart / size.clamp(min=1e-30)):.2g} of their norm")


def use_cache() -> None:
    """Keep compiled kernels in the user's cache, unless the environment names another place."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyfit" / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
