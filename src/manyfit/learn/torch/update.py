"""From gradients to new weights: optimisers, schedules, clipping, scaling, averaging, freezing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Optimizers = Mapping[str, torch.optim.Optimizer]


@dataclass(frozen=True)
class Frozen:
    """Parameters that are not trained before some step, or never."""

    parameters: Sequence[nn.Parameter]
    until: int | None = None
    norms: Sequence[nn.Module] = ()
    """Layers whose running statistics stand still as long."""


def _iterate_rates(optimizers: Optimizers) -> Iterator[tuple[str, torch.optim.Optimizer, int]]:
    """The names of all rates, and the groups of the optimisers that have them."""
    for number, (name, optimizer) in enumerate(optimizers.items()):
        for i in range(len(optimizer.param_groups)):
            if not number and not i:
                yield "lr", optimizer, i
            if len(optimizers) > 1 or i:
                yield "_".join(["lr", *([name] if name else []), *([str(i)] if i else [])]), optimizer, i


@dataclass
class Update:
    """Everything between `backward` and the next step."""

    optimizers: Optimizers
    schedulers: Mapping[str, Any] = field(default_factory=dict)
    scheduler_every: Literal["step", "epoch"] = "step"
    horizon: int | None = None
    """Schedules are stepped at most this often; after that the rate stays."""
    steps_per_epoch: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: Any = None
    frozen: Sequence[Frozen] = ()

    def __post_init__(self) -> None:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        self.waiting = [s for s in self.schedulers.values() if isinstance(s, plateau)]
        self.stepping = [s for s in self.schedulers.values() if not isinstance(s, plateau)]
        self.thaws_at = {entry.until for entry in self.frozen}
        self._all = list(self.optimizers.values())
        self._rated = list(_iterate_rates(self.optimizers))
        self._parameters = [p for o in self._all for group in o.param_groups for p in group["params"]]
        self.plain = (
            len(self._all) == 1
            and self.clip_norm is None
            and self.clip_value is None
            and self.scaler is None
            and not isinstance(self._all[0], torch.optim.LBFGS)
        )

    def rates(self) -> dict[str, float]:
        """The learning rate of every group: `lr` is that of the first one, others have names or numbers."""
        return {name: float(o.param_groups[i]["lr"]) for name, o, i in self._rated} or {"lr": 0.0}

    def zero(self) -> None:
        """Forget gradients."""
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add up gradients."""
        torch.autograd.backward(self.scaler.scale(loss) if self.scaler is not None else loss)

    def step(self) -> None:
        """Change the weights, where there is nothing to it but one optimiser."""
        self._all[0].step()

    def apply(self, closure: Callable[[], Tensor]) -> None:
        """Change the weights by the gradients that were added up."""
        moving = [
            o for o in self._all if any(p.grad is not None for g in o.param_groups for p in g["params"])
        ]
        if self.scaler is not None and (self.clip_norm is not None or self.clip_value is not None):
            for optimizer in moving:
                self.scaler.unscale_(optimizer)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters, self.clip_value)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
        for optimizer in moving if self.scaler is not None else self._all:
            if self.scaler is not None:
                self.scaler.step(optimizer)
            elif isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)  # type: ignore[no-untyped-call]
            else:
                optimizer.step()
        if self.scaler is not None and moving:
            self.scaler.update()

    def advance(self, step: int) -> None:
        """After a step: move the schedules."""
        if self.scheduler_every == "epoch":
            if step % self.steps_per_epoch:
                return
            count = step // self.steps_per_epoch
        else:
            count = step
        if self.horizon is None or count < self.horizon:
            for scheduler in self.stepping:
                scheduler.step()

    def thaw(self, step: int) -> None:
        """Freeze and unfreeze what is due at a step, in a model that is being trained."""
        held = [entry for entry in self.frozen if entry.until is None or step < entry.until]
        still = {id(parameter) for entry in held for parameter in entry.parameters}
        for entry in self.frozen:
            for parameter in entry.parameters:
                parameter.requires_grad_(id(parameter) not in still)
        resting = {id(norm) for entry in held for norm in entry.norms}
        for norm in {id(n): n for entry in self.frozen for n in entry.norms}.values():
            norm.train(id(norm) not in resting)

    def observe(self, row: Mapping[str, float]) -> None:
        """Tell schedules that wait for the validation loss what it was."""
        if "val_loss" in row:
            for scheduler in self.waiting:
                scheduler.step(row["val_loss"])

    def options(self) -> list[list[dict[str, Any]]]:
        """What each group of each optimiser is trained with."""
        return [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in self._all]

    def set_options(self, options: list[list[dict[str, Any]]]) -> None:
        """Train with other options from now on; schedules go on from the new rates."""
        for optimizer, groups in zip(self._all, options, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)
        for name, scheduler in self.schedulers.items():
            if hasattr(scheduler, "base_lrs"):
                groups = self.optimizers[name].param_groups
                scheduler.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]

    def state(self) -> dict[str, Any]:
        """Optimisers, schedules and scaler; a single optimiser has no name."""
        parts: dict[str, Any] = {}
        for kind, found in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            states = {name: each.state_dict() for name, each in found.items()}
            if states:
                parts[kind] = states[""] if list(states) == [""] else states
        if self.scaler is not None:
            parts["scaler"] = self.scaler.state_dict()
        return parts

    def load(self, parts: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for kind, found in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            if kind in parts:
                states = {"": parts[kind]} if list(found) == [""] else parts[kind]
                for name, each in found.items():
                    each.load_state_dict(states[name])
        if self.scaler is not None and "scaler" in parts:
            self.scaler.load_state_dict(parts["scaler"])


def own_optimizers(module: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """The optimisers that a module holds itself, because it updates itself."""
    found: dict[str, torch.optim.Optimizer] = {}

    def search(value: Any, name: str) -> None:
        if isinstance(value, torch.optim.Optimizer):
            found[name] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                search(item, f"{name}.{key}")
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                search(item, f"{name}.{i}")

    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if not key.startswith("_") or isinstance(value, torch.optim.Optimizer):
                search(value, f"{name}.{key}".lstrip("."))
    return found
