"""The comparison of a group with each of its runs alone, on its first batches, before it trains."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from manyfit.core.tracebacks import user_frame
from manyfit.data.nested import named_arrays
from manyfit.data.randomness import RandomStates, own_randomness
from manyfit.learn.fusing import NotFusable
from manyfit.learn.step_log import logging_to
from manyfit.learn.torch.fused.calls import StackedBatch, compute_loss, compute_losses, make_plain_batch
from manyfit.learn.torch.fused.dropout import CounterDropout
from manyfit.learn.torch.fused.stacked_loss import stack_losses
from manyfit.learn.torch.fused.structure import Opaque, describe_module
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.randomness import cuda_generator, own_cuda_randomness

LOSS: Final[Mapping[str, float]] = {"exact": 1e-9, "single": 1e-4, "rough": 5e-2}
GRADIENT: Final[Mapping[str, float]] = {"exact": 1e-8, "single": 2e-3, "rough": 2e-1}
"""The largest difference between a run in a group and alone, relative to its loss and its whole gradient: in
float64, in float32, and where products are rounded more coarsely."""
TIMED: Final = 3
"""How often the step of a group is timed."""


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass, of one run or of a group."""

    loss: Tensor
    gradients: Mapping[str, Tensor | None]
    tensors: Mapping[str, Tensor]
    """Parameters and buffers afterwards."""
    draws: bool = False
    """Whether random numbers were drawn on the GPU."""


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
    moved: Sequence[str] = ()
    """The parameters that had gradients."""
    draws: bool = False
    """Whether the model of a single run draws from the generator of its GPU."""

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
    batches: Sequence[tuple[StackedBatch, Tensor]],
) -> Checked:
    """Compute the losses and gradients of batches together and alone, and compare them; raise `NotFusable`.

    `batches` are the next ones, with the keys of dropout: the first for every run, the others for some.
    Nothing changes: modules are copied, and buffers as well.
    """
    batch, keys = batches[0]
    trained = [name for name, p in runs[0].module.named_parameters() if p.requires_grad]
    alone, seen, needed, splits = list[Pass](), [], False, False
    inputs = [t.clone() for t in _tensors(batch)]
    for number, run in enumerate(runs):
        row = list(rows).index(number)
        mode = CounterDropout(keys[row])
        alone.append(_train_alone(run, trained, batch.of(row), mode, may_draw=len(rows) == 1))
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
    caller, values = stack_losses(runs, rows)
    state = {**parameters, **buffers}
    alike = [each for each, _ in batches if each.rows == batch.rows]  # each of them is timed once
    times = max(1, TIMED + 1 - len(alike))
    together, took = _train_together(caller, values, trained, state, batch, masks, rates, splits, times)
    _compare(runs, rows, trained, dict(enumerate(alone)), together)
    draws = any(each.draws for each in alone)
    moved = [name for name, gradient in together.gradients.items() if gradient is not None]
    for number, (batch, keys) in enumerate(batches[1:]):
        some = {i % len(runs): runs[i % len(runs)] for i in (number, -1 - number)}
        own = {i: list(rows).index(i) for i in some}
        modes = {i: CounterDropout(keys[own[i]]) for i in some}
        found = {
            i: _train_alone(r, trained, batch.of(own[i]), modes[i], len(rows) == 1) for i, r in some.items()
        }
        if any(len(mode.seen) != len(seen[0]) for mode in modes.values()):
            raise NotFusable("the model calls dropout a different number of times in each step")
        masks = keys if needed else None
        together, seconds = _train_together(caller, values, trained, state, batch, masks, rates, splits)
        took = min(took, seconds) if batch.rows == alike[0].rows else took
        _compare(runs, rows, trained, found, together)
        draws = draws or any(each.draws for each in found.values())
    seconds = _time_alone(runs[0], batches[0][0].of(0)) * len(runs)
    return Checked(needed, rates, splits, seconds, took, moved, draws)


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
    run: TorchLearner, trained: Sequence[str], batch: StackedBatch, mode: CounterDropout, may_draw: bool
) -> Pass:
    """Compute the loss and the gradients of one run as it is trained alone, with a copy of its module.

    With `may_draw`, the module may draw random numbers on its GPU.
    """
    try:
        module = copy.deepcopy(run.module)
        before = describe_module(module)
    except (Opaque, RuntimeError, TypeError) as error:
        raise NotFusable(f"the module cannot be copied: {error}") from error
    randomness, generator = RandomStates.read(), cuda_generator(run.device)
    seeded = None if generator is None else generator.get_state()
    try:
        loss, _ = compute_loss(run, module, batch, mode)
        gradients = _differentiate(loss, dict(module.named_parameters()), trained)
    except NotFusable:
        raise
    except Exception as error:  # training alone will show it
        raise NotFusable(_explain(error)) from error
    now = RandomStates.read()
    randomness.restore()
    draws = False
    if generator is not None and seeded is not None and not torch.equal(seeded, generator.get_state()):
        generator.set_state(seeded)
        draws = True
    if (draws and not may_draw) or not _are_equal(randomness, now):
        raise NotFusable("the model draws random numbers other than dropout")
    try:
        if describe_module(module) != before:
            raise NotFusable("the model changes an attribute while it trains")
    except Opaque as error:
        raise NotFusable(f"the model changes an attribute while it trains: {error}") from error
    if trained and all(gradient is None for gradient in gradients.values()):
        raise NotFusable("no gradient of the loss reaches a parameter")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return Pass(loss.detach(), gradients, tensors, draws)


def _train_together(
    caller: TorchLearner,
    values: Mapping[str, Tensor],
    trained: Sequence[str],
    tensors: Mapping[str, Tensor],
    batch: StackedBatch,
    keys: Tensor | None,
    rates: Tensor | None,
    splits: bool,
    times: int = 1,
) -> tuple[Pass, float]:
    """Compute the losses and gradients of all runs in one pass; return them, and the seconds it takes."""
    best, found = float("inf"), list[Pass]()
    for _ in range(times):
        state = {name: t.detach().clone() for name, t in tensors.items()}
        for name in trained:
            state[name].requires_grad_()
        began = time.perf_counter()
        try:
            with own_cuda_randomness(caller.device):
                losses, _ = compute_losses(caller, state, batch, keys, rates, splits, values)
                gradients = _differentiate(losses.sum(), state, trained)
        except (NotFusable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise NotFusable(_explain(error)) from error
        _wait(losses)
        best = min(best, time.perf_counter() - began)
        found = [Pass(losses.detach(), gradients, state)]
    return found[0], best


def _differentiate(
    loss: Tensor, tensors: Mapping[str, Tensor], trained: Sequence[str]
) -> dict[str, Tensor | None]:
    leaves = [tensors[name] for name in trained]
    if not loss.requires_grad:  # while everything is frozen
        return dict.fromkeys(trained)
    return dict(zip(trained, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True))


def _compare(
    runs: Sequence[TorchLearner],
    rows: Sequence[int],
    trained: Sequence[str],
    alone: Mapping[int, Pass],
    together: Pass,
) -> None:
    """Raise `NotFusable` where a run differs between the group and alone."""
    kind = precision_of(runs[0], next(iter(alone.values())).loss)
    for number, own in alone.items():
        row = list(rows).index(number)
        here, there = float(own.loss), float(together.loss[row])
        if not torch.isfinite(own.loss):
            continue  # it will be noticed as training goes on
        if not abs(here - there) <= LOSS[kind] * max(abs(here), 1e-3):
            raise NotFusable(f"the loss of run {number} is {there:.7g} in the group, but {here:.7g} alone")
        for name, tensor in own.tensors.items():
            if not _is_near(tensor.detach(), together.tensors[name][row].detach(), LOSS[kind]):
                raise NotFusable(f"the model changes {name} in another way in a group than alone")
        if any((own.gradients[name] is None) != (together.gradients[name] is None) for name in trained):
            raise NotFusable(f"other parameters of run {number} have gradients in the group than alone")
        _compare_gradients(
            number, own.gradients, {n: g[row] for n, g in together.gradients.items() if g is not None}, kind
        )


def _is_near(one: Tensor, other: Tensor, near: float) -> bool:
    """Return whether tensors agree; most of them were not changed, and are equal."""
    if torch.equal(one, other):
        return True
    apart, size = (one.double() - other.double()).norm(), one.double().norm()
    return one.is_floating_point() and bool(apart <= 10 * near * max(float(size), 1e-6))


def _compare_gradients(
    number: int, own: Mapping[str, Tensor | None], fused: Mapping[str, Tensor], kind: str
) -> None:
    both = {name: (g, fused[name]) for name, g in own.items() if g is not None}
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
