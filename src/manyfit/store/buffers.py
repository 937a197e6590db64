"""Reusable memory for states that are waiting to be written."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manyfit.core.state import State


class Buffers:
    """A pool of memory for copies of states. A copy is given back when it is no longer needed."""

    def __init__(self) -> None:
        self._free: list[dict[str, Any]] = []

    def copy(self, state: State) -> State:
        """Copy a state, so that training can continue; into previously used memory, if it fits."""
        found = self._take({name: (tuple(tensor.shape), tensor) for name, tensor in state.tensors.items()})
        for name, tensor in state.tensors.items():
            found[name].copy_(tensor.detach(), non_blocking=True)
        _wait_for(state.tensors.values())
        return State(found, copy.deepcopy(state.values))

    def stack(self, states: Sequence[State]) -> StackedCopy:
        """Copy states of the same form into one memory with a row for each, which is given back by itself."""
        import torch

        first, count = states[0].tensors, len(states)
        memory = self._take({name: ((count, *tensor.shape), tensor) for name, tensor in first.items()}, True)
        found = {name: tensor[:count] for name, tensor in memory.items()}
        with torch.no_grad():
            for name, tensor in first.items():
                rows = [state.tensors[name] for state in states]
                if tensor.device.type == "cpu":
                    torch.stack(rows, out=found[name])
                else:
                    found[name].copy_(torch.stack(rows), non_blocking=True)
        _wait_for(first.values())
        stacked = StackedCopy(found, [copy.deepcopy(state.values) for state in states])
        weakref.finalize(stacked, self._free.append, memory)
        return stacked

    def give_back(self, state: State) -> None:
        """Make the memory of a copy available again."""
        self._free.append(dict(state.tensors))

    def _take(
        self, wanted: Mapping[str, tuple[tuple[int, ...], Any]], may_be_longer: bool = False
    ) -> dict[str, Any]:
        """Return memory for tensors of these shapes, like the tensors that are given; or with more rows."""
        for number, each in enumerate(self._free):
            if _fits(each, wanted, may_be_longer):
                return self._free.pop(number)
        self._free.clear()  # different shapes: they will not be needed again
        return {name: _make(shape, tensor) for name, (shape, tensor) in wanted.items()}


class StackedCopy:
    """Copies of states of the same form. Its memory is reused once nothing refers to this object."""

    def __init__(self, tensors: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> None:
        self.tensors = tensors
        """Each has a row for every state."""
        self.values = values

    def state(self, row: int) -> State:
        """Return one of the states, in the memory of this object."""
        return State({name: tensor[row] for name, tensor in self.tensors.items()}, self.values[row])

    def select(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the tensors with some of the rows only."""
        if list(rows) == list(range(len(self.values))):
            return dict(self.tensors)
        return {name: tensor[list(rows)] for name, tensor in self.tensors.items()}


def separate(state: State) -> State:
    """Return the same state with tensors that can be serialized: contiguous, and without shared memory."""
    import torch

    form = torch.contiguous_format
    own = {name: tensor.detach().cpu().clone(memory_format=form) for name, tensor in state.tensors.items()}
    return State(own, state.values)


def _make(shape: tuple[int, ...], like: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=like.dtype, device="cpu", pin_memory=like.device.type == "cuda")


def _fits(
    buffer: dict[str, Any], wanted: Mapping[str, tuple[tuple[int, ...], Any]], may_be_longer: bool
) -> bool:
    return buffer.keys() == wanted.keys() and all(
        buffer[name].dtype == tensor.dtype and _holds(tuple(buffer[name].shape), shape, may_be_longer)
        for name, (shape, tensor) in wanted.items()
    )


def _holds(own: tuple[int, ...], shape: tuple[int, ...], may_be_longer: bool) -> bool:
    return own == shape or (may_be_longer and own[1:] == shape[1:] and own[:1] >= shape[:1])


def _wait_for(tensors: Iterable[Any]) -> None:
    """Wait until copies from the devices of tensors have arrived."""
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        import torch

        torch.accelerator.synchronize(device)
