"""Convolutions of several runs at once, as matrix products.

Convolutions of stacked weights have a group of channels for each run, which cuDNN computes one after another,
or with kernels for other shapes. If the windows of their inputs are few enough to be written out, one product
with a matrix for each run is faster. This depends on shapes alone, not on measured times, so that a run that
is resumed has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST: Final = 1 << 28
"""The most bytes of the windows of an input."""
MOST_TAPS: Final = 25
"""The most weights between two channels."""
FEWEST_CHANNELS: Final = 4
MOST_CHANNELS: Final = 32
"""How many channels of a group are computed: few are left to cuDNN, and many, which fill tensor cores."""


def multiply_convolutions(device: torch.device, runs: int) -> Mapping[Any, Callable[..., Any]]:
    """Return how convolutions of several runs are computed on this device, by operation, for tracing."""
    if device.type != "cuda" or runs == 1:
        return {}
    aten = torch.ops.aten
    return {aten.convolution.default: convolve, aten.convolution_backward.default: differentiate}


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, more: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """Return what `aten.convolution` does."""
    if not _is_product(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented
    windows, size = _list_windows(x, weight, padding, groups)
    found = weight.reshape(groups, -1, windows.shape[1]) @ windows
    found = found.view(groups, -1, len(x), *size).permute(2, 0, 1, 3, 4).reshape(len(x), len(weight), *size)
    found = found if bias is None else found + bias[:, None, None]
    return found.contiguous()  # as models may take views of it


def differentiate(
    ahead: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, more: Sequence[int], groups: int,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Return what `aten.convolution_backward` does: the gradients of the input, the weight and the bias."""
    if not _is_product(x, weight, stride, padding, dilation, transposed, groups):
        return NotImplemented
    rows, height, width = len(x), *ahead.shape[2:]
    apart = ahead.reshape(rows, groups, -1, height * width).permute(1, 2, 0, 3)
    apart = apart.reshape(groups, -1, rows * height * width)
    to_x, to_weight, to_bias = None, None, None
    if mask[0]:
        each = weight.reshape(groups, apart.shape[1], -1).transpose(1, 2).contiguous() @ apart
        to_x = _add_windows(each.view(-1, *weight.shape[2:], rows, height, width), x, padding)
    if mask[1]:
        windows, _ = _list_windows(x, weight, padding, groups)
        to_weight = (apart @ windows.transpose(1, 2)).view(weight.shape)
    if mask[2]:
        to_bias = ahead.sum((0, 2, 3))
    return to_x, to_weight, to_bias


def _is_product(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, groups: int,
) -> bool:  # fmt: skip
    """Return whether a convolution is computed as a product."""
    is_simple = weight.ndim == 4 and not transposed and {*stride, *dilation} == {1}
    if not is_simple or groups == 1 or x.dtype != torch.float32 or math.prod(weight.shape[2:]) > MOST_TAPS:
        return False
    places = zip(x.shape[2:], _make_pair(padding), weight.shape[2:], strict=True)
    sizes = [size + 2 * more - kernel + 1 for size, more, kernel in places]
    size = len(x) * groups * math.prod(weight.shape[1:]) * math.prod(sizes) * x.itemsize
    return FEWEST_CHANNELS <= len(weight) // groups <= MOST_CHANNELS and size <= LARGEST


def _make_pair(values: Sequence[int]) -> Sequence[int]:
    """Return a number for height and one for width; one alone is that of both."""
    return values if len(values) == 2 else [values[0], values[0]]


def _list_windows(
    x: Tensor, weight: Tensor, padding: Sequence[int], groups: int
) -> tuple[Tensor, Sequence[int]]:
    """Return what each result is computed from, of shape (groups, weights, rows x places), and the places."""
    above, left = _make_pair(padding)
    if above or left:
        x = pad(x, (left, left, above, above))
    height, width = weight.shape[2:]
    found = x.reshape(len(x), groups, -1, *x.shape[2:]).unfold(3, height, 1).unfold(4, width, 1)
    size = found.shape[3:5]
    return found.permute(1, 2, 5, 6, 0, 3, 4).reshape(groups, weight[0].numel(), -1), size


def _add_windows(each: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Return the sums of what belongs to the same place of `x`.

    `each` has shape (channels, height and width of the weight, rows, height and width of the result).
    """
    height, width = each.shape[1:3]
    found = torch.zeros((), dtype=each.dtype, device=each.device)
    for i in range(height):
        for j in range(width):
            found = found + pad(each[:, i, j], (j, width - 1 - j, i, height - 1 - i))
    above, left = _make_pair(padding)
    found = found[..., above : above + x.shape[2], left : left + x.shape[3]]
    return found.transpose(0, 1).contiguous()
