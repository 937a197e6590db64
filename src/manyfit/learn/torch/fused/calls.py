"""Calls of a module and its loss: for all runs of a group at once, and for one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from manyfit.data import Batch
from manyfit.data.nested import map_arrays, named_arrays
from manyfit.learn.fusing import NotFusable
from manyfit.learn.step_log import StepLog, logging_to
from manyfit.learn.torch.fused.dropout import CounterDropout
from manyfit.learn.torch.fused.per_run import PerRun
from manyfit.learn.torch.fused.stacked_loss import use_values
from manyfit.learn.torch.learner import TorchLearner


class Functional:
    """A module with other tensors in place of its own, for one call."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self._module = module
        self._tensors = dict(tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return functional_call(self._module, self._tensors, args, kwargs)


@dataclass(frozen=True)
class StackedBatch:
    """The rows of a step for all runs: tensors with a leading dimension of runs, or shared by all runs."""

    inputs: Any
    target: Any
    weight: Any
    rows: int
    is_shared: bool
    """Whether all runs have the same rows, without a dimension of runs."""

    @property
    def dims(self) -> int | None:
        """The dimension of runs."""
        return None if self.is_shared else 0

    def part(self, begin: int, end: int) -> StackedBatch:
        """Return some of the rows."""

        def cut(value: Any) -> Any:
            return map_arrays(lambda t: t[begin:end] if self.is_shared else t[:, begin:end], value)

        return replace(
            self, inputs=cut(self.inputs), target=cut(self.target), weight=cut(self.weight), rows=end - begin
        )

    def replace(self, inputs: Any, target: Any, weight: Any) -> StackedBatch:
        """Return rows of one run with these contents, as they are inside `vmap`."""
        return StackedBatch(inputs, target, weight, self.rows, True)

    def of(self, number: int) -> StackedBatch:
        """Return the rows of one run."""
        if self.is_shared:
            return self

        def one(value: Any) -> Any:
            return map_arrays(lambda t: t[number], value)

        return replace(self, inputs=one(self.inputs), target=one(self.target), weight=one(self.weight))


def stack_batches(
    each: Sequence[Batch], rows: Sequence[int], tensor: Callable[[Any], Tensor], expands: bool
) -> StackedBatch:
    """Return the batches of several runs as tensors; one that all of them share is not copied.

    With `expands`, a shared batch gets a dimension of runs, too: then the same kernels compute, and the bits
    of a run do not depend on whether others read the same rows.
    """
    first = each[0]
    if all(batch is first for batch in each):
        parts = [map_arrays(tensor, part) for part in (first.inputs, first.target, first.weight)]
        if expands:
            parts = [map_arrays(lambda t: t.expand(len(rows), *t.shape), part) for part in parts]
        return StackedBatch(parts[0], parts[1], parts[2], len(first), not expands)
    if len({len(batch) for batch in each}) > 1:
        raise NotFusable("the batches of the runs differ in size")
    found = []
    for name in ("inputs", "target", "weight"):
        values = [getattr(batch, name) for batch in each]
        leaves = [list(named_arrays(value)) for value in values]
        if len({tuple((key, np.shape(array)) for key, array in own) for own in leaves}) > 1:
            raise NotFusable(f"the {name} of the runs differ in shape")
        number = iter(range(len(leaves[0])))

        def stacked(_: Any, leaves: Any = leaves, number: Any = number) -> Tensor:
            i = next(number)
            tensors = [tensor(own[i][1]) for own in leaves]
            return torch.stack([tensors[owner] for owner in rows])

        found.append(map_arrays(stacked, values[0]))
    return StackedBatch(found[0], found[1], found[2], len(first), False)


def make_plain_batch(batch: StackedBatch) -> Batch:
    """Return the rows of one run as a batch."""
    return Batch(batch.inputs, batch.target, np.arange(batch.rows), batch.weight)


def compute_loss(
    learner: TorchLearner, module: Any, batch: StackedBatch, mode: CounterDropout | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of one run, or of each run inside `vmap`, and what the model has logged."""
    log = StepLog(learner.taken)
    log.rows = batch.rows
    with ExitStack() as stack:
        stack.enter_context(logging_to(log))
        stack.enter_context(learner.autocast())
        if mode is not None:
            stack.enter_context(mode)
        _, loss = learner.objective(module, make_plain_batch(batch))
    if loss is None:
        raise NotFusable("the model updates itself and returns no loss")
    if log.samples:
        raise NotFusable("the model logs images or texts")
    return loss, log.take()


def compute_losses(
    learner: TorchLearner,
    tensors: Mapping[str, Tensor],
    batch: StackedBatch,
    keys: Tensor | None,
    rates: Tensor | None,
    splits: bool,
    values: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of each run, of shape (runs,), and what the models have logged.

    `keys` and `rates` are those of dropout; without keys, no function is replaced for it. With `splits`, some
    functions are called for each run separately: see `PerRun`. `learner` and `values` are those of
    `stack_losses`.
    """

    def one(tensors: Any, inputs: Any, target: Any, weight: Any, keys: Any, rates: Any, values: Any) -> Any:
        use_values(learner, values)
        own, mode = (
            batch.replace(inputs, target, weight),
            None if keys is None else CounterDropout(keys, rates),
        )
        with PerRun() if splits else nullcontext():
            return compute_loss(learner, Functional(learner.module, tensors), own, mode)

    found: tuple[Tensor, dict[str, Tensor]] = _each(one, tensors, batch, keys, rates, values)
    return found


def compute_rows(
    learner: TorchLearner,
    tensors: Mapping[str, Tensor],
    batch: StackedBatch,
    replaces: bool,
    splits: bool,
    values: Mapping[str, Tensor],
) -> tuple[Any, dict[str, Tensor]]:
    """Return the outputs of each run, and its per-row values by name, of shape (runs, rows)."""

    def one(tensors: Any, inputs: Any, target: Any, weight: Any, keys: Any, rates: Any, values: Any) -> Any:
        use_values(learner, values)
        with PerRun() if splits else nullcontext():
            return evaluate_one(learner, tensors, batch.replace(inputs, target, weight), replaces)

    found: tuple[Any, dict[str, Tensor]] = _each(one, tensors, batch, None, None, values)
    return found


def evaluate_one(
    learner: TorchLearner, tensors: Mapping[str, Tensor], batch: StackedBatch, replaces: bool
) -> tuple[Any, dict[str, Tensor]]:
    """Return the main output and all outputs, and per-row values: of one run, or of each inside `vmap`."""
    log = StepLog(learner.taken)
    with CounterDropout(None) if replaces else nullcontext():
        module = Functional(learner.evaluated, tensors)
        output, _, rows, every = learner.evaluate_batch(module, make_plain_batch(batch), log)
    if log.samples:
        raise NotFusable("the model logs images or texts")
    return (output, every), rows


def _each(
    function: Any, tensors: Any, batch: StackedBatch, keys: Any, rates: Any, values: Mapping[str, Tensor]
) -> Any:
    """Call a function for each run, in one pass."""

    def dim(value: Any) -> int | None:
        return None if value is None else 0

    parts = (batch.inputs, batch.target, batch.weight)
    if next(iter(tensors.values())).shape[0] == 1:
        return _call_one(function, tensors, batch, keys, rates, values)
    dims = (0, *(None if part is None else batch.dims for part in parts), dim(keys), dim(rates), 0)
    return vmap(function, in_dims=dims, randomness="error")(tensors, *parts, keys, rates, values)


def _call_one(
    function: Any, tensors: Any, batch: StackedBatch, keys: Any, rates: Any, values: Mapping[str, Tensor]
) -> Any:
    """Call a function for the only run of a stack, with the kernels of a single run."""

    def only(value: Any) -> Any:
        return map_arrays(lambda t: t.squeeze(0), value)

    parts = [part if batch.is_shared else only(part) for part in (batch.inputs, batch.target, batch.weight)]
    found = function(only(tensors), *parts, only(keys), only(rates), only(values))
    return map_arrays(lambda t: t.unsqueeze(0), found)


def spread_rows(values: Tensor, batch: StackedBatch) -> Tensor:
    """Return per-row values of a batch, of shape (stack, rows); a single number of each run is repeated."""
    values = values if values.ndim > 1 else values[:, None]
    return values.expand(len(values), batch.rows)
