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
from manyfit.learn.fusing import GroupFailed, NotFusable, Terms
from manyfit.learn.group import GroupLearner, Part
from manyfit.learn.learner import MembersFailed
from manyfit.learn.metrics_by_run import Metrics
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.learn.torch.fused.calls import (
    StackedBatch,
    evaluate_one,
    spread_rows,
    stack_batches,
)
from manyfit.learn.torch.fused.dropout import make_keys
from manyfit.learn.torch.fused.launch.launched import Launched
from manyfit.learn.torch.fused.launch.launcher import Launcher
from manyfit.learn.torch.fused.memory import keep_freed_memory
from manyfit.learn.torch.fused.options import OptionTable
from manyfit.learn.torch.fused.self_check import LOSS, Checked, check_group, precision_of
from manyfit.learn.torch.fused.stack import stack_modules
from manyfit.learn.torch.fused.stacked_loss import stack_losses
from manyfit.learn.torch.fused.step import StackedStep
from manyfit.learn.torch.fused.update import StackedUpdate
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.loss_sums import RowSums, Sums
from manyfit.learn.torch.randomness import seed_slow

MARK: Final = {"learner": "fused"}
"""What the state of a run that was trained in a group has besides that of a run that was trained alone."""
MOST_COMPARED: Final = 256
"""Rows of validation that are compared with those of each run alone."""
PLAIN: Final = Terms()
"""The terms of a group that need not pay."""
FEWEST: Final = 2
"""Rows of a stack. A single run has two: kernels for one model alone may round in another way."""


class FusedLearner(GroupLearner):
    """A group whose steps are computed in one pass over stacked parameters.

    The stacked tensors are the memory of the runs' own modules, optimizers and averages: each of them can be
    stored, evaluated, or trained alone, at every pause.
    """

    checked: Checked
    _terms: Terms = PLAIN

    def __init__(self, parts: Sequence[Part]) -> None:
        """`parts` have learners with equal `group_key`."""
        super().__init__(parts)
        self._stack()

    @staticmethod
    def open(parts: Sequence[Part], first: Sequence[Sequence[Batch]], terms: Terms = PLAIN) -> FusedLearner:
        """Return the learner of a group after comparing it with its runs alone, on the next batches.

        Raise `NotFusable` if that differs, or if it must pay and is not faster. The runs can then be trained
        by a `GroupLearner`.
        """
        found = FusedLearner(parts)
        found._enter()
        batches = [
            (found._stack_batch(each), found._make_keys(found.step + number))
            for number, each in enumerate(first)
        ]
        found.checked = check_group(found._runs, found._rows, found._parameters, found._buffers, batches)
        if terms.must_pay and found.checked.together > found.checked.alone:
            raise NotFusable(f"it would not be faster; {found.checked.describe(found.n)}")
        if found.step not in found._base.update.thaws_at:  # the first step after that is not launched
            found._step.note_moved(found.checked.moved)
        found._terms = terms
        found._prepare_launches()
        return found

    # -- stacking ---------------------------------------------------------------------------------

    def _stack(self) -> None:
        """Move the tensors of all runs into one memory."""
        self._runs: list[TorchLearner] = [part.learner for part in self._parts]  # type: ignore[misc]
        self._base = self._runs[0]
        is_cpu = self._base.device.type == "cpu"
        self._rows = list(range(self.n)) + [0] * ((FEWEST if is_cpu else 1) - self.n)
        self._caller, self._values = stack_losses(self._runs, self._rows)
        self._parameters, self._buffers = stack_modules([run.module for run in self._runs], self._rows)
        self._averages: dict[str, Tensor] = {}
        if self._base.average is not None:
            found = stack_modules([run.average for run in self._runs], self._rows)
            self._averages = {**found[0], **found[1]}
        self._step = StackedStep(
            self._base, self._caller, self._values,
            {name: tensor.detach() for name, tensor in self._parameters.items()},
            self._buffers, self._averages, StackedUpdate(self._runs, self._rows, self._parameters),
        )  # fmt: skip
        self._stack_batch = functools.partial(
            stack_batches, rows=self._rows, tensor=self._base.objective.tensor, expands=is_cpu
        )
        if is_cpu:
            keep_freed_memory()
        self._streams = [self._runs[owner].stream for owner in self._rows]
        self._measures_together: bool | None = None
        self._launcher: Launcher | None = None
        self._sums: Sums | None = None
        if not is_cpu or self._base.launching.is_wanted(self._base.device):
            self._sums = Sums.join([run.sums for run in self._runs])

    def _prepare_launches(self) -> None:
        """Launch several steps at once from now on, if that is wanted here."""
        options = self._base.launching
        if options.is_wanted(self._base.device):
            self._launcher = Launcher(
                self._step, self.checked, self._rows, self._streams, self._stack_batch, options, self._terms
            )

    def _enter(self) -> None:
        """Put the modules into training mode, with what is frozen at this step."""
        for run in self._runs:
            run.module.train()
            if run.update.frozen:
                run.update.thaw(self.step)
        self._find_trained()

    def _find_trained(self) -> None:
        trained = {name for name, p in self._base.module.named_parameters() if p.requires_grad}
        self._step.trained = [name for name in self._parameters if name in trained]

    def _make_keys(self, step: int, part: int = 0) -> Tensor:
        """Return the keys of the dropout of a step, of shape (rows, layers, 2)."""
        return torch.from_numpy(make_keys(self._streams, step, part)).to(self._base.device)

    def _keys(self, step: int, rows: int) -> list[Tensor | None]:
        """Return the keys for each part of a batch; None if no function is replaced."""
        parts = len(split_rows(rows, self._base.accumulate))
        return [self._make_keys(step, part) if self.checked.replaces else None for part in range(parts)]

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these runs only; the others keep their tensors."""
        if self._sums is not None:
            self._sums.divide([run.sums for run in self._runs])
        super().keep(indices)
        moved, rates = self._step.moved, self.checked.rates
        if self._launcher is not None and self._launcher.compiled:
            self._terms = replace(self._terms, compiled=self._launcher.compiled)
        self._stack()
        if rates is not None:
            self.checked = replace(self.checked, rates=rates[[indices[owner] for owner in self._rows]])
        self._step.moved = moved
        self._prepare_launches()

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Walk, steps: int) -> None:
        """Train all runs for this many steps. If that fails, it fails for all of them: see `GroupFailed`."""
        try:
            self._train(batches, steps)
        except Exception as error:
            raise GroupFailed(str(error)) from error

    def _train(self, batches: Walk, steps: int) -> None:
        self._enter()
        begin, found = self.step, Launched()
        updates, step = [run.update for run in self._runs], self._step
        table = OptionTable(updates, self._rows, step.update.numbers, begin, steps)
        done, thaws = 0, [each - begin for each in self._base.update.thaws_at if each is not None]
        while done < steps:
            until, trained = min([steps, *(each for each in thaws if each > done)]), 0
            if self._launcher is not None and self._launcher.can_launch():
                trained = self._launcher.train(batches, begin, table, done, until, found)
            elif (each := next(batches, None)) is not None:
                batch, trained = self._stack_batch(each), 1
                keys = self._keys(begin + done, batch.rows)
                self._step.seed(self.checked, begin + done)
                found.add(step.train(self.checked, batch, keys, table.at(done)), batch.rows)
            done += trained
            if not trained:
                raise RunFailed(
                    f"the data ended at step {begin + done}; a source must continue from epoch to epoch"
                )
            if begin + done in self._base.update.thaws_at:
                for run in self._runs:
                    run.update.thaw(begin + done)
                self._find_trained()
        if self._launcher is not None:
            self._launcher.finish()
        step.update.share()
        self._count(found, table.rates)

    def _count(self, found: Launched, rates: Sequence[Mapping[str, float]]) -> None:
        """Count what was trained."""
        if self._sums is not None:
            for run, last in zip(self._runs, rates, strict=True):
                run.count_steps({}, found.rows, last)
            for all_, rows in found.parts():
                self._sums.extend({name: value[:, : self.n] for name, value in all_.items()}, rows)
            return
        for losses, rows in found.by_run(self.n):
            for run, own, last in zip(self._runs, losses, rates, strict=True):
                run.count_steps(own, rows, last)

    def take(self) -> Metrics:
        """Return the mean losses of each run since the last call, and its last rates."""
        if self._sums is not None:
            each = [run.sums.rates for run in self._runs]
            rates = {name: np.array([own[name] for own in each], dtype=np.float64) for name in each[0]}
            return {**rates, **self._sums.take(per_row=not self._base.objective.sums)}
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
        found = [g.flatten(1).any(1) for g in self._step.last.values() if g is not None]
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
        if self._measures_together is False or self.checked.draws:
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
        tensors, sums = self._step.list_evaluated(), dict[str, RowSums]()
        with torch.no_grad(), self._updating(further) as update:
            launcher = None if any(further) else self._launcher
            for each in batches if launcher is None else ():
                batch = self._stack_batch(each)
                if self._measures_together is None:
                    self._check_rows(tensors, batch)
                (output, every), rows = self._compute_rows(tensors, batch)
                self._add_rows(
                    sums, {name: spread_rows(values, batch)[None] for name, values in rows.items()}
                )
                targets = [self._base.objective.targets(own) for own in each] if any(further) else []
                update(functools.partial(_update, further, output, every, targets))
            if launcher is not None:
                check = functools.partial(self._check_rows, tensors) if not self._measures_together else None
                for rows in launcher.measure(batches, check):
                    self._add_rows(sums, rows)
            update(lambda i: further[i].values())  # which may draw random numbers
        return {name: found.mean() for name, found in sums.items()}

    def _add_rows(self, sums: dict[str, RowSums], rows: Mapping[str, Tensor]) -> None:
        """Add per-row values of some batches, each of shape (batches, stack, rows)."""
        for name, values in rows.items():
            if name not in sums:
                sums[name] = RowSums(self._base.device, skips_undefined=name != "loss")
            sums[name].add_batches(values[:, : self.n])

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

    def _compute_rows(
        self, tensors: Mapping[str, Tensor], batch: StackedBatch
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return the outputs of all runs and their per-row values; raise `NotFusable` if that fails."""
        try:
            return self._step.measure(self.checked, tensors, batch)
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
        if self._sums is not None:
            self._sums.divide([run.sums for run in self._runs])
        done = self.step % self._base.update.steps_per_epoch
        with own_randomness() if done else nullcontext():
            found = list[State]()
            for run in self._runs:
                if done:  # in the middle of an epoch, a state has the generators as the epoch has seeded them
                    seed_slow(run.stream + self.step - done)
                found += run.state()
        compiled = self._launcher.compiled if self._launcher is not None else ""
        mark = {**MARK, **({"compiled": compiled} if compiled else {})}
        return [State(each.tensors, {**each.values, **mark}) for each in found]

    def load(self, states: Sequence[State]) -> None:
        """Load the state of each run."""
        for run, state in zip(self._runs, states, strict=True):
            run.load([state])
        self._stack()


def _update(
    metrics: Sequence[SplitMetrics], output: Any, every: Any, targets: Sequence[Any], number: int
) -> None:
    """Update the metrics of a split with the outputs of one run."""

    def both() -> tuple[Any, Any]:
        return map_arrays(lambda t: t[number], every), targets[number]

    metrics[number].update(output[number], targets[number], both)
