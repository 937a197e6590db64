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
    step: Step,
    changed: Sequence[Tensor],
    slot: Sequence[Tensor],
    mode: str,
    near: float,
    shares: Sequence[float],
) -> Step:
    """Return a compiled step, compared with the given one on copies of what it changes.

    Raise `NotCompiled` if that fails, or if a tensor differs by more than `near` of its norm, unless at most
    its share of the values differs.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    use_cache()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = changed[0].device
            runs = len(changed[0])
            table = {**replace_products(device, runs), **multiply_convolutions(device, runs)}
            traced = make_fx(step, table)([each.clone() for each in changed], list(slot))
            found: Any = torch.compile(traced, options=MODES[mode], fullgraph=True, dynamic=False)
            expected, actual = _try(step, changed, slot), _try(found, changed, slot)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        raise NotCompiled(f"{type(error).__name__}: {text}") from error
    for one, other, share in zip(expected, actual, shares, strict=True):
        _compare(one, other, near, share)
    compiled: Step = found
    return compiled


def _try(step: Step, changed: Sequence[Tensor], slot: Sequence[Tensor]) -> Sequence[Tensor]:
    """Call a step on copies of what it changes; return them."""
    own = [each.clone() for each in changed]
    with torch.no_grad():
        step(own, list(slot))
    return own


def _compare(one: Tensor, other: Tensor, near: float, share: float) -> None:
    if torch.equal(one, other) or not bool(torch.isfinite(one.double()).all()):
        return
    apart, size = (one.double() - other.double()).norm(), one.double().norm()
    differs = ~torch.isclose(one.double(), other.double(), rtol=near, atol=near)
    if not bool(apart <= near * size.clamp(min=1e-6)) and not bool(differs.double().mean() <= share):
        raise NotCompiled(f"its results differ by {float(apart / size.clamp(min=1e-30)):.2g} of their norm")


def use_cache() -> None:
    """Keep compiled kernels in the user's cache, unless the environment names another place."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyfit" / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
