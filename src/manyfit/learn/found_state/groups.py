"""Parameter groups that training adds to an optimizer, for example when it unfreezes a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer


class Groups:
    """The parameter groups of optimizers: what they were when they were made, and what they are now."""

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._made = {path: _read(each) for path, each in optimizers.items()}

    def read(
        self, optimizers: Mapping[str, Optimizer], named: Mapping[str, Tensor]
    ) -> dict[str, list[list[str]]]:
        """Return the parameters of all groups, by name, of each optimizer whose groups have changed."""
        names = {id(parameter): name for name, parameter in named.items()}
        found = {}
        for path, each in optimizers.items():
            groups = _read(each)
            if self.is_changed(path, each) and all(id(p) in names for group in groups for p in group):
                found[path] = [[names[id(parameter)] for parameter in group] for group in groups]
        return found

    def load(
        self,
        optimizers: Mapping[str, Optimizer],
        saved: Mapping[str, Sequence[Sequence[str]]],
        named: Mapping[str, Tensor],
    ) -> None:
        """Set the groups that were read, and those that the optimizers were made with elsewhere."""
        for path, each in optimizers.items():
            if path in saved:
                _set(each, [[named[name] for name in group] for group in saved[path]])
            elif self.is_changed(path, each):
                _set(each, self._made[path])

    def is_changed(self, path: str, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has other parameters, or other groups, than it was made with."""
        if path not in self._made:
            return False
        return _identify(_read(optimizer)) != _identify(self._made[path])


def _read(optimizer: Optimizer) -> list[list[Tensor]]:
    return [list(group["params"]) for group in optimizer.param_groups]


def _identify(groups: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group] for group in groups]


def _set(optimizer: Optimizer, wanted: Sequence[Sequence[Tensor]]) -> None:
    """Set the parameters of all groups; the options of new ones are loaded with the optimizer's state."""
    groups = optimizer.param_groups
    del groups[len(wanted) :]
    groups += [{**optimizer.defaults, "params": []} for _ in range(len(wanted) - len(groups))]
    for group, parameters in zip(groups, wanted, strict=True):
        group["params"] = list(parameters)
