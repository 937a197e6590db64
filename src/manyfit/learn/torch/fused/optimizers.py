"""Optimizers of stacked parameters: the same steps as those of torch, for several runs at once.

A parameter is a tensor of shape (runs, ...), and each hyperparameter a vector with one number per run. The
updates use only additions, multiplications, divisions and roots, not `addcmul` and its like. Each is rounded
exactly, so that the place of a run in a group does not change its bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = Mapping[str, npt.NDArray[np.float64]]
"""Hyperparameters of a step by name, each of shape (runs,)."""
Slots = dict[str, Tensor]
"""The state of the optimizer for one parameter, by the name that torch gives it."""


class StackedOptimizer(ABC):
    """One step of an optimizer, for one stacked parameter."""

    numbers: ClassVar[Sequence[str]]
    """Hyperparameters that may differ between runs; `betas` are `beta1` and `beta2`."""
    flags: ClassVar[Sequence[str]]
    """Options that must be the same for all runs."""
    switches: ClassVar[Sequence[str]] = ()
    """Numbers of which zero means something else: it must be zero for all runs, or for none."""
    kernel: ClassVar[Any] = None
    """The fused kernel of torch for one run, which is faster on the CPU."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self.on = flags

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the state tensors of a parameter, without `step`."""

    @abstractmethod
    def coefficients(self, numbers: Numbers, step: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the factors of a step; `step` counts from 1, of shape (runs,)."""

    @abstractmethod
    def update(self, p: Tensor, g: Tensor, s: Slots, c: Mapping[str, Tensor]) -> None:
        """Change a parameter and its state in place; `c` are the coefficients, in a shape that broadcasts."""

    counts_steps: ClassVar[bool] = True
    """Whether its state has the number of steps."""

    def begin(self, p: Tensor, g: Tensor) -> Slots:
        """Return the state of a parameter before its first step."""
        return {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in self.names()}

    def gradient(self, p: Tensor, g: Tensor, c: Mapping[str, Tensor]) -> Tensor:
        """Return the gradient to follow: negated to maximize, with weight decay."""
        g = -g if self.on["maximize"] else g
        return g + p * c["decay"] if "decay" in c else g


class StackedSGD(StackedOptimizer):
    """`torch.optim.SGD`."""

    numbers: ClassVar = ("lr", "momentum", "dampening", "weight_decay")
    flags: ClassVar = ("nesterov", "maximize")
    switches: ClassVar = ("momentum",)
    counts_steps: ClassVar = False

    def names(self) -> Sequence[str]:
        """Return the momentum, if there is any."""
        return ["momentum_buffer"] if self.on["momentum"] else []

    def begin(self, p: Tensor, g: Tensor) -> Slots:
        """Return no state: the first step sets the momentum to the gradient."""
        return {}

    def coefficients(self, numbers: Numbers, step: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the factors of a step."""
        found = {"rate": numbers["lr"]}
        if numbers["weight_decay"].any():
            found["decay"] = numbers["weight_decay"]
        if self.on["momentum"]:
            found |= {"keep": numbers["momentum"], "take": 1 - numbers["dampening"]}
        return found

    def update(self, p: Tensor, g: Tensor, s: Slots, c: Mapping[str, Tensor]) -> None:
        """Train one step."""
        g = self.gradient(p, g, c)
        if self.on["momentum"]:
            if "momentum_buffer" in s:
                s["momentum_buffer"].mul_(c["keep"]).add_(g * c["take"])
            else:
                s["momentum_buffer"] = g.clone(memory_format=torch.contiguous_format)
            g = g + s["momentum_buffer"] * c["keep"] if self.on["nesterov"] else s["momentum_buffer"]
        p.sub_(g * c["rate"])


class StackedAdam(StackedOptimizer):
    """`torch.optim.Adam` and `torch.optim.AdamW`."""

    numbers: ClassVar = ("lr", "beta1", "beta2", "eps", "weight_decay")
    flags: ClassVar = ("amsgrad", "maximize", "decoupled_weight_decay")

    def names(self) -> Sequence[str]:
        """Return the moments."""
        return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.on["amsgrad"] else [])]

    def coefficients(self, numbers: Numbers, step: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the factors of a step."""
        rate, first, second = numbers["lr"], numbers["beta1"], numbers["beta2"]
        moved, correction = rate / (1 - first**step), np.sqrt(1 - second**step)
        found = {
            "first": first, "rest1": 1 - first, "second": second, "rest2": 1 - second, "eps": numbers["eps"],
            "rate": moved, "correction": correction,
            "whole_rate": -moved * correction, "whole_eps": numbers["eps"] * correction,
        }  # fmt: skip
        if self.on["decoupled_weight_decay"]:
            found["shrink"] = 1 - rate * numbers["weight_decay"]
        elif numbers["weight_decay"].any():
            found["decay"] = numbers["weight_decay"]
        return found

    def update(self, p: Tensor, g: Tensor, s: Slots, c: Mapping[str, Tensor]) -> None:
        """Train one step."""
        g = self.gradient(p, g, c)
        if "shrink" in c:
            p.mul_(c["shrink"])
        if p.is_cuda and not self.on["amsgrad"]:  # fewer passes over memory, and nothing depends on the place
            s["exp_avg"].lerp_(g, c["rest1"])
            s["exp_avg_sq"].lerp_(g * g, c["rest2"])
            p.addcdiv_(s["exp_avg"] * c["whole_rate"], s["exp_avg_sq"].sqrt().add_(c["whole_eps"]))
            return
        s["exp_avg"].mul_(c["first"]).add_(g * c["rest1"])
        s["exp_avg_sq"].mul_(c["second"]).add_((g * g).mul_(c["rest2"]))
        size = s["exp_avg_sq"]
        if self.on["amsgrad"]:
            size = torch.maximum(s["max_exp_avg_sq"], size, out=s["max_exp_avg_sq"])
        p.sub_((s["exp_avg"] * c["rate"]).div_(size.sqrt().div_(c["correction"]).add_(c["eps"])))

    def update_run(
        self,
        ps: list[Tensor],
        gs: list[Tensor],
        slots: Sequence[Slots],
        steps: list[Tensor],
        n: Mapping[str, float],
    ) -> None:
        """Train one step of one run, by the kernel of torch."""
        kernel = torch._fused_adamw_ if self.on["decoupled_weight_decay"] else torch._fused_adam_
        kernel(
            ps, gs, [s["exp_avg"] for s in slots], [s["exp_avg_sq"] for s in slots],
            [s["max_exp_avg_sq"] for s in slots] if self.on["amsgrad"] else [], steps,
            lr=n["lr"], beta1=n["beta1"], beta2=n["beta2"], weight_decay=n["weight_decay"], eps=n["eps"],
            amsgrad=self.on["amsgrad"], maximize=self.on["maximize"],
        )  # fmt: skip


class StackedRMSprop(StackedOptimizer):
    """`torch.optim.RMSprop`."""

    numbers: ClassVar = ("lr", "alpha", "eps", "weight_decay", "momentum")
    flags: ClassVar = ("centered", "maximize")
    switches: ClassVar = ("momentum",)

    def names(self) -> Sequence[str]:
        """Return the averages, and the momentum if there is any."""
        return [
            "square_avg",
            *(["momentum_buffer"] if self.on["momentum"] else []),
            *(["grad_avg"] if self.on["centered"] else []),
        ]

    def coefficients(self, numbers: Numbers, step: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the factors of a step."""
        found = {"rate": numbers["lr"], "alpha": numbers["alpha"], "rest": 1 - numbers["alpha"]}
        found |= {"eps": numbers["eps"], "keep": numbers["momentum"]}
        return found | ({"decay": numbers["weight_decay"]} if numbers["weight_decay"].any() else {})

    def update(self, p: Tensor, g: Tensor, s: Slots, c: Mapping[str, Tensor]) -> None:
        """Train one step."""
        g = self.gradient(p, g, c)
        s["square_avg"].mul_(c["alpha"]).add_((g * g).mul_(c["rest"]))
        size = s["square_avg"]
        if self.on["centered"]:
            mean = s["grad_avg"].mul_(c["alpha"]).add_(g * c["rest"])
            size = size - mean * mean
        move = g / size.sqrt().add_(c["eps"])
        if self.on["momentum"]:
            move = s["momentum_buffer"].mul_(c["keep"]).add_(move)
        p.sub_(move * c["rate"])


class StackedAdagrad(StackedOptimizer):
    """`torch.optim.Adagrad`."""

    numbers: ClassVar = ("lr", "lr_decay", "weight_decay", "eps")
    flags: ClassVar = ("maximize",)

    def names(self) -> Sequence[str]:
        """Return the sum of squares. Torch creates it with the optimizer, so that it always exists."""
        return ["sum"]

    def coefficients(self, numbers: Numbers, step: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Return the factors of a step."""
        found = {"rate": numbers["lr"] / (1 + (step - 1) * numbers["lr_decay"]), "eps": numbers["eps"]}
        return found | ({"decay": numbers["weight_decay"]} if numbers["weight_decay"].any() else {})

    def update(self, p: Tensor, g: Tensor, s: Slots, c: Mapping[str, Tensor]) -> None:
        """Train one step."""
        g = self.gradient(p, g, c)
        s["sum"].add_(g * g)
        p.sub_((g * c["rate"]).div_(s["sum"].sqrt().add_(c["eps"])))


STACKED: Final[Mapping[type, type[StackedOptimizer]]] = {
    torch.optim.SGD: StackedSGD,
    torch.optim.Adam: StackedAdam,
    torch.optim.AdamW: StackedAdam,
    torch.optim.RMSprop: StackedRMSprop,
    torch.optim.Adagrad: StackedAdagrad,
}
"""The stacked form of each optimizer. A subclass may step in another way, so it has none."""
