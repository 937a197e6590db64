"""What runs must have in common to train in one group, found from the objects that were built."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import torch
from torch import nn

from manyfit.learn.fusing import Key, Refusal
from manyfit.learn.torch.fused.optimizers import STACKED
from manyfit.learn.torch.fused.options import read_option
from manyfit.learn.torch.fused.stacked_loss import describe_stacked_loss
from manyfit.learn.torch.fused.structure import Opaque, describe_module, find_content
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.update import Frozen, Update

OPTIONS: Final = ("differentiable",)
"""Options of an optimizer that have no stacked form."""


def group_key(learner: Any) -> Key | Refusal:
    """Return what a run must have in common with others to train with them in each step, or why it cannot.

    Weights, numbers of the optimizer, rates of dropout and seeds may differ; all else is part of the key.
    """
    if type(learner) is not TorchLearner:
        return Refusal(f"{type(learner).__name__} does not train a plain torch module and loss")
    if type(learner.objective) is not TorchObjective:
        return Refusal("several outputs with losses of their own are trained one run at a time")
    update = learner.update
    if reason := _refuse_update(update) or _refuse_module(learner):
        return Refusal(reason)
    try:
        return Key(
            (
                describe_module(learner.module),
                describe_stacked_loss(learner.objective.loss),
                find_content(dict(learner.metrics), "train.metrics"),
                _describe_update(update, learner.module),
                learner.accumulate, learner.precision, learner.average is not None, learner.ema,
                str(learner.device), update.steps_per_epoch, learner.objective.is_coupled,
            )
        )  # fmt: skip
    except Opaque as error:
        return Refusal(str(error))


def _refuse_update(update: Update) -> str:
    """Return why the updates of a run cannot be stacked; empty if they can."""
    if len(update.optimizers) != 1:
        return f"there are {len(update.optimizers)} optimizers; one can be stacked"
    (optimizer,) = update.optimizers.values()
    name = type(optimizer).__name__
    if type(optimizer) not in STACKED:
        known = ", ".join(cls.__name__ for cls in STACKED)
        return f"the optimizer {name} has no stacked form; those that have are {known}"
    if update.scaler is not None:
        return "fp16 scales the gradients of each run by itself; bf16 can be fused"
    if update.others:
        return "the model has optimizers of its own"
    if any(group.get(option) for group in optimizer.param_groups for option in OPTIONS):
        return f"{name} is differentiable, which has no stacked form"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{name} has hooks"
    return ""


def _refuse_module(learner: TorchLearner) -> str:
    """Return why a module cannot be stacked; empty if nothing is known yet."""
    module = learner.module
    if hasattr(module, "train_step"):
        return f"{type(module).__name__} has a train_step of its own"
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        return f"{type(module).__name__} has lazy parameters, which get their shape from the first batch"
    if any(p.layout is not torch.strided for p in module.parameters()):
        return f"{type(module).__name__} has sparse parameters"
    if "found" in learner.state()[0].values:
        return f"{type(module).__name__} has state that is neither a parameter nor a buffer"
    return ""


def _describe_update(update: Update, module: nn.Module) -> Hashable:
    """Return what the updates of runs must have in common."""
    (optimizer,) = update.optimizers.values()
    stacked, names = STACKED[type(optimizer)], {id(p): name for name, p in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        flags = tuple(group[flag] for flag in stacked.flags if flag in group)
        switches = tuple(bool(read_option(group, name)) for name in stacked.switches)
        members = tuple(names.get(id(p), "") for p in group["params"])
        states = tuple(
            tuple(key for key, value in optimizer.state.get(p, {}).items() if value is not None)
            for p in group["params"]
        )
        groups.append((members, flags, switches, states))
    frozen = tuple(_describe_frozen(entry, module, names) for entry in update.frozen)
    clips = update.clip_norm is not None, update.clip_value is not None
    return type(optimizer), tuple(groups), frozen, clips


def _describe_frozen(entry: Frozen, module: nn.Module, names: dict[int, str]) -> Hashable:
    parts = {id(part): path for path, part in module.named_modules()}
    parameters = tuple(names[id(p)] for p in entry.parameters)
    return parameters, entry.until, tuple(parts[id(norm)] for norm in entry.norms)
