"""The comparison of a group with each of its runs alone, on a batch, before it trains."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from manyfit.core.tracebacks import user_frame
from manyfit.data.nested import named_arrays
from manyfit.data.randomness import RandomStates, own_randomness
from manyfit.learn.fusing import NotFusable
from manyfit.learn.step_log import logging_to
from manyfit.learn.torch.fused.calls import StackedBatch, compute_loss, compute_losses, make_plain_batch
from manyfit.learn.torch.fused.dropout import CounterDropout
from manyfit.learn.torch.fused.structure import Opaque, describe_module
from manyfit.learn.torch.learner import TorchLearner

LOSS: Final[Mapping[str, float]] = {"exact": 1e-9, "single": 1e-4, "rough": 5e-2}
GRADIENT: Final[Mapping[str, float]] = {"exact": 1e-8, "single": 2e-3, "rough": 2e-1}
"""The largest difference between a run in a group and alone, relative to its loss and its whole gradient: in
float64, in float32, and where products are rounded more coarsely."""
TIMED: Final = 3
"""How often the step of a group is timed."""


@dataclass(frozen=True)
class Checked:
    """What a check has found out."""

    replaces: bool
    """Whether functions must be replaced: dropout, or attention."""
    rates: Tensor | None
    """The rates of dropout, of shape (rows, layers); None without dropout."""
    splits: bool
    """Whether some functions are called for each run separately."""
    alone: float
    """Seconds of a forward and backward pass of all runs, one after another."""
    together: float
    """Seconds of the same in one pass."""

    def describe(self, runs: int) -> str:
        """Describe what was measured."""
        return (
            f"a step of {runs} runs takes {self.together * 1e3:.3g} ms together, {self.alone * 1e3:.3g} ms "
            f"one after another ({self.alone / self.together:.2f}x)"
        )


def check_group(
    runs: Sequence[TorchLearner],
    rows: Sequence[int],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: StackedBatch,
    keys: Tensor,
) -> Checked:
    """Compute the losses and gradients of a batch together and alone, and compare them; raise `NotFusable`.

    Nothing changes: modules are copied, and buffers as well.
    """
    trained = [name for name, p in runs[0].module.named_parameters() if p.requires_grad]
    losses, gradients, seen, needed, splits = [], [], [], False, False
    inputs = [t.clone() for t in _tensors(batch)]
    for number, run in enumerate(runs):
        row = list(rows).index(number)
        mode = CounterDropout(keys[row])
        own = {name: t[row].detach().clone() for name, t in {**parameters, **buffers}.items()}
        loss, found = _train_alone(run, own, trained, batch.of(row), mode)
        losses.append(loss)
        gradients.append(found)
        seen.append(mode.seen)
        needed, splits = needed or mode.is_needed, splits or mode.is_split
    if any(not torch.equal(a, b) for a, b in zip(inputs, _tensors(batch), strict=True)):
        raise NotFusable("the model changes its inputs in place")
    if len({len(each) for each in seen}) > 1:
        raise NotFusable("the runs call dropout a different number of times")
    rates = None
    if seen[0]:  # also if they are equal: bits must not depend on whether those of the others are
        rates = torch.tensor([seen[owner] for owner in rows], dtype=torch.float64, device=keys.device)
    splits = splits and keys.device.type == "cpu"
    masks = keys if needed else None
    together = _train_together(runs, trained, parameters, buffers, batch, masks, rates, splits)
    _compare(runs, rows, trained, losses, gradients, *together[:2])
    return Checked(needed, rates, splits, _time_alone(runs[0], batch.of(0)) * len(runs), together[2])


def _time_alone(run: TorchLearner, batch: StackedBatch) -> float:
    """Return the seconds of a forward and backward pass of one run, as it is trained alone."""
    module, best = copy.deepcopy(run.module), float("inf")
    leaves = [p for p in module.parameters() if p.requires_grad]
    with own_randomness():
        for _ in range(TIMED):
            began = time.perf_counter()
            with run.autocast(), logging_to(None):
                _, loss = run.objective(module, make_plain_batch(batch))
            assert loss is not None
            if loss.requires_grad:
                torch.autograd.grad(loss, leaves, allow_unused=True)
            _wait(loss)
            best = min(best, time.perf_counter() - began)
    return best


def _train_alone(
    run: TorchLearner,
    tensors: dict[str, Tensor],
    trained: Sequence[str],
    batch: StackedBatch,
    mode: CounterDropout,
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the loss and the gradients of one run, whose module is not used: a copy of it is."""
    try:
        module = copy.deepcopy(run.module)
        before = describe_module(module)
    except (Opaque, RuntimeError, TypeError) as error:
        raise NotFusable(f"the module cannot be copied: {error}") from error
    for name in trained:
        tensors[name].requires_grad_()
    randomness = RandomStates.read()
    try:
        loss, _ = compute_loss(run, module, tensors, batch, mode)
        leaves = [tensors[name] for name in trained]
        found = (
            torch.autograd.grad(loss, leaves, allow_unused=True)
            if loss.requires_grad
            else [None] * len(leaves)
        )
    except NotFusable:
        raise
    except Exception as error:  # training alone will show it
        raise NotFusable(_explain(error)) from error
    now = RandomStates.read()
    randomness.restore()
    if not _are_equal(randomness, now):
        raise NotFusable("the model draws random numbers other than dropout")
    try:
        if describe_module(module) != before:
            raise NotFusable("the model changes an attribute while it trains")
    except Opaque as error:
        raise NotFusable(f"the model changes an attribute while it trains: {error}") from error
    if trained and all(gradient is None for gradient in found):
        raise NotFusable("no gradient of the loss reaches a parameter")
    return loss.detach(), dict(zip(trained, found, strict=True))


def _train_together(
    runs: Sequence[TorchLearner],
    trained: Sequence[str],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: StackedBatch,
    keys: Tensor | None,
    rates: Tensor | None,
    splits: bool,
) -> tuple[Tensor, dict[str, Tensor | None], float]:
    """Return the losses and gradients of all runs, and the seconds that they take."""
    best = float("inf")
    for _ in range(TIMED):
        state = {name: t.detach().requires_grad_(name in trained) for name, t in parameters.items()}
        state |= {name: t.clone() for name, t in buffers.items()}
        began = time.perf_counter()
        try:
            losses, _ = compute_losses(runs[0], state, batch, keys, rates, splits)
            leaves = [state[name] for name in trained]
            found: Sequence[Any] = [None] * len(leaves)
            if losses.requires_grad:
                found = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        except NotFusable:
            raise
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotFusable(_explain(error)) from error
        _wait(losses)
        best = min(best, time.perf_counter() - began)
    return losses.detach(), dict(zip(trained, found, strict=True)), best


def _compare(
    runs: Sequence[TorchLearner],
    rows: Sequence[int],
    trained: Sequence[str],
    losses: Sequence[Tensor],
    gradients: Sequence[Mapping[str, Tensor | None]],
    fused_losses: Tensor,
    fused_gradients: Mapping[str, Tensor | None],
) -> None:
    kind = precision_of(runs[0], losses[0])
    for number, (loss, own) in enumerate(zip(losses, gradients, strict=True)):
        row = list(rows).index(number)
        here, there = float(loss), float(fused_losses[row])
        if not torch.isfinite(loss):
            continue  # it will be noticed as training goes on
        if not abs(here - there) <= LOSS[kind] * max(abs(here), 1e-3):
            raise NotFusable(f"the loss of run {number} is {there:.7g} in the group, but {here:.7g} alone")
        if any((own[name] is None) != (fused_gradients[name] is None) for name in trained):
            raise NotFusable(f"other parameters of run {number} have gradients in the group than alone")
        both = {name: (g, fused_gradients[name][row]) for name, g in own.items() if g is not None}  # type: ignore[index]
        whole = sum(float(g.double().square().sum()) for g, _ in both.values()) ** 0.5
        apart = {name: float((g.double() - f.double()).norm()) for name, (g, f) in both.items()}
        total = sum(value * value for value in apart.values()) ** 0.5
        if not total <= GRADIENT[kind] * whole + 1e-30:
            worst = max(apart, key=lambda name: apart[name])
            raise NotFusable(
                f"the gradient of run {number} differs by {total / max(whole, 1e-30):.2g} of its norm from "
                f"the same run alone, mostly in {worst}"
            )


def precision_of(run: TorchLearner, loss: Tensor) -> str:
    """Return how precisely a run computes."""
    if run.precision != "fp32" or loss.dtype not in (torch.float32, torch.float64):
        return "rough"
    if loss.is_cuda and (torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32):
        return "rough"
    return "exact" if loss.dtype is torch.float64 else "single"


def _tensors(batch: StackedBatch) -> list[Tensor]:
    return [array for part in (batch.inputs, batch.target, batch.weight) for _, array in named_arrays(part)]


def _are_equal(one: RandomStates, other: RandomStates) -> bool:
    same_numpy = all(
        (a == b).all() if hasattr(a, "all") else a == b for a, b in zip(one.numpy, other.numpy, strict=True)
    )
    return one.python == other.python and same_numpy and torch.equal(one.torch, other.torch)


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _explain(error: Exception) -> str:
    """Return the reason why a call failed, on one line."""
    text = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    if "randomness" in text and "vmap" in text:
        return "the model draws random numbers other than dropout"
    if "data-dependent control flow" in str(error) or ".item()" in str(error):
        return f"the model decides by values of tensors (at {user_frame(error)})"
    return f"{text} (at {user_frame(error)})"
