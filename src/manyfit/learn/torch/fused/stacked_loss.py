"""Losses of torch with numbers and class weights that differ between the runs of a group."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyfit.learn.torch.fused.structure import describe_module, find_content
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.row_losses import rowwise

FREE: Final[Mapping[type, tuple[str, ...]]] = {
    nn.CrossEntropyLoss: ("label_smoothing", "weight"),
    nn.NLLLoss: ("weight",),
    nn.BCELoss: ("weight",),
    nn.BCEWithLogitsLoss: ("weight", "pos_weight"),
    nn.HuberLoss: ("delta",),
    nn.SmoothL1Loss: ("beta",),
}
"""Numbers and tensors of losses that may differ between runs."""


def describe_stacked_loss(loss: Any) -> Hashable:
    """Return what the losses of runs must have in common to be computed in one pass."""
    if not isinstance(loss, nn.Module):
        return find_content(loss, "train.loss")
    free = FREE.get(type(loss))
    if free is None:
        return describe_module(loss, "train.loss", with_values=True)
    plain = copy.copy(loss)
    plain.__dict__ = {name: value for name, value in vars(loss).items() if name not in free}
    switches = tuple((name, bool(value)) for name, value in _find_numbers(loss).items())
    return describe_module(plain, "train.loss"), switches


def _find_numbers(loss: nn.Module) -> dict[str, float]:
    """Return the free numbers of a loss. Without label smoothing, say, it has another form."""
    names = FREE.get(type(loss), ())
    return {name: value for name in names if isinstance(value := getattr(loss, name), int | float)}


class StackedLoss(nn.Module):
    """The loss of one run inside `vmap`, with numbers and class weights from `values`."""

    def __init__(self, loss: nn.Module, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.given = loss
        self.reduction: str = loss.reduction  # type: ignore[assignment]
        self.values = values
        """Those of the run that is computed now."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss, as the given one computes it with these values."""
        loss, values, reduction = self.given, self.values, self.reduction
        if isinstance(loss, nn.HuberLoss | nn.SmoothL1Loss):
            return _reduce(_huber(output, target, isinstance(loss, nn.HuberLoss), values), reduction)
        weight = values.get("weight")
        if isinstance(loss, nn.BCELoss):
            return functional.binary_cross_entropy(output, target, weight, reduction=reduction)
        if isinstance(loss, nn.BCEWithLogitsLoss):
            pos = values.get("pos_weight")
            return functional.binary_cross_entropy_with_logits(
                output, target, weight, None, None, reduction, pos
            )
        if isinstance(loss, nn.NLLLoss):
            return functional.nll_loss(
                output, target, weight, ignore_index=loss.ignore_index, reduction=reduction
            )
        assert isinstance(loss, nn.CrossEntropyLoss)

        def compute(smoothing: float) -> Tensor:
            return functional.cross_entropy(
                output, target, weight, ignore_index=loss.ignore_index, reduction=reduction,
                label_smoothing=smoothing,
            )  # fmt: skip

        plain = compute(0.0)
        if "label_smoothing" not in values:
            return plain
        return plain + values["label_smoothing"] * (compute(1.0) - plain)  # it is linear in this number


def _huber(output: Tensor, target: Tensor, is_scaled: bool, values: Mapping[str, Tensor]) -> Tensor:
    edge = values["delta" if is_scaled else "beta"].to(output.dtype)
    apart = (output - target).abs()
    square, line = 0.5 * apart * apart, apart - 0.5 * edge
    return torch.where(
        apart < edge, square if is_scaled else square / edge, line * edge if is_scaled else line
    )


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def stack_losses(runs: Sequence[TorchLearner], rows: Sequence[int]) -> tuple[TorchLearner, dict[str, Tensor]]:
    """Return the learner whose loss is called for all runs, and what differs between them, by name.

    `rows` has the number of the run of each row of a stack.
    """
    first = runs[0]
    losses = [run.objective.loss for run in runs]
    numbers = [_find_numbers(loss) if isinstance(loss, nn.Module) else {} for loss in losses]
    found = {
        name: torch.tensor([numbers[owner][name] for owner in rows], dtype=torch.float64, device=first.device)
        for name, value in numbers[0].items() if value
    }  # fmt: skip
    for name in FREE.get(type(losses[0]), ()):
        if isinstance(getattr(losses[0], name), Tensor):
            found[name] = torch.stack([getattr(losses[owner], name) for owner in rows])
    if not found:
        return first, {}
    assert isinstance(losses[0], nn.Module)
    caller = copy.copy(first)
    caller.objective = copy.copy(first.objective)
    caller.objective.loss = StackedLoss(losses[0], {})
    caller.objective.row_loss = rowwise(caller.objective.loss)
    return caller, found


def use_values(learner: TorchLearner, values: Mapping[str, Tensor]) -> None:
    """Set the numbers and class weights of the run that is computed next."""
    loss = learner.objective.loss
    if isinstance(loss, StackedLoss):
        loss.values.clear()
        loss.values.update(values)
