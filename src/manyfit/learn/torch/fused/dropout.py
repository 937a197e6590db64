"""Dropout whose masks are a function of (seed, step, layer, element), for one run or for a group of runs.

Where a run is in a group, how large the group is and where a launch begins do not change its masks. A mask
is made by integer operations from two keys of 31 bits. A layer is the position of a call in a forward pass.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

from manyfit.learn.torch.fused.per_run import SPLIT

MOST_LAYERS: Final = 64
"""Calls of dropout in a forward pass for which keys are made ahead."""
BITS: Final = 24
"""The precision of a rate: it is a multiple of 2 ** -24."""
TINY: Final = 1e-30


class TooManyLayers(RuntimeError):
    """A forward pass has more calls of dropout than there are keys."""


def make_keys(
    streams: Sequence[int], step: int, part: int = 0, layers: int = MOST_LAYERS
) -> npt.NDArray[np.int32]:
    """Return the keys of a step, of shape (runs, layers, 2); `streams` has a number for each run."""
    with np.errstate(over="ignore"):
        base = np.asarray(streams, dtype=np.uint64)[:, None, None]
        place = np.uint64(step) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(part) * np.uint64(
            0xD1B54A32D192ED03
        )
        number = np.arange(2 * layers, dtype=np.uint64).reshape(1, layers, 2)
        return (_mix(_mix(base + place) + number) >> np.uint64(33)).astype(np.int32)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a bijective hash of 64 bits (splitmix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.lru_cache(maxsize=64)
def _elements(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


def draw(shape: Sequence[int], keys: Tensor, device: torch.device) -> Tensor:
    """Return integers below 2 ** 24, one per element, from two keys; uniform for practical purposes."""
    x = _elements(int(np.prod(shape)), device).view(tuple(shape)) ^ keys[0]
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = x + keys[1]
    x = (x ^ _shift(x, 15)) * -0x7B935975
    x = (x ^ _shift(x, 16)) * 0x2C1B3C6D
    x = x ^ _shift(x, 13)
    return _shift(x, 32 - BITS)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without extending the sign."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


class CounterDropout(TorchFunctionMode):
    """While it is active, dropout uses masks of the keys instead of a generator.

    Everything else that draws random numbers is left alone; under `vmap`, it is an error.
    """

    def __init__(self, keys: Tensor | None, rates: Tensor | None = None) -> None:
        """`keys` has shape (layers, 2). `rates` replaces the rates of the calls in training, by layer."""
        super().__init__()
        self._keys = keys
        self._rates = rates
        self.seen: list[float] = []
        """The rates of the calls of dropout so far."""
        self.is_needed = False
        """Whether any function was replaced."""
        self.is_split = False
        """Whether any function was called that groups on the CPU call for each run separately."""

    def __torch_function__(
        self, func: Any, types_: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace calls of dropout, and of functions that call it."""
        replacement = REPLACED.get(func)
        if replacement is None:
            self.is_split = self.is_split or func in SPLIT
            return func(*args, **(kwargs or {}))
        self.is_needed = True
        return replacement(self, *args, **(kwargs or {}))

    def drop(self, x: Tensor, p: float, shape: Sequence[int], inplace: bool = False) -> Tensor:
        """Return `x` without some of its entries; entries that `shape` broadcasts share their fate."""
        layer = len(self.seen)
        self.seen.append(p)
        if self._rates is None and not p:
            return x
        if self._keys is None or layer >= len(self._keys):
            raise TooManyLayers(f"a forward pass calls dropout more than {MOST_LAYERS} times")
        drawn, rate = (
            draw(shape, self._keys[layer], x.device),
            p if self._rates is None else self._rates[layer],
        )
        if isinstance(rate, Tensor):
            keep = drawn >= (rate * (1 << BITS)).round()
            scale = keep.to(x.dtype) / (1 - rate).clamp(min=TINY).to(x.dtype)
        else:
            scale = (drawn >= round(rate * (1 << BITS))).to(x.dtype) / max(1 - rate, TINY)
        return x.mul_(scale) if inplace else x * scale


def _dropout(
    mode: CounterDropout, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    return mode.drop(input, p, input.shape, inplace) if training else input


def _torch_dropout(mode: CounterDropout, input: Tensor, p: float, train: bool) -> Any:
    return _dropout(mode, input, p, train)


def _channels(dims: int) -> Callable[..., Any]:
    """Return dropout of whole channels of inputs with some spatial dimensions."""

    def drop(
        mode: CounterDropout, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        if not training:
            return input
        lead = input.ndim - dims
        return mode.drop(input, p, (*input.shape[:lead], *[1] * dims), inplace)

    return drop


def _attention(
    mode: CounterDropout, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention by plain matrix products, which can be stacked; with dropout of its weights."""
    if enable_gqa:
        raise NotImplementedError("attention with grouped queries")
    weights = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        causal = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
        weights = weights.masked_fill(~causal, -torch.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype is torch.bool
        weights = weights.masked_fill(~attn_mask, -torch.inf) if is_bool else weights + attn_mask
    weights = weights.softmax(-1)
    return mode.drop(weights, dropout_p, weights.shape) @ value


def _without_override(func: Any) -> Any:
    """Return a function of torch whose body runs also while a mode is active."""
    names = {**func.__globals__, "has_torch_function": lambda *_: False}
    found = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    found.__kwdefaults__ = func.__kwdefaults__
    return found


def _inside(func: Any) -> Callable[..., Any]:
    body = _without_override(func)

    def call(mode: CounterDropout, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return body(*args, **kwargs)

    return call


REPLACED: Final[Mapping[Any, Callable[..., Any]]] = {
    F.dropout: _dropout,
    torch.dropout: _torch_dropout,
    F.dropout1d: _channels(1),
    F.dropout2d: _channels(2),
    F.dropout3d: _channels(3),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _inside(F.multi_head_attention_forward),
}
