"""Metrics with one value per row; the metric of a split is their mean.

A metric is a function of (output, target), both with a leading dimension of rows, that returns one number
per row. Custom metrics have the same signature.
"""

from __future__ import annotations

from torch import Tensor


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of each row's elements (the row itself, its pixels or its tokens) that are correct.

    Outputs are class scores along dimension 1, or class indices; targets are class indices, or one-hot.
    Elements whose target is not a class (-100, or 255 with fewer classes) are ignored.
    """
    classes = 0
    if not output.is_floating_point():
        found = output
    elif output.ndim < 2:
        raise ValueError(
            "accuracy needs class scores, but the output is one number per row; see binary_accuracy"
        )
    elif output.shape[1] == 1:
        raise ValueError(
            "accuracy needs one score per class, but the output has only one; see binary_accuracy"
        )
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
    """Return 1 for each row whose target is among the k classes with the highest scores."""
    return (output.topk(k, dim=1).indices == target[:, None]).any(dim=1)


def binary_accuracy(output: Tensor, target: Tensor, threshold: float = 0.0) -> Tensor:
    """Return 1 where score > threshold (0 for logits) agrees with target > 0.5, averaged within a row."""
    output, target = align(output, target)
    agree = (output > threshold) == (target > 0.5)
    return agree.flatten(1).float().mean(dim=1) if agree.ndim > 1 else agree


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the absolute error, averaged within a row."""
    output, target = align(output, target)
    return (output - target).abs().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).abs()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error, averaged within a row."""
    output, target = align(output, target)
    return (
        (output - target).square().flatten(1).mean(dim=1) if output.ndim > 1 else (output - target).square()
    )


def align(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Drop a trailing dimension of 1 that only one of the two has; nothing else is broadcast."""
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    elif target.ndim == output.ndim + 1 and target.shape[-1] == 1:
        target = target.squeeze(-1)
    if output.shape != target.shape:
        shapes = f"{tuple(output.shape)} and {tuple(target.shape)}"
        raise ValueError(f"output and target must have the same shape, but have {shapes}")
    return output, target
