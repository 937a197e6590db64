"""Losses row by row: the same loss that trains, without its last averaging."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def rowwise(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of (output, target) that gives one loss for each row.

    A loss with a `reduction` is called with none. Any other is called for each row alone.
    """
    if isinstance(loss, nn.Module) and isinstance(getattr(loss, "reduction", None), str):
        alone: Any = copy.copy(loss)
        alone.reduction = "none"
        return lambda output, target: _mean_inside(alone(output, target))
    if not isinstance(loss, nn.Module) and "reduction" in _parameters(loss):
        return lambda output, target: _mean_inside(functools.partial(loss, reduction="none")(output, target))
    return lambda output, target: torch.stack(
        [loss(output[i : i + 1], target[i : i + 1]) for i in range(len(output))]
    ).reshape(len(output))


def _mean_inside(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}
