"""What is probably wrong with the arguments of a loss, for error messages."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def describe_array(array: Any) -> str:
    """Return the dtype and shape of an array or a tensor, for messages."""
    dtype = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    return f"{dtype}{list(getattr(array, 'shape', []))}"


def class_hint(output: Tensor, target: Tensor, ignored: int | None = None) -> str:
    """Return what is wrong with targets that are class indices outside the outputs; empty if nothing is."""
    if output.ndim != target.ndim + 1 or target.is_floating_point() or output.shape[1] < 2:
        return ""
    counted = target if ignored is None else target[target != ignored]
    if not counted.numel():
        return ""
    low, high = int(counted.min()), int(counted.max())
    if low >= 0 and high < output.shape[1]:
        return ""
    return f"the model has {output.shape[1]} outputs, but targets range from {low} to {high}: see model"


def loss_hint(output: Tensor, target: Tensor) -> str:
    """Return what is probably wrong with the arguments of a loss; empty if unknown."""
    is_classes = output.ndim == target.ndim + 1
    if is_classes and target.is_floating_point() and not target.frac().any():
        return "class indices must be integers: provide the target as int64"
    if hint := class_hint(output, target):
        return hint
    if not is_classes and output.ndim == target.ndim and target.dtype != output.dtype:
        return f"provide the target as {str(output.dtype).removeprefix('torch.')}"
    return ""
