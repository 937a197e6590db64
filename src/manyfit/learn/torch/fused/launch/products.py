"""Matrix products that are computed in another way than they are written, as it is faster on a GPU.

- Small results of long sums leave most of it idle: they are computed in parts, side by side, whose sum is
  fused with what follows when it is compiled.
- Gradients of stacked weights are computed as the transposed product: the result has the layout of the
  weights, which the optimizer reads with it.
- The product of a small batch that all runs share with the weights of each is one product with all of them.

This depends on shapes alone, not on measured times, so that a run that is resumed has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

TILE: Final = 32
"""The rows and columns of a result that a multiprocessor computes at once, when the result is small."""
LEAST: Final = 64
"""The shortest sum that is divided."""
SHORTEST: Final = 15
"""The shortest sum of a part."""
PARTS: Final = (16, 8, 4, 2)


def count_parts(rows: int, columns: int, length: int, processors: int) -> int:
    """Return into how many parts the sums of a product are divided; 1 if they stay whole."""
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE)
    for parts in PARTS:
        if tiles * parts <= 2 * processors and length % parts == 0 and length // parts >= SHORTEST:
            return parts if length >= LEAST else 1
    return 1


def replace_products(device: torch.device, runs: int) -> Mapping[Any, Callable[..., Any]]:
    """Return how products are computed on this device, by operation, for tracing; `runs` are stacked."""
    if device.type != "cuda":
        return {}
    processors = torch.cuda.get_device_properties(device).multi_processor_count

    def count(a: Tensor, b: Tensor) -> int:
        if a.dtype != torch.float32:  # the parts would be rounded
            return 1
        return count_parts(len(a), b.shape[1], len(b), processors)

    def mm(a: Tensor, b: Tensor) -> Any:
        parts = count(a, b)
        return NotImplemented if parts == 1 else _multiply(a, b, parts)

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        parts = count(a, b)
        if parts == 1 or (beta, alpha) != (1, 1):
            return NotImplemented
        return bias + _multiply(a, b, parts)

    aten = torch.ops.aten
    return {aten.mm.default: mm, aten.addmm.default: addmm, aten.bmm.default: _StackedProduct(runs)}


class _StackedProduct:
    """A product for each run."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._is_inside = False

    def __call__(self, a: Tensor, b: Tensor) -> Any:
        if self._is_inside or len(a) != self._runs or self._runs == 1:
            return NotImplemented
        if _is_shared(a, b):
            every = b.transpose(1, 2).reshape(-1, b.shape[1])
            return (a[0] @ every.t()).view(a.shape[1], self._runs, -1).transpose(0, 1).contiguous()
        if not _is_gradient(a, b):
            return NotImplemented
        self._is_inside = True  # the transposed product is not to be transposed again
        try:
            found = torch.bmm(b.transpose(1, 2), a.transpose(1, 2))
            return found.transpose(1, 2).contiguous()  # compiled, this is an index, not a copy
        finally:
            self._is_inside = False


def _is_shared(a: Tensor, b: Tensor) -> bool:
    """Return whether a small batch of all runs is multiplied with weights that lie below each other."""
    _, length, columns = b.shape
    return a.stride(0) == 0 and a.shape[1] <= length and b.stride() == (length * columns, 1, length)


def _is_gradient(a: Tensor, b: Tensor) -> bool:
    """Return whether a transposed batch is multiplied with gradients."""
    return a.stride(1) == 1 and a.stride(2) >= a.shape[1] and b.stride(2) == 1


def _multiply(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """Return the product of two matrices as a sum of products."""
    left = a.reshape(len(a), parts, -1).transpose(0, 1)
    return torch.bmm(left, b.reshape(parts, -1, b.shape[1])).sum(0)
