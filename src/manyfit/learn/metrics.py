"""Metrics that have a value for each row; the metric of a split is their mean.

A metric is a function of (output, target), both with a leading dimension of rows, that returns one number
for each row. A user's own metric is the same.
"""

from __future__ import annotations

from torch import Tensor


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of a row's elements whose class is the target: a row has one, or one for each pixel or token.

    Outputs are scores of classes, along dimension 1, or classes; targets are classes, or one-hot. Elements
    whose target is no class (-100, or 255 among fewer classes) do not count.
    """
    classes = 0
    if not output.is_floating_point():
        found = output
    elif output.ndim < 2:
        raise ValueError("accuracy needs scores of classes, but there is one number; see binary_accuracy")
    elif output.shape[1] == 1:
        raise ValueError("accuracy needs a score for each class, but there is only one; see binary_accuracy")
    else:
        found, classes = output.argmax(dim=1), output.shape[1]
        if target.is_floating_point() and target.shape == output.shape:
            target = target.argmax(dim=1)
    if found.shape != target.shape:
        raise ValueError(
            f"accuracy compares classes of shape {tuple(found.shape)} with targets of shape "
            f"{tuple(target.shape)}"
        )
    hits = found == target
    if target.ndim < 2:
        return hits
    counts = (target >= 0) & (target < classes) if classes else target >= 0
    return (hits & counts).flatten(1).sum(dim=1) / counts.flatten(1).sum(dim=1)


def top_k_accuracy(output: Tensor, target: Tensor, k: int = 5) -> Tensor:
    """1 where the target is among the k classes with the highest scores."""
    return (output.topk(k, dim=1).indices == target[:, None]).any(dim=1)


def binary_accuracy(output: Tensor, target: Tensor, threshold: float = 0.0) -> Tensor:
    """1 where the score is above the threshold (0 for logits) exactly when the target is."""
    output, target = align(output, target)
    agree = (output > threshold) == (target > 0.5)
    return agree.flatten(1).float().mean(dim=1) if agree.ndim > 1 else agree


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The absolute difference, averaged within a row."""
    output, target = align(output, target)
    return (output - target).abs().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).abs()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared difference, averaged within a row."""
    output, target = align(output, target)
    return (
        (output - target).square().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).square()
    )


def align(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A column of single numbers fits a list of them, on either side; nothing else is stretched."""
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    elif target.ndim == output.ndim + 1 and target.shape[-1] == 1:
        target = target.squeeze(-1)
    if output.shape != target.shape:
        shapes = f"{tuple(output.shape)} and {tuple(target.shape)}"
        raise ValueError(f"output and target must have the same shape, but have {shapes}")
    return output, target
