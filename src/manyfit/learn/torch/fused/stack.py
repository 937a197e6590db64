"""Tensors of several modules in one memory, of which each module has a view.

A module of a group therefore has its current weights: for a checkpoint, an evaluation, or training alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Set = Callable[[Tensor], None]
"""Gives a module another tensor in place of its own."""


def stack_tensors(each: Sequence[tuple[Tensor, Set]], rows: Sequence[int]) -> Tensor:
    """Return tensors as one, of shape (rows, ...), and give each owner its part.

    `rows` has the number of the owner of each row; an owner of several rows gets the first.
    """
    stacked = torch.stack([each[owner][0].detach() for owner in rows]).contiguous()
    for owner, (_, put) in enumerate(each):
        put(stacked[list(rows).index(owner)])
    return stacked


def parameters_of(module: nn.Module) -> dict[str, tuple[Tensor, Set]]:
    """Return each parameter once, with a function that changes its memory."""

    def setter(parameter: nn.Parameter) -> Set:
        def put(tensor: Tensor) -> None:
            parameter.data = tensor

        return put

    return {name: (parameter, setter(parameter)) for name, parameter in module.named_parameters()}


def buffers_of(module: nn.Module) -> dict[str, tuple[Tensor, Set]]:
    """Return each buffer once, with a function that replaces it wherever it is used."""
    found: dict[str, tuple[Tensor, Set]] = {}
    for name, buffer in module.named_buffers():
        places = [
            (part._buffers, key)
            for part in module.modules() for key, value in part._buffers.items() if value is buffer
        ]  # fmt: skip

        def put(tensor: Tensor, places: Sequence[tuple[dict[str, Any], str]] = places) -> None:
            for where, key in places:
                where[key] = tensor

        found[name] = (buffer, put)
    return found


def stack_modules(
    modules: Sequence[nn.Module], rows: Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the stacked parameters and buffers of modules of the same structure, by name."""
    found = []
    for tensors in (parameters_of, buffers_of):
        each = [tensors(module) for module in modules]
        found.append({name: stack_tensors([own[name] for own in each], rows) for name in each[0]})
    return found[0], found[1]


def row(state: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the tensors of one run."""
    return {name: tensor[number] for name, tensor in state.items()}


def pairs(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield tensors of the same name."""
    for name, tensor in left.items():
        yield name, tensor, right[name]
