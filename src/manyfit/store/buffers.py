"""Reusable memory for states that are waiting to be written."""

from __future__ import annotations

import copy
from typing import Any

from manyfit.core.state import State


class Buffers:
    """A pool of memory for copies of states. A copy is given back when it is no longer needed."""

    def __init__(self) -> None:
        self._free: list[dict[str, Any]] = []

    def copy(self, state: State) -> State:
        """Copy a state, so that training can continue; into previously used memory, if it fits."""
        found = next((each for each in self._free if _fits(each, state)), None)
        if found is None:
            self._free.clear()  # different shapes: they will not be needed again
            found = {name: _like(tensor) for name, tensor in state.tensors.items()}
        else:
            self._free = [each for each in self._free if each is not found]
        devices = set()
        for name, tensor in state.tensors.items():
            found[name].copy_(tensor.detach(), non_blocking=True)
            devices |= {tensor.device} if tensor.device.type != "cpu" else set()
        for device in devices:
            import torch

            torch.accelerator.synchronize(device)
        return State(found, copy.deepcopy(state.values))

    def give_back(self, state: State) -> None:
        """Make the memory of a copy available again."""
        self._free.append(dict(state.tensors))


def separate(state: State) -> State:
    """Return the same state with tensors that can be serialized: contiguous, and without shared memory."""
    import torch

    form = torch.contiguous_format
    own = {name: tensor.detach().cpu().clone(memory_format=form) for name, tensor in state.tensors.items()}
    return State(own, state.values)


def _like(tensor: Any) -> Any:
    import torch

    return torch.empty(
        tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda"
    )


def _fits(buffer: dict[str, Any], state: State) -> bool:
    return buffer.keys() == state.tensors.keys() and all(
        buffer[name].shape == tensor.shape and buffer[name].dtype == tensor.dtype
        for name, tensor in state.tensors.items()
    )
