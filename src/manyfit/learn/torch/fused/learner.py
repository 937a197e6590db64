"""The learner of several runs of one structure, which computes each step for all of them in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.batch import split_rows
from manyfit.data.nested import map_arrays
from manyfit.data.randomness import own_randomness
from manyfit.data.walk import Walk
from manyfit.learn.fusing import GroupFailed, NotFusable
from manyfit.learn.group import GroupLearner, Part
from manyfit.learn.learner import MembersFailed
from manyfit.learn.metrics_by_run import Metrics
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.learn.torch.fused.calls import (
    StackedBatch,
    compute_losses,
    compute_rows,
    evaluate_one,
    stack_batches,
)
from manyfit.learn.torch.fused.dropout import make_keys
from manyfit.learn.torch.fused.memory import keep_freed_memory
from manyfit.learn.torch.fused.options import OptionTable
from manyfit.learn.torch.fused.self_check import LOSS, Checked, check_group, precision_of
from manyfit.learn.torch.fused.stack import stack_modules
from manyfit.learn.torch.fused.stacked_loss import stack_losses
from manyfit.learn.torch.fused.update import StackedUpdate
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.loss_sums import RowSums
from manyfit.learn.torch.randomness import seed_slow

MARK: Final = {"learner": "fused"}
"""What the state of a run that was trained in a group has besides that of a run that was trained alone."""
MOST_COMPARED: Final = 256
"""Rows of validation that are compared with those of each run alone."""
FEWEST: Final = 2
"""Rows of a stack. A single run has two: kernels for one model alone may round in another way."""


class FusedLearner(GroupLearner):
    """A group whose steps are computed in one pass over stacked parameters.

    The stacked tensors are the memory of the runs' own modules, optimizers and averages: each of them can be
    stored, evaluated, or trained alone, at every pause.
    """

    checked: Checked

    def __init__(self, parts: Sequence[Part]) -> None:
        """`parts` have learners with equal `group_key`."""
        super().__init__(parts)
        self._stack()

    @staticmethod
    def open(parts: Sequence[Part], first: Sequence[Sequence[Batch]], must_pay: bool = False) -> FusedLearner:
        """Return the learner of a group after comparing it with its runs alone, on the next batches.

        Raise `NotFusable` if that differs, and with `must_pay` also if it is not faster. The runs can then be
        trained by a `GroupLearner`.
        """
        found = FusedLearner(parts)
        found._enter()
        batches = [
            (found._stack_batch(each), found._keys(found.step + number)) for number, each in enumerate(first)
        ]
        found.checked = check_group(found._runs, found._rows, found._parameters, found._buffers, batches)
        if must_pay and found.checked.together > found.checked.alone:
            raise NotFusable(f"it would not be faster; {found.checked.describe(found.n)}")
        return found

    # -- stacking ---------------------------------------------------------------------------------

    def _stack(self) -> None:
        """Move the tensors of all runs into one memory."""
        self._runs: list[TorchLearner] = [part.learner for part in self._parts]  # type: ignore[misc]
        self._base = self._runs[0]
        self._rows = list(range(self.n)) + [0] * (FEWEST - self.n)
        self._caller, self._values = stack_losses(self._runs, self._rows)
        self._parameters, self._buffers = stack_modules([run.module for run in self._runs], self._rows)
        self._averages: dict[str, Tensor] = {}
        if self._base.average is not None:
            found = stack_modules([run.average for run in self._runs], self._rows)
            self._averages = {**found[0], **found[1]}
        self._update = StackedUpdate(self._runs, self._rows, self._parameters)
        self._leaves = {name: tensor.detach() for name, tensor in self._parameters.items()}
        self._expands = self._base.device.type == "cpu"
        if self._expands:
            keep_freed_memory()
        self._last: Mapping[str, Tensor | None] = {}
        self._streams = [self._runs[owner].stream for owner in self._rows]
        self._measures_together: bool | None = None

    def _enter(self) -> None:
        """Put the modules into training mode, with what is frozen at this step."""
        for run in self._runs:
            run.module.train()
            if run.update.frozen:
                run.update.thaw(self.step)
        self._find_trained()

    def _find_trained(self) -> None:
        trained = {name for name, p in self._base.module.named_parameters() if p.requires_grad}
        self._trained = [name for name in self._leaves if name in trained]
        for name, leaf in self._leaves.items():
            leaf.requires_grad_(name in trained)

    def _stack_batch(self, each: Sequence[Batch]) -> StackedBatch:
        return stack_batches(each, self._rows, self._base.objective.tensor, self._expands)

    def _keys(self, step: int, part: int = 0) -> Tensor:
        """Return the keys of the dropout of a step, of shape (rows, layers, 2)."""
        return torch.from_numpy(make_keys(self._streams, step, part)).to(self._base.device)

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these runs only; the others keep their tensors."""
        super().keep(indices)
        checked = self.checked
        if checked.rates is not None:
            rates = checked.rates[[*indices, *[indices[0]] * (FEWEST - len(indices))]]
            self.checked = replace(checked, rates=rates)
        self._stack()

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Walk, steps: int) -> None:
        """Train all runs for this many steps. If that fails, it fails for all of them: see `GroupFailed`."""
        try:
            self._train(batches, steps)
        except Exception as error:
            raise GroupFailed(str(error)) from error

    def _train(self, batches: Walk, steps: int) -> None:
        self._enter()
        begin, losses, rows = self.step, list[dict[str, Tensor]](), list[int]()
        updates = [run.update for run in self._runs]
        table = OptionTable(updates, self._rows, self._update.numbers, begin, steps)
        for i in range(steps):
            each = next(batches, None)
            if each is None:
                raise RunFailed(
                    f"the data ended at step {begin + i}; a source must continue from epoch to epoch"
                )
            losses.append(self._train_step(self._stack_batch(each), begin + i, table.at(i)))
            rows.append(len(each[0]))
            if begin + i + 1 in self._base.update.thaws_at:
                for run in self._runs:
                    run.update.thaw(begin + i + 1)
                self._find_trained()
        self._update.share()
        self._count(losses, rows, table.rates)

    def _train_step(self, batch: StackedBatch, step: int, options: Any) -> dict[str, Tensor]:
        """Train one step of all runs; return their losses by name."""
        bounds = split_rows(batch.rows, self._base.accumulate)
        losses: dict[str, Tensor] = {}
        gradients: dict[str, Tensor | None] = {}
        for number, (begin, end) in enumerate(bounds):
            part = batch if len(bounds) == 1 else batch.part(begin, end)
            share = 1.0 if len(bounds) == 1 or self._base.objective.sums else (end - begin) / batch.rows
            keys = self._keys(step, number) if self.checked.replaces else None
            tensors = {**self._leaves, **self._buffers}
            found, logged = compute_losses(
                self._caller, tensors, part, keys, self.checked.rates, self.checked.splits, self._values
            )
            scaled = found * share if share != 1 else found
            if scaled.requires_grad:
                leaves = [self._leaves[name] for name in self._trained]
                each = torch.autograd.grad(scaled.sum(), leaves, allow_unused=True)
                gradients = _add(gradients, dict(zip(self._trained, each, strict=True)))
            losses = _add(losses, {"loss": scaled.detach()})  # type: ignore[assignment]
            rows = (end - begin) / batch.rows
            losses = _add(losses, {name: value.detach() * rows for name, value in logged.items()})  # type: ignore[assignment]
        self._last = gradients
        with torch.no_grad():
            if gradients:
                self._update.step(gradients, options)
            if self._averages:
                self._average()
        return losses

    def _average(self) -> None:
        """Update the moving averages, as `AveragedModel` does."""
        assert self._base.ema is not None
        counts, rest = self._averages["n_averaged"], 1 - self._base.ema
        is_first = not bool(counts.any())
        for name, tensor in {**self._parameters, **self._buffers}.items():
            average = self._averages[f"module.{name}"]
            if is_first:
                average.copy_(tensor)
            elif average.is_floating_point() or average.is_complex():
                average.add_((tensor - average) * rest)
            else:
                average.copy_(average * self._base.ema + tensor * rest)
        counts += 1

    def _count(
        self,
        losses: Sequence[Mapping[str, Tensor]],
        rows: Sequence[int],
        rates: Sequence[Mapping[str, float]],
    ) -> None:
        """Pass what was trained to the runs' own learners."""
        by_names: list[tuple[tuple[str, ...], list[Mapping[str, Tensor]], list[int]]] = []
        for found, count in zip(losses, rows, strict=True):
            if not by_names or by_names[-1][0] != tuple(found):
                by_names.append((tuple(found), [], []))
            by_names[-1][1].append(found)
            by_names[-1][2].append(count)
        for names, each, counts in by_names:
            columns = {name: torch.stack([found[name] for found in each], dim=1) for name in names}
            for i, run in enumerate(self._runs):
                run.count_steps({name: column[i] for name, column in columns.items()}, counts, rates[i])

    def take(self) -> Metrics:
        """Return the mean losses of each run since the last call, and its last rates."""
        found = [run.take() for run in self._runs]
        return {
            name: torch.cat([each[name] for each in found])
            if isinstance(found[0][name], Tensor) else np.concatenate([each[name] for each in found])
            for name in found[0]
        }  # fmt: skip

    def has_gradients(self) -> bool:
        """Return whether all runs have gradients; True if parameters are frozen."""
        if self._base.update.frozen:
            return True
        found = [g.flatten(1).any(1) for g in self._last.values() if g is not None]
        return bool(found) and bool(torch.stack(found).any(0)[: self.n].all())

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Pass the validation loss of each run to its schedules."""
        for run, row in zip(self._runs, rows, strict=True):
            run.update.observe(row)

    def stop_reasons(self) -> Sequence[str]:
        """Return none: modules do not stop by themselves."""
        return [""] * self.n

    # -- evaluation -------------------------------------------------------------------------------

    def measure(self, batches: Walk, further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the means of each run, computed in one pass if that gives the same values as alone."""
        if self._measures_together is False:
            return super().measure(batches, further)
        try:
            return self._measure(batches, further)
        except NotFusable:
            self._measures_together = False
            for metrics in further:
                metrics.reset()
            return super().measure(batches, further)

    def _measure(self, batches: Walk, further: Sequence[SplitMetrics]) -> Metrics:
        for run in self._runs:
            run.evaluated.eval()
        tensors, sums = self._list_evaluated(), dict[str, RowSums]()
        with torch.no_grad(), self._updating(further) as update:
            for each in batches:
                batch = self._stack_batch(each)
                if self._measures_together is None:
                    self._check_rows(tensors, batch)
                (output, every), rows = self._compute_rows(tensors, batch)
                for name, values in rows.items():
                    if name not in sums:
                        sums[name] = RowSums(self._base.device, skips_undefined=name != "loss")
                    sums[name].add(values[: self.n].expand(self.n, batch.rows) if values.ndim > 1 else
                                   values[: self.n, None].expand(self.n, batch.rows))  # fmt: skip
                targets = [self._base.objective.targets(own) for own in each] if any(further) else []
                update(functools.partial(_update, further, output, every, targets))
            update(lambda i: further[i].values())  # which may draw random numbers
        return {name: found.mean() for name, found in sums.items()}

    @contextmanager
    def _updating(
        self, further: Sequence[SplitMetrics]
    ) -> Iterator[Callable[[Callable[[int], object]], None]]:
        """Yield a function that does something with the metrics of each run, with its own random numbers.

        The others go on if it fails for one of them.
        """
        errors, before = dict[int, BaseException](), [part.randomness for part in self._parts]

        def update(do: Callable[[int], object]) -> None:
            if any(further):
                self._each(lambda _, i: do(i), errors)

        try:
            yield update
        finally:
            for part, randomness in zip(self._parts, before, strict=True):
                part.randomness = randomness
        if errors:
            raise MembersFailed(errors)

    def _list_evaluated(self) -> dict[str, Tensor]:
        """Return the tensors of the modules that are evaluated."""
        if not self._averages:
            return {**self._parameters, **self._buffers}
        found = self._averages.items()
        return {name.removeprefix("module."): t for name, t in found if name.startswith("module.")}

    def _compute_rows(
        self, tensors: Mapping[str, Tensor], batch: StackedBatch
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return the outputs of all runs and their per-row values; raise `NotFusable` if that fails."""
        try:
            replaces, splits = self.checked.replaces, self.checked.splits
            return compute_rows(self._caller, tensors, batch, replaces, splits, self._values)
        except NotFusable:
            raise
        except Exception as error:
            raise NotFusable(str(error)) from error

    def _check_rows(self, tensors: Mapping[str, Tensor], batch: StackedBatch) -> None:
        """Compare what some rows give together and alone; raise `NotFusable` if that differs."""
        batch = batch.part(0, min(batch.rows, MOST_COMPARED))
        _, rows = self._compute_rows(tensors, batch)
        for i, run in enumerate(self._runs):
            own = {name: tensor[i] for name, tensor in tensors.items()}
            _, alone = evaluate_one(run, own, batch.of(i), replaces=False)
            if set(alone) != set(rows):
                raise NotFusable("the runs have other metrics together than alone")
            for name, values in alone.items():
                one, other = float(values.double().mean()), float(rows[name][i].double().mean())
                near = LOSS[precision_of(run, values)] * max(abs(one), 1e-3)
                near += 0.0 if name == "loss" else 2 / batch.rows  # a row may be on the edge
                if np.isfinite(one) and not abs(one - other) <= near:
                    raise NotFusable(f"{name} differs in validation between the group and its runs alone")
        self._measures_together = True

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> Sequence[State]:
        """Return the state of each run, as if it was trained alone, with a mark that it was not."""
        done = self.step % self._base.update.steps_per_epoch
        with own_randomness() if done else nullcontext():
            found = list[State]()
            for run in self._runs:
                if done:  # in the middle of an epoch, a state has the generators as the epoch has seeded them
                    seed_slow(run.stream + self.step - done)
                found += run.state()
        return [State(each.tensors, {**each.values, **MARK}) for each in found]

    def load(self, states: Sequence[State]) -> None:
        """Load the state of each run."""
        for run, state in zip(self._runs, states, strict=True):
            run.load([state])
        self._stack()


def _add(known: Mapping[str, Tensor | None], more: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Return the sums of tensors of the same name."""
    found = dict(known)
    for name, tensor in more.items():
        before = found.get(name)
        found[name] = tensor if before is None else before if tensor is None else before + tensor
    return found


def _update(
    metrics: Sequence[SplitMetrics], output: Any, every: Any, targets: Sequence[Any], number: int
) -> None:
    """Update the metrics of a split with the outputs of one run."""

    def both() -> tuple[Any, Any]:
        return map_arrays(lambda t: t[number], every), targets[number]

    metrics[number].update(output[number], targets[number], both)
