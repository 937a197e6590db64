"""Metrics that have a value for each row; the metric of a split is their mean.

A metric is a function of (output, target), both with a leading dimension of rows, that returns one number
for each row. A user's own metric is the same.
"""

from __future__ import annotations

from torch import Tensor


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """1 where the class with the highest score is the target."""
    if output.ndim > 1 and output.shape[1] == 1:
        raise ValueError("accuracy needs a score for each class, but there is only one; see binary_accuracy")
    return (
        (output.argmax(dim=1) == target).flatten(1).all(dim=1)
        if target.ndim > 1
        else output.argmax(dim=1) == target
    )


def top_k_accuracy(output: Tensor, target: Tensor, k: int = 5) -> Tensor:
    """1 where the target is among the k classes with the highest scores."""
    return (output.topk(k, dim=1).indices == target[:, None]).any(dim=1)


def binary_accuracy(output: Tensor, target: Tensor, threshold: float = 0.0) -> Tensor:
    """1 where the score is above the threshold (0 for logits) exactly when the target is."""
    output, target = aligned(output, target)
    agree = (output > threshold) == (target > 0.5)
    return agree.flatten(1).float().mean(dim=1) if agree.ndim > 1 else agree


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The absolute difference, averaged within a row."""
    output, target = aligned(output, target)
    return (output - target).abs().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).abs()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared difference, averaged within a row."""
    output, target = aligned(output, target)
    return (
        (output - target).square().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).square()
    )


def aligned(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A column of single numbers fits a list of them, on either side; nothing else is stretched."""
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    elif target.ndim == output.ndim + 1 and target.shape[-1] == 1:
        target = target.squeeze(-1)
    if output.shape != target.shape:
        shapes = f"{tuple(output.shape)} and {tuple(target.shape)}"
        raise ValueError(f"output and target must have the same shape, but have {shapes}")
    return output, target
