"""One step of all runs of a group, as a function of tensors that changes its state in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyfit.data.batch import split_rows
from manyfit.learn.torch.fused.calls import StackedBatch, compute_losses, compute_rows
from manyfit.learn.torch.fused.factors import Factors
from manyfit.learn.torch.fused.options import StepOptions
from manyfit.learn.torch.fused.self_check import Checked
from manyfit.learn.torch.fused.update import StackedUpdate
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.randomness import seed_torch

Losses = dict[str, Tensor]
"""What a step returns: the loss of each run and what the models have logged, by name, of shape (rows,)."""
Gradients = Mapping[str, Tensor | None]
"""Stacked gradients by the name of the parameter; None where no loss depends on it."""


@dataclass
class StackedStep:
    """The step of a group."""

    base: TorchLearner
    """The first of the runs, whose settings are those of all."""
    caller: TorchLearner
    """The learner whose loss is called for all runs, with `values`: see `stack_losses`."""
    values: Mapping[str, Tensor]
    leaves: dict[str, Tensor]
    buffers: dict[str, Tensor]
    averages: dict[str, Tensor]
    update: StackedUpdate
    trained: list[str] = field(default_factory=list)
    """The parameters that are not frozen."""
    last: Gradients = field(default_factory=dict)
    """The gradients of the last step that was computed at once."""
    moved: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Which of the parameters that are not frozen have gradients, as far as it is known."""
    _has_averaged: bool = False

    def train(
        self, checked: Checked, batch: StackedBatch, keys: Sequence[Tensor | None], options: StepOptions
    ) -> Losses:
        """Train one step now; `keys` are those of dropout, for each part of the batch."""
        losses, self.last = self.differentiate(checked, batch, keys)
        self.note_moved([name for name, gradient in self.last.items() if gradient is not None])
        with torch.no_grad():
            if self.last:
                self.update.step(self.leaves, self.last, options)
            if self.averages:
                self._average(self.is_first_average())
                self.averages["n_averaged"] += 1
        self._has_averaged = bool(self.averages)
        return losses

    def seed(self, checked: Checked, step: int) -> None:
        """Seed the generators for a step, if the model draws from them."""
        if checked.draws:
            seed_torch(self.base.stream + step, self.base.device)

    def launch(
        self, checked: Checked, batch: StackedBatch, keys: Sequence[Tensor | None], factors: Factors
    ) -> Losses:
        """Train one step without looking at any value: it can be captured, or traced and compiled.

        The caller counts it.
        """
        losses, gradients = self.differentiate(checked, batch, keys)
        with torch.no_grad():
            if gradients:
                self.update.apply(self.leaves, gradients, factors)
            if self.averages:
                self._average(is_first=False)
        return losses

    def count(self, names: Sequence[str], steps: int) -> None:
        """Count launched steps, in which the parameters of these names had gradients."""
        self.update.count(names, steps)
        if self.averages:
            self.averages["n_averaged"] += steps

    def measure(
        self, checked: Checked, tensors: Mapping[str, Tensor], batch: StackedBatch
    ) -> tuple[Any, Losses]:
        """Return the outputs of all runs and their per-row values; `tensors` as from `list_evaluated`."""
        return compute_rows(self.caller, tensors, batch, checked.replaces, checked.splits, self.values)

    def list_evaluated(self) -> dict[str, Tensor]:
        """Return the tensors of the modules that are evaluated."""
        if not self.averages:
            return {**self.leaves, **self.buffers}
        found = self.averages.items()
        return {name.removeprefix("module."): t for name, t in found if name.startswith("module.")}

    def note_moved(self, names: Sequence[str]) -> None:
        """Remember which parameters have gradients while these are trained."""
        self.moved[tuple(self.trained)] = list(names)

    def can_launch(self) -> bool:
        """Return whether the next step is like those after it: all state exists."""
        moved = self.moved.get(tuple(self.trained))
        return bool(moved) and not self.update.needs_state(moved) and not self.is_first_average()  # type: ignore[arg-type]

    def is_first_average(self) -> bool:
        """Return whether there are averages, and the next step sets them."""
        if self.averages and not self._has_averaged:
            self._has_averaged = bool(self.averages["n_averaged"].any())
        return bool(self.averages) and not self._has_averaged

    def differentiate(
        self, checked: Checked, batch: StackedBatch, keys: Sequence[Tensor | None]
    ) -> tuple[Losses, Gradients]:
        """Return the losses and the gradients of a batch, computed in `accumulate` parts."""
        bounds = split_rows(batch.rows, self.base.accumulate)
        losses, gradients = Losses(), dict[str, Tensor | None]()
        with torch.enable_grad():
            own = {n: leaf.detach().requires_grad_(n in self.trained) for n, leaf in self.leaves.items()}
            for (begin, end), key in zip(bounds, keys, strict=True):
                part = batch if len(bounds) == 1 else batch.part(begin, end)
                share = 1.0 if len(bounds) == 1 or self.base.objective.sums else (end - begin) / batch.rows
                found, logged = compute_losses(
                    self.caller,
                    {**own, **self.buffers},
                    part,
                    key,
                    checked.rates,
                    checked.splits,
                    self.values,
                )
                scaled = found * share if share != 1 else found
                if scaled.requires_grad:
                    leaves = [own[name] for name in self.trained]
                    each = torch.autograd.grad(scaled.sum(), leaves, allow_unused=True)
                    gradients = _add(gradients, dict(zip(self.trained, each, strict=True)))
                losses = _add(losses, {"loss": scaled.detach()})  # type: ignore[assignment]
                rows = (end - begin) / batch.rows
                losses = _add(losses, {name: value.detach() * rows for name, value in logged.items()})  # type: ignore[assignment]
        return losses, gradients

    def _average(self, is_first: bool) -> None:
        """Update the moving averages, as `AveragedModel` does."""
        assert self.base.ema is not None
        rest = 1 - self.base.ema
        for name, tensor in {**self.leaves, **self.buffers}.items():
            average = self.averages[f"module.{name}"]
            if is_first:
                average.copy_(tensor)
            elif average.is_floating_point() or average.is_complex():
                average.add_((tensor - average) * rest)
            else:
                average.copy_(average * self.base.ema + tensor * rest)

    # -- the state as a list ----------------------------------------------------------------------

    def places(self) -> list[tuple[MutableMapping[str, Tensor], str]]:
        """Return where the tensors are that a step changes."""
        found = [self.leaves, self.buffers, self.averages, *self.update.states()]
        return [(state, name) for state in found for name in state if name != "n_averaged"]

    @contextmanager
    def use_state(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Use other tensors in the same places."""
        places = self.places()
        before = [state[name] for state, name in places]
        try:
            for (state, name), tensor in zip(places, tensors, strict=True):
                state[name] = tensor
            yield
        finally:
            for (state, name), tensor in zip(places, before, strict=True):
                state[name] = tensor


def _add(known: Gradients, more: Gradients) -> dict[str, Tensor | None]:
    """Return the sums of tensors of the same name."""
    found = dict(known)
    for name, tensor in more.items():
        before = found.get(name)
        found[name] = tensor if before is None else before if tensor is None else before + tensor
    return found
