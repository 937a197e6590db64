"""Memory for states that wait to be written: allocated once, then copied into again and again."""

from __future__ import annotations

import copy
from typing import Any

from manyfit.core.state import State


class Buffers:
    """Copies states into memory of its own. A copy is given back when it is no longer needed."""

    def __init__(self) -> None:
        self._free: list[dict[str, Any]] = []

    def copy(self, state: State) -> State:
        """Copy a state, so that training can go on; into memory that was used before, where it fits."""
        found = next((each for each in self._free if _fits(each, state)), None)
        if found is None:
            self._free.clear()  # of another shape: it will not be needed again
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
        """Use the memory of a copy again."""
        self._free.append(dict(state.tensors))


def separate(state: State) -> State:
    """The same state with tensors that can be written at once: each lies in order, in memory of its own."""
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
