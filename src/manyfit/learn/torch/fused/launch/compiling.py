"""A step as a graph of tensor operations, compiled: the same with fewer, larger kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from manyfit.learn.torch.fused.self_check import LOSS

Step = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""A step as a function of its state, which it changes in place, and of a slot; it returns losses."""
MODES: Final = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
"""The modes of `torch.compile` by their names in a config. Graphs are captured by the learner."""
FAR: Final = 100.0
"""How much farther than a loss a parameter may be, as an optimizer divides by small numbers."""


class NotCompiled(Exception):
    """A step that cannot be compiled, or computes something else then."""


def compile_step(step: Step, state: Sequence[Tensor], slot: Sequence[Tensor], mode: str, kind: str) -> Step:
    """Return a compiled step, compared with the given one on a copy of the state.

    Raise `NotCompiled` if that fails or differs; `kind` is how precisely the step computes.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    use_cache()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = make_fx(step)([each.clone() for each in state], list(slot))
            found: Any = torch.compile(traced, mode=MODES[mode], fullgraph=True, dynamic=False)
            expected, there = _try(step, state, slot)
            losses, here = _try(found, state, slot)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        raise NotCompiled(f"{type(error).__name__}: {text}") from error
    for one, other in zip([*expected, *there], [*losses, *here], strict=True):
        _compare(one, other, LOSS[kind] * FAR)
    compiled: Step = found
    return compiled


def _try(
    step: Step, state: Sequence[Tensor], slot: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Call a step on a copy of the state; return its losses and what the state is then."""
    own = [each.clone() for each in state]
    with torch.no_grad():
        return step(own, list(slot)), own


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
