"""What functions receive and return: batches on the device, and a loss, losses by name, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data import Batch
from manyfit.data.nested import map_arrays


def to_device(batch: Batch, tensor: Callable[[Any], Tensor]) -> Batch:
    """Return a batch whose arrays are tensors on the device, converted by `tensor`."""
    inputs, target, weight = batch.inputs, batch.target, batch.weight
    return Batch(
        map_arrays(tensor, inputs) if isinstance(inputs, dict | tuple) else tensor(inputs),
        tensor(target) if isinstance(target, np.ndarray | Tensor) else map_arrays(tensor, target),
        batch.index,
        None if weight is None else tensor(weight),
    )


def as_written(batch: Batch) -> Any:
    """Return a batch as a loader of PyTorch has it: a dict, an input, or (input, target) and a weight."""
    inputs = batch.inputs
    if isinstance(inputs, dict) and (batch.target is None or "target" in inputs):
        return inputs if batch.weight is None else {**inputs, "weight": batch.weight}
    if batch.target is None:
        return inputs
    return (inputs, batch.target) if batch.weight is None else (inputs, batch.target, batch.weight)


class ReadKeys(dict[str, Any]):
    """A batch that notes which of its keys are read."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        super().__init__(batch)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and note that it was read."""
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a value, and note that it was read."""
        self.read.add(key)
        return super().pop(key, *default)

    def items(self) -> Any:
        """Return all values, and note that they were read."""
        self.read.update(self)
        return super().items()

    def values(self) -> Any:
        """Return all values, and note that they were read."""
        self.read.update(self)
        return super().values()

    def __iter__(self) -> Iterator[str]:  # so that `**batch` asks for the values one by one
        return super().__iter__()


def from_written(written: Any, index: Any) -> Batch:
    """Return a batch that `as_written` has returned, possibly changed since."""
    if isinstance(written, Mapping):
        columns = dict(written)
        weight = columns.pop("weight", None)
        return Batch(columns, columns.get("target"), index, weight)
    if isinstance(written, tuple | list):
        inputs, target, weight = (*written, None, None)[:3]
        return Batch(inputs, target, index, weight)
    return Batch(written, None, index)


def read_losses(returned: Any, where: str, device: torch.device) -> dict[str, Tensor]:
    """Return the losses by name, from what a function returned; the total is named `loss`."""
    if returned is None:
        return {}
    if isinstance(returned, Tensor):
        return {"loss": to_number(returned, where, device)}
    if isinstance(returned, dict | Mapping) and returned:
        named = {str(name): to_number(each, where, device) for name, each in returned.items()}
        if "loss" not in named:
            total, *rest = named.values()
            for each in rest:
                total = total + each
            named["loss"] = total
        return named
    return {"loss": to_number(returned, where, device)}


def to_number(loss: Any, where: str, device: torch.device) -> Tensor:
    """Return one number as a tensor; errors name the function that returned something else."""
    if isinstance(loss, Tensor) and not loss.ndim:
        return loss.detach()
    if isinstance(loss, int | float):
        return torch.tensor(float(loss), device=device)
    if hasattr(loss, "item") and not isinstance(loss, Tensor) and getattr(loss, "size", 0) == 1:
        return torch.tensor(float(loss.item()), device=device)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(())
    raise RunFailed(
        f"{where} must return a loss (a tensor with one number), losses by name, or None, not {loss!r:.60}"
    )
