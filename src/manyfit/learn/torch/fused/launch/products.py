"""Matrix products that leave most of a GPU idle: small results of long sums.

Such a product is computed in parts, side by side, whose sum is fused with what follows when it is compiled.
Into how many parts depends on shapes alone, not on measured times, so that a run that is resumed has the same
bits.
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


def divide_products(device: torch.device) -> Mapping[Any, Callable[..., Any]]:
    """Return how products are computed in parts on this device, by operation, for tracing."""
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

    return {torch.ops.aten.mm.default: mm, torch.ops.aten.addmm.default: addmm}


def _multiply(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """Return the product of two matrices as a sum of products."""
    left = a.reshape(len(a), parts, -1).transpose(0, 1)
    return torch.bmm(left, b.reshape(parts, -1, b.shape[1])).sum(0)
