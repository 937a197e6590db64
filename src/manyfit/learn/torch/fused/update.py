"""From stacked gradients to new weights: clipping, and the optimizer with its state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyfit.learn.fusing import NotFusable
from manyfit.learn.torch.fused.factors import Counts, Factors, FactorTable, StepFactors
from manyfit.learn.torch.fused.optimizers import STACKED, Slots, StackedAdam, StackedOptimizer
from manyfit.learn.torch.fused.options import OptionTable, StepOptions, Vectors, read_option
from manyfit.learn.torch.fused.stack import stack_tensors
from manyfit.learn.torch.learner import TorchLearner


@dataclass
class StackedLeaf:
    """A stacked parameter and the state of its optimizer."""

    name: str
    tensor: Tensor
    owners: Sequence[tuple[torch.optim.Optimizer, torch.nn.Parameter]]
    """The optimizer and the parameter of each run."""
    slots: Slots = field(default_factory=dict)
    count: Counts | None = None
    """Steps so far, by row; None if the optimizer does not count, or before the first step."""
    steps: Tensor | None = None
    """The same, as the runs' optimizers have it."""
    shared: set[str] = field(default_factory=set)
    """The state that the runs' optimizers have views of."""


@dataclass
class FactorField:
    """Parameters that have the same factors in every step."""

    group: int
    rule: StackedOptimizer
    leaf: StackedLeaf
    """One of them."""
    names: list[str] = field(default_factory=list)


class StackedUpdate:
    """The updates of the runs of a group; each run's own optimizer sees its state."""

    def __init__(
        self, runs: Sequence[TorchLearner], rows: Sequence[int], parameters: Mapping[str, Tensor]
    ) -> None:
        """`rows` has the number of the run of each row of the stacked `parameters`."""
        self.runs, self._rows = list(runs), list(rows)
        self._optimizers = [next(iter(run.update.optimizers.values())) for run in runs]
        rule, first = STACKED[type(self._optimizers[0])], self._optimizers[0]
        self.numbers = rule.numbers
        named = [dict(run.module.named_parameters()) for run in runs]
        names = {id(parameter): name for name, parameter in named[0].items()}
        self._groups: list[tuple[StackedOptimizer, list[StackedLeaf]]] = []
        for group in first.param_groups:
            flags = {flag: group.get(flag, False) for flag in rule.flags}
            flags |= {name: bool(read_option(group, name)) for name in rule.switches}
            leaves = []
            for parameter in group["params"]:
                name = names[id(parameter)]
                owners = [(o, own[name]) for o, own in zip(self._optimizers, named, strict=True)]
                leaves.append(self._open(StackedLeaf(name, parameters[name], owners)))
            self._groups.append((rule(flags), leaves))
        for optimizer in self._optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # schedules warn without a step before
        self._by_run: dict[str, list[list[Any]]] = {}
        self._factors = FactorTable()
        self._limits: dict[tuple[object, ...], Tensor] = {}
        self._clip_norm = self._vector([run.update.clip_norm for run in runs])
        self._clip_value = self._vector([run.update.clip_value for run in runs])

    def _vector(self, values: Sequence[float | None]) -> npt.NDArray[np.float64] | None:
        known = [value for value in values if value is not None]
        return np.array([known[owner] for owner in self._rows], dtype=np.float64) if known else None

    def _open(self, leaf: StackedLeaf) -> StackedLeaf:
        """Move the state that the runs' optimizers have into one memory."""
        states = [optimizer.state.get(parameter, {}) for optimizer, parameter in leaf.owners]
        for key in [key for key, value in states[0].items() if isinstance(value, Tensor)]:
            stacked = stack_tensors([(state[key], _setter(state, key)) for state in states], self._rows)
            leaf.shared.add(key)
            if key == "step":
                leaf.steps, leaf.count = stacked, stacked.double().cpu().numpy().copy()
            else:
                leaf.slots[key] = stacked
        return leaf

    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None], options: StepOptions
    ) -> None:
        """Change the parameters that have a gradient."""
        for (rule, every), numbers in zip(self._groups, options.groups, strict=True):
            self._check_switches(rule, numbers)
            for leaf in every:
                if gradients.get(leaf.name) is not None:
                    self._begin(rule, leaf, gradients[leaf.name])
        self.count([name for name, gradient in gradients.items() if gradient is not None], 1)
        self.apply(parameters, gradients, StepFactors(self._factors, options))

    def count(self, names: Collection[str], steps: int) -> None:
        """Count steps of the parameters of these names."""
        for _, leaves in self._groups:
            for leaf in leaves:
                if leaf.count is not None and leaf.name in names:
                    leaf.count += steps

    def apply(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None], factors: Factors
    ) -> None:
        """Change parameters by these gradients; steps are not counted here."""
        gradients = self._clip(gradients)
        for group, (rule, every) in enumerate(self._groups):
            leaves = [leaf for leaf in every if gradients.get(leaf.name) is not None]
            numbers = factors.numbers(group)
            if numbers and isinstance(rule, StackedAdam) and all(_has_kernel(leaf.tensor) for leaf in leaves):
                self._step_by_run(rule, leaves, gradients, numbers)
                continue
            for leaf in leaves:
                count = np.zeros(len(self._rows)) if leaf.count is None else leaf.count
                own = factors.at(group, rule, leaf.name, count, leaf.tensor)
                rule.update(parameters[leaf.name], gradients[leaf.name], leaf.slots, own)  # type: ignore[arg-type]

    def _check_switches(self, rule: StackedOptimizer, numbers: Vectors) -> None:
        """Raise `NotFusable` if a number that must stay zero, or other than zero, does not."""
        for name in rule.switches:
            if (numbers[name].any(axis=-1) != rule.on[name]).any():
                raise NotFusable(f"a schedule turns {name} on or off")

    def needs_state(self, names: Collection[str]) -> bool:
        """Return whether a parameter of these names has no state yet: its next step creates it."""
        for rule, leaves in self._groups:
            for leaf in leaves:
                if leaf.name in names and (
                    (rule.counts_steps and leaf.count is None) or set(rule.names()) - set(leaf.slots)
                ):
                    return True
        return False

    def states(self) -> list[dict[str, Tensor]]:
        """Return the state of each parameter, by name; they are changed in place."""
        return [leaf.slots for _, leaves in self._groups for leaf in leaves]

    def divide_factors(self, names: Collection[str]) -> list[FactorField]:
        """Return which parameters of these names have the same factors, now and in every later step."""
        found: dict[tuple[object, ...], FactorField] = {}
        for group, (rule, leaves) in enumerate(self._groups):
            for leaf in leaves:
                if leaf.name in names:
                    count = b"" if leaf.count is None else leaf.count.tobytes()
                    key = group, leaf.tensor.dtype, count
                    found.setdefault(key, FactorField(group, rule, leaf)).names.append(leaf.name)
        return list(found.values())

    def list_factors(
        self, field: FactorField, table: OptionTable, begin: int, steps: int
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the factors of the next steps by name, each of shape (steps, rows).

        `begin` is the number of the first of them in the table.
        """
        numbers = table.read_steps(field.group, begin, steps)
        self._check_switches(field.rule, numbers)
        count = field.leaf.count
        before = np.zeros(len(self._rows)) if count is None else count
        return field.rule.coefficients(numbers, before + np.arange(1, steps + 1)[:, None])

    def _begin(self, rule: StackedOptimizer, leaf: StackedLeaf, gradient: Any) -> None:
        if rule.counts_steps and leaf.count is None:
            group = self._optimizers[0].param_groups[0]
            device = leaf.tensor.device if group.get("fused") or group.get("capturable") else "cpu"
            dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            leaf.count = np.zeros(len(self._rows))
            leaf.steps = torch.zeros(len(self._rows), dtype=dtype, device=device)
            leaf.slots |= rule.begin(leaf.tensor, gradient)

    def _step_by_run(
        self, rule: StackedAdam, leaves: Sequence[StackedLeaf], gradients: Mapping[str, Any], numbers: Vectors
    ) -> None:
        """Step each run by a kernel of torch that computes a whole update, which is faster on the CPU."""
        torch._foreach_add_([leaf.steps for leaf in leaves if leaf.steps is not None], 1)
        key = ",".join(leaf.name for leaf in leaves)
        if key not in self._by_run:
            self._by_run[key] = [
                [
                    [leaf.tensor[i] for leaf in leaves],
                    [{name: slot[i] for name, slot in leaf.slots.items()} for leaf in leaves],
                    [leaf.steps[i] for leaf in leaves],  # type: ignore[index]
                ]
                for i in range(len(self._rows))
            ]
        each = zip(*(gradients[leaf.name].contiguous().unbind(0) for leaf in leaves), strict=True)
        for i, (own, (tensors, slots, steps)) in enumerate(zip(each, self._by_run[key], strict=True)):
            values = {name: float(vector[i]) for name, vector in numbers.items()}
            rule.update_run(tensors, list(own), slots, steps, values)

    def _clip(self, gradients: Mapping[str, Tensor | None]) -> Mapping[str, Tensor | None]:
        """Clip the gradients of each run: values first, then the norm over all of its parameters."""
        mine = {leaf.name for _, leaves in self._groups for leaf in leaves}
        if (most := self._clip_value) is not None:
            for name, g in gradients.items():
                if g is not None and name in mine:
                    limit = self._spread(most, g)
                    clipped = torch.minimum(torch.maximum(g, -limit), limit)
                    gradients = {**gradients, name: clipped}
        if self._clip_norm is not None:
            found = [g for name, g in gradients.items() if g is not None and name in mine]
            if found:
                norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in found])
                total = torch.linalg.vector_norm(norms, dim=0)
                scale = (self._spread(self._clip_norm, total) / (total + 1e-6)).clamp(max=1.0)
                gradients = {
                    name: g if g is None or name not in mine else g * scale.view(-1, *[1] * (g.ndim - 1))
                    for name, g in gradients.items()
                }
        return gradients

    def _spread(self, values: Counts, like: Tensor) -> Tensor:
        """Return the limits of all runs in a shape that broadcasts over a stacked tensor, with its dtype."""
        key = id(values), like.dtype, like.device, like.ndim
        if key not in self._limits:
            found = torch.from_numpy(values).to(like.device, like.dtype)
            self._limits[key] = found.view(-1, *[1] * (like.ndim - 1))
        return self._limits[key]

    def share(self) -> None:
        """Let the runs' own optimizers see the state: afterwards, a run can be stored, or trained alone."""
        for _, leaves in self._groups:
            for leaf in leaves:
                if leaf.steps is not None:
                    assert leaf.count is not None
                    leaf.steps.copy_(torch.from_numpy(leaf.count))
                own = {**({"step": leaf.steps} if leaf.steps is not None else {}), **leaf.slots}
                for key in [key for key in own if key not in leaf.shared]:
                    leaf.shared.add(key)
                    for number, (optimizer, parameter) in enumerate(leaf.owners):
                        optimizer.state[parameter][key] = own[key][self._rows.index(number)]


def _has_kernel(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)


def _setter(state: dict[str, Any], key: str) -> Callable[[Tensor], None]:
    def put(tensor: Tensor) -> None:
        state[key] = tensor

    return put
