"""The arguments and the return value of a model's own `train_step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data import Batch


def to_device(batch: Batch, tensor: Callable[[Any], Tensor]) -> Batch:
    """Return a batch whose arrays are tensors on the device, converted by `tensor`."""
    inputs = batch.inputs
    return Batch(
        {name: tensor(array) for name, array in inputs.items()}
        if isinstance(inputs, dict)
        else tuple(map(tensor, inputs))
        if isinstance(inputs, tuple)
        else tensor(inputs),
        None if batch.target is None else tensor(batch.target),
        batch.index,
        None if batch.weight is None else tensor(batch.weight),
    )


def split_losses(returned: Any, model: str, device: torch.device) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the total loss, or None, and further losses by name, from what `train_step` returned."""
    if returned is None:
        return None, {}
    if isinstance(returned, Mapping) and returned:
        named = {str(name): _single(each, model, device) for name, each in returned.items()}
        total = named.pop("loss", None)
        return (torch.stack(list(named.values())).sum() if total is None else total), named
    return _single(returned, model, device), {}


def _single(loss: Any, model: str, device: torch.device) -> Tensor:
    if isinstance(loss, int | float):
        return torch.tensor(float(loss), device=device)
    if not (isinstance(loss, Tensor) and loss.ndim == 0):
        raise RunFailed(
            f"{model}.train_step must return a loss (a tensor with one number), losses by name, or None, "
            f"not {loss!r:.60}"
        )
    return loss.detach()
