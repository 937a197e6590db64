"""The modules of an object that is trained without a model, as one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


class Networks(nn.Module):
    """Several networks, by the names of the attributes that hold them."""

    owner: Any

    def __init__(self, owner: Any, networks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        object.__setattr__(self, "owner", owner)
        for name, network in networks.items():
            self.add_module(name.replace(".", "_"), network)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the predictions of the owner, if it has a function for them."""
        predict = getattr(self.owner, "predict_step", None) or getattr(self.owner, "forward", None)
        if predict is None:
            names = ", ".join(name for name, _ in self.named_children())
            raise TypeError(f"{type(self.owner).__name__} has no forward; call one of its networks: {names}")
        return predict(*inputs, **named)


def networks_of(owner: Any) -> Networks:
    """Return the networks in the attributes of an object, also in lists and dicts there."""
    found: dict[str, nn.Module] = {}

    def search(value: Any, name: str) -> None:
        if isinstance(value, nn.Module):
            if not any(value is each for each in found.values()):
                found[name] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                search(item, f"{name}.{key}")
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                search(item, f"{name}.{i}")

    for name, value in vars(owner).items():
        if name != "loss" and not name.startswith("__"):
            search(value, name)
    inside = {id(part) for each in found.values() for part in each.modules() if part is not each}
    return Networks(owner, {name: each for name, each in found.items() if id(each) not in inside})
