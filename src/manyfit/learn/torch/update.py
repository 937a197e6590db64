"""From gradients to new weights: optimizers, schedules, clipping, gradient scaling and freezing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyfit.core.errors import UsageError
from manyfit.learn.schedules import MomentumSchedule

Optimizers = Mapping[str, torch.optim.Optimizer]


@dataclass(frozen=True)
class Frozen:
    """Parameters that are frozen until some step, or always."""

    parameters: Sequence[nn.Parameter]
    until: int | None = None
    norms: Sequence[nn.Module] = ()
    """Layers whose running statistics are frozen with them."""


def _iterate_rates(optimizers: Optimizers) -> Iterator[tuple[str, torch.optim.Optimizer, int]]:
    """Yield the name of every learning rate, with its optimizer and parameter group."""
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
    metric: str = "val_loss"
    """What `ReduceLROnPlateau` schedules wait for."""
    horizon: int | None = None
    """Schedules are stepped at most this many times; after that the learning rate stays constant."""
    steps_per_epoch: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: Any = None
    frozen: Sequence[Frozen] = ()
    momentum: MomentumSchedule | None = None
    others: Optimizers = field(default_factory=dict)
    """Optimizers of the user's object, which it steps itself; only their rates are logged."""

    def __post_init__(self) -> None:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        self.waiting = [s for s in self.schedulers.values() if isinstance(s, plateau)]
        self.stepping: list[Any] = [s for s in self.schedulers.values() if not isinstance(s, plateau)]
        self.stepping += [self.momentum] if self.momentum is not None else []
        self.thaws_at = {entry.until for entry in self.frozen}
        self._all = list(self.optimizers.values())
        self._scaled: set[int] = set()
        """The optimizers that were stepped since the scale was last adjusted."""
        self.watch(self.others)
        self._parameters = [p for o in self._all for group in o.param_groups for p in group["params"]]
        self.plain = (
            len(self._all) == 1
            and self.clip_norm is None
            and self.clip_value is None
            and self.scaler is None
            and not isinstance(self._all[0], torch.optim.LBFGS)
        )

    def watch(self, others: Optimizers) -> None:
        """Log the rates of further optimizers, which the user's object steps."""
        self.others = dict(others)
        found = {**self.optimizers, **self.others}
        self._rated = list(_iterate_rates(found))
        self._watched = list(found.values())
        self._group_count = sum(len(each.param_groups) for each in self._watched)

    def rates(self) -> dict[str, float]:
        """Return the learning rate of every group: `lr` for the first one, others have names or numbers."""
        count = 0
        for each in self._watched:
            count += len(each.param_groups)
        if count != self._group_count:
            self.watch(self.others)  # training has added a group
        found = {name: float(o.param_groups[i]["lr"]) for name, o, i in self._rated} or {"lr": 0.0}
        return {**found, "momentum": self.momentum.read()[0]} if self.momentum is not None else found

    def zero(self) -> None:
        """Clear the gradients."""
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        """Accumulate gradients, of all parameters or of `inputs` only."""
        scaled = self.scaler.scale(loss) if self.scaler is not None else loss
        torch.autograd.backward(scaled, inputs=inputs)

    def step_one(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of one optimizer, step it, and clear them."""
        if self.clip_value is not None or self.clip_norm is not None:
            self.unscale(optimizer)
            self.clip(optimizer)
        self.step_bare(optimizer)
        optimizer.zero_grad(set_to_none=True)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale of the loss."""
        if self.scaler is not None:
            self._renew(optimizer)
            self.scaler.unscale_(optimizer)

    def clip(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of one optimizer."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)

    def step_bare(self, optimizer: torch.optim.Optimizer) -> None:
        """Step one optimizer, through the scaler if there is one."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError("LBFGS needs the loss several times in a step: call optimizer.step(closure)")
        if self.scaler is not None:
            self._renew(optimizer)
            self.scaler.step(optimizer)
            self._scaled.add(id(optimizer))
        else:
            optimizer.step()

    def _renew(self, optimizer: torch.optim.Optimizer) -> None:
        """Adjust the scale if an optimizer is stepped for the second time, as an epoch of one's own does."""
        if id(optimizer) in self._scaled:
            self.close_step()

    def step_all(self) -> None:
        """Step all optimizers of the config."""
        for optimizer in self._all:
            self.step_one(optimizer)

    def close_step(self) -> None:
        """Adjust the scale of the gradients, once for all optimizers that were stepped."""
        if self._scaled:
            self._scaled.clear()
            self.scaler.update()

    def step(self) -> None:
        """Step the only optimizer; for `plain` updates without clipping and scaling."""
        self._all[0].step()

    def apply(self, closure: Callable[[], Tensor]) -> None:
        """Update the weights from the accumulated gradients."""
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
        """Advance the schedules after a step."""
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
        """Freeze and unfreeze parameters for a step, in a model in training mode."""
        held = [entry for entry in self.frozen if entry.until is None or step < entry.until]
        still = {id(parameter) for entry in held for parameter in entry.parameters}
        for entry in self.frozen:
            for parameter in entry.parameters:
                parameter.requires_grad_(id(parameter) not in still)
        resting = {id(norm) for entry in held for norm in entry.norms}
        for norm in {id(n): n for entry in self.frozen for n in entry.norms}.values():
            norm.train(id(norm) not in resting)

    def observe(self, row: Mapping[str, float]) -> None:
        """Pass the metric that they wait for to `ReduceLROnPlateau` schedules."""
        if self.metric in row:
            for scheduler in self.waiting:
                scheduler.step(row[self.metric])

    def options(self) -> list[list[dict[str, Any]]]:
        """Return the options of each group of each optimizer."""
        every = [*self._all, *self.others.values()]
        return [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in every]

    def set_options(self, options: list[list[dict[str, Any]]]) -> None:
        """Set the options of the optimizers; schedules continue from the new learning rates."""
        for optimizer, groups in zip([*self._all, *self.others.values()], options, strict=True):
            # Groups that training has added have no options in the config; they keep their own.
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                group.update(values)
        for name, scheduler in self.schedulers.items():
            if hasattr(scheduler, "base_lrs"):
                groups = self.optimizers[name].param_groups
                scheduler.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]

    def state(self) -> dict[str, Any]:
        """Return the state of optimizers, schedules and scaler; a single optimizer has no name."""
        parts: dict[str, Any] = {}
        for kind, found in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            states = {name: each.state_dict() for name, each in found.items()}
            if states:
                parts[kind] = states[""] if list(states) == [""] else states
        if self.scaler is not None:
            parts["scaler"] = self.scaler.state_dict()
        if self.momentum is not None:
            parts["momentum"] = self.momentum.state_dict()
        return parts

    def load(self, parts: Mapping[str, Any]) -> None:
        """Load a state."""
        for kind, found in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            if kind in parts:
                states = {"": parts[kind]} if list(found) == [""] else parts[kind]
                for name, each in found.items():
                    each.load_state_dict(states[name])
        if self.momentum is not None and "momentum" in parts:
            self.momentum.load_state_dict(parts["momentum"])
        if self.scaler is not None and "scaler" in parts:
            self.scaler.load_state_dict(parts["scaler"])
