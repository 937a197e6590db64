"""Per-row losses: the training loss before reduction."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def rowwise(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of (output, target) that returns one loss per row.

    A loss with a `reduction` is called with `reduction="none"`, and a row with many values is averaged, or
    summed where the loss sums. Any other loss is called for each row separately. Class weights scale each
    row, but the mean over rows is not divided by their sum, as a weighted torch loss does for a batch.
    """
    inside = _sum_inside if reduction_of(loss) in ("sum", "batchmean") else _mean_inside
    if isinstance(loss, nn.Module) and reduction_of(loss):
        alone: Any = copy.copy(loss)
        alone.reduction = "none"
        return lambda output, target: inside(alone(output, target))
    if not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        plain = functools.partial(loss, reduction="none")
        return lambda output, target: inside(plain(output, target))
    return lambda output, target: torch.stack(
        [loss(output[i : i + 1], target[i : i + 1]) for i in range(len(output))]
    ).reshape(len(output))


def is_separable(loss: Callable[..., Tensor]) -> bool:
    """Return whether a loss can be computed without reduction."""
    return bool(reduction_of(loss)) if isinstance(loss, nn.Module) else "reduction" in _parameters(loss)


def reduction_of(loss: Callable[..., Tensor]) -> str:
    """Return the reduction of a loss: mean, sum or batchmean; empty if unknown."""
    if isinstance(loss, nn.Module):
        found = getattr(loss, "reduction", "")
    else:
        found = getattr(loss, "keywords", {}).get("reduction", "")
    return found if isinstance(found, str) else ""


def _mean_inside(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses


def _sum_inside(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(dim=1) if losses.ndim > 1 else losses


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}
