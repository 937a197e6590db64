"""The learner for one PyTorch module: module, objective, update, precision and averaging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from manyfit.core.errors import FolderError, RunFailed, UsageError
from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.nested import Nested, is_nested, map_arrays, named_arrays, pair_outputs
from manyfit.data.randomness import own_randomness
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.learner import BaseLearner, Outputs, Weights
from manyfit.learn.metrics_by_run import Metrics
from manyfit.learn.packing import pack, unpack
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.learn.step_log import StepLog, gather_logs, logging_to
from manyfit.learn.torch.description import count_parameters, describe_device
from manyfit.learn.torch.heads import HeadsObjective
from manyfit.learn.torch.launching import Launching
from manyfit.learn.torch.loss_sums import RowSums, Sums
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.outputs import fetch_outputs, return_both, to_numpy
from manyfit.learn.torch.randomness import random_state, seed_slow, seed_torch, set_random_state
from manyfit.learn.torch.row_metrics import RowMetric, check_rows, measure_batch
from manyfit.learn.torch.update import Update

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class TorchLearner(BaseLearner):
    """Learner of one module. Randomness inside the model is a function of (seed, step)."""

    module: nn.Module
    objective: TorchObjective
    update: Update
    metrics: Mapping[str, RowMetric] = field(default_factory=dict)
    accumulate: int = 1
    precision: str = "fp32"
    average: Any = None
    """A moving average of the module with the decay `ema`, which is evaluated and exported instead of it."""
    ema: float | None = None
    seed: int = 0
    launching: Launching = field(default_factory=Launching)
    n: int = 1
    step: int = 0
    stands_between_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.device = self.objective.device
        self.stream = derive(self.seed, "model")
        self._measuring = derive(self.seed, "evaluate")
        self.sums = Sums(self.device)
        heads = self.objective.heads if isinstance(self.objective, HeadsObjective) else {}
        self.taken: Mapping[str, Any] = {**self.metrics, **{f"loss_{head}": None for head in heads}}
        """The names of metrics and losses, which other values in the log cannot have."""
        self.step_log = StepLog(self.taken)
        self._found = self._find_state()
        self.update.watch(self._found.optimizers())
        self._simple = self.update.plain and self.accumulate == 1 and self.precision not in DTYPES

    def _find_state(self) -> FoundState:
        """Look for state that is neither in the module's parameters and buffers nor in the update."""
        return FoundState(self.module, [self.module, *self.update.optimizers.values()])

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train for this many steps."""
        self.module.train()
        one = self._one_simple if self._simple else self._one
        if self.update.frozen:
            self.update.thaw(self.step)
        with logging_to(self.step_log):
            for _ in range(steps):
                batch = self._next(batches)
                self._count(batch, one(batch) if self.step else self._first(batch))

    def _next(self, batches: Iterator[Batch]) -> Batch:
        """Return the next batch, with the random generators seeded for this step."""
        self._reseed()
        self.step_log.rows = 0
        batch = next(batches, None)
        if batch is None:
            raise RunFailed(f"the data ended at step {self.step}; a source must continue from epoch to epoch")
        self.step_log.rows = len(batch)
        return batch

    def _count(self, batch: Batch, loss: Tensor | None, rates: Mapping[str, float] | None = None) -> None:
        """Count a step: its loss, the learning rates, schedules, averages and frozen parameters."""
        update = self.update
        losses = {"loss": loss} if loss is not None else {}
        if self.step_log:
            losses |= self.step_log.take()
        self.add_losses(losses, len(batch))
        self.sums.rates = update.rates() if rates is None else rates
        self.step += 1
        if update.stepping:
            update.advance(self.step)
        if self.average is not None:
            self.average.update_parameters(self.module)
        if self.step in update.thaws_at:
            update.thaw(self.step)

    def count_steps(
        self, losses: Mapping[str, Tensor], rows: Sequence[int], rates: Mapping[str, float]
    ) -> None:
        """Count steps that were trained together with other runs: their losses, rows and last rates."""
        if losses:
            self.sums.extend(losses, rows)
        self.sums.rates = rates
        self.step += len(rows)

    def add_losses(self, losses: Mapping[str, Tensor], rows: int) -> None:
        """Add losses of some rows to those that are logged."""
        if losses:
            self.sums.add(losses, rows)

    def take(self) -> Metrics:
        """Return the mean losses since the last call, and the last learning rates."""
        return self.sums.take(per_row=not self.objective.sums)

    def _first(self, batch: Batch) -> Tensor | None:
        """Train the first step, and check that every optimizer has something to train."""
        loss = self._one_simple(batch) if self._simple else self._one(batch)
        if not self.update.optimizers:
            return loss
        name = type(self.module).__name__
        if loss is None:
            raise UsageError(
                f"{name} returned no loss in the first step, so the config's optimizer has nothing to do: "
                "forward must return (outputs, loss), or an output alone for train.loss; a model that "
                "updates itself needs train.optimizer: null"
            )
        for key, optimizer in self.update.optimizers.items():
            trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            if trained and all(p.grad is None for p in trained):
                which = f"the optimizer {key!r}" if key else "the optimizer"
                raise UsageError(
                    f"no gradient of the loss reaches the parameters of {which} ({len(trained)} parameters "
                    f"of {name}): nothing is trained"
                )
        return loss

    def _one_simple(self, batch: Batch) -> Tensor | None:
        """Train one step of a loss and one optimizer, without further settings."""
        self.update.zero()
        _, loss = self.objective(self.module, batch)
        if loss is None:
            return None
        if loss.requires_grad:  # not while everything is frozen
            torch.autograd.backward(loss)
            self.update.step()
        return loss.detach()

    def _one(self, batch: Batch) -> Tensor | None:
        """Train one step with any settings."""
        first: list[Tensor | None] = []

        def closure() -> Tensor:
            """Accumulate the gradients of the batch, part by part; LBFGS calls this more than once."""
            self.update.zero()
            total: Tensor | None = None
            for part, share in batch.split(self.accumulate):
                self.step_log.rows = len(part)
                with self.autocast():
                    _, loss = self.objective(self.module, part)
                if loss is not None:
                    scaled = loss if share == 1 or self.objective.sums else loss * share
                    if scaled.requires_grad:
                        self.update.backward(scaled)
                    total = scaled.detach() if total is None else total + scaled.detach()
            first.append(total)
            return total if total is not None else torch.zeros((), device=self.device)

        if any(isinstance(o, torch.optim.LBFGS) for o in self.update.optimizers.values()):
            self.update.apply(closure)
        else:
            closure()
            if first[0] is not None:
                self.update.apply(closure)
        return first[0]

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Yield predictions with per-row losses and metrics."""
        for batch, output, target, rows, every in self._evaluate(batches):
            shared = frozenset(name for name, values in rows.items() if not values.ndim)
            found = {
                name: to_numpy(values.expand(len(batch))).astype(np.float64)[None]
                for name, values in rows.items()
            }
            shown = map_arrays(lambda each: to_numpy(each)[None], target)
            several = None if len(list(named_arrays(every))) < 2 else partial(fetch_outputs, every, shown)
            main = pair_outputs(every, shown)[0][2] if is_nested(shown) else shown
            index, shape = batch.index, to_numpy(output)[None]
            yield Outputs(index, shape, main, found, shared, several, self.has_heads)

    @property
    def has_heads(self) -> bool:
        """Whether every output has a loss and a target of its own."""
        return isinstance(self.objective, HeadsObjective)

    def measure(self, batches: Iterator[Batch], further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return means over rows; only they leave the device."""
        return self.summarize(self.collect(batches, further))

    def divides_measure(self, further: bool) -> bool:
        """Return True: sums of rows can be continued."""
        return True

    def collect(
        self, batches: Iterator[Batch], further: Sequence[SplitMetrics] = (), known: Any = None
    ) -> dict[str, RowSums]:
        """Add the rows of some batches to sums."""
        sums: dict[str, RowSums] = known or {}
        for each in sums.values():
            each.move_to(self.device)
        for batch, output, target, rows, every in self._evaluate(batches):
            for name, values in rows.items():
                if name not in sums:
                    sums[name] = RowSums(self.device, skips_undefined=name != "loss")
                sums[name].add(values.expand(len(batch)))
            for metrics in further:
                metrics.update(output, target, partial(return_both, every, target))
        return sums

    def summarize(self, collected: Mapping[str, RowSums]) -> Metrics:
        """Return the means of the sums."""
        return {name: each.mean() for name, each in collected.items()}

    @torch.no_grad()
    def _evaluate(
        self, batches: Iterator[Batch]
    ) -> Iterator[tuple[Batch, Tensor, Nested, dict[str, Tensor], Nested]]:
        """Yield every batch with its output, its targets, its per-row values by name, and all outputs.

        A loss that couples the rows of a batch is a single number.
        """
        module = self.evaluated
        module.eval()
        between = self.step % self.update.steps_per_epoch == 0  # then there is no random state to preserve
        with nullcontext() if between else own_randomness():
            seed_slow(self._measuring)
            seed_torch(self._measuring, self.device)  # for the source of the first batch
            for number, batch in enumerate(batches):
                seed_torch(self._measuring + number, self.device)
                output, target, rows, every = self.evaluate_batch(module, batch, self.step_log)
                yield batch, output, target, rows, every

    def evaluate_batch(
        self, module: Any, batch: Batch, samples: StepLog
    ) -> tuple[Tensor, Nested, dict[str, Tensor], Nested]:
        """Return the output of a module, its targets, its per-row values by name, and all outputs.

        `samples` receives images and texts.
        """
        with self.autocast(), gather_logs(self.taken, len(batch), samples) as logged:
            output, losses, every = self.objective.rows(module, batch)
        rows = {} if losses is None else {"loss": losses, **self.objective.named_losses()}
        if losses is not None and losses.ndim:
            check_rows("loss", losses, batch)
        target = self.objective.targets(batch)
        rows |= measure_batch(self.metrics, batch, output, target, every)
        return output, target, rows | logged, every

    @property
    def evaluated(self) -> nn.Module:
        """The module that is evaluated and exported: the averaged one, if there is one."""
        return self.module if self.average is None else self.average.module

    def describe(self) -> str:
        """Describe the module in a few words."""
        total, trained = count_parameters(self.module)
        name = type(self.module).__name__
        return f"{name} with {total:,} parameters, {trained:,} trained, on {self.device}"

    def details(self) -> Iterator[str]:
        """Yield parameters, device, precision, optimizers and schedules."""
        yield "{} parameters, {} of them trained".format(*count_parameters(self.module))
        yield f"on {self.device}, in {self.precision}"
        for kind, found in (("optimizer", self.update.optimizers), ("schedule", self.update.schedulers)):
            for name, each in found.items():
                yield f"{kind} {name or '(the only one)'}: {type(each).__name__}"

    def hardware(self) -> str:
        """Return the device and the version of torch."""
        return describe_device(self.device)

    def take_pictures(self) -> Sequence[Mapping[str, Any]]:
        """Return the images and texts that were logged."""
        return [self.step_log.take_samples()]

    @property
    def models(self) -> Sequence[Any]:
        """The module."""
        return [self.module]

    @property
    def row_metrics(self) -> Sequence[str]:
        """The metrics of the config and of the model builder."""
        return list(self.metrics)

    @property
    def couples_rows(self) -> bool:
        """Whether the loss is known to couple the rows of a batch."""
        return bool(self.objective.is_coupled)

    def has_gradients(self) -> bool:
        """Return whether a weight has a nonzero gradient; True if parameters are frozen."""
        if self.update.frozen:
            return True
        found = [p.grad for p in self.module.parameters() if p.requires_grad and p.grad is not None]
        return any(bool((g.coalesce().values() if g.is_sparse else g).any()) for g in found)

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the module, or of `model` in its place."""
        module = self.evaluated if model is None else model.to(self.device)
        with own_randomness(), torch.no_grad(), self.autocast():
            return map_arrays(to_numpy, self.objective.rows(module, batch)[2])

    def weights(self) -> Sequence[Weights]:
        """Return the state of the module that is evaluated."""
        state = self.evaluated.eval().state_dict()
        extra = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        return [Weights({n: t for n, t in state.items() if isinstance(t, Tensor)}, pack(extra).values)]

    def options(self) -> Any:
        """Return the options of each group of each optimizer."""
        return self.update.options()

    def set_options(self, options: Any) -> None:
        """Set the options of the optimizers for all further steps."""
        self.update.set_options(options)

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Pass the validation loss to `ReduceLROnPlateau` schedules."""
        self.update.observe(rows[0])

    def state(self) -> Sequence[State]:
        """Return weights, optimizers, schedules, averages, sums, random state and step."""
        return [pack(self._read_parts())]

    def _read_parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"model": self.module.state_dict(), "step": self.step, **self.update.state()}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        if found := self._found.read():
            parts["found"] = found
        parts["sums"] = self.sums.state()
        # Between two epochs there is no random state to store: the next step seeds the generators.
        parts["random"] = random_state() if self.step % self.update.steps_per_epoch else None
        return parts

    def load(self, states: Sequence[State]) -> None:
        """Load a state."""
        parts = unpack(states[0])
        try:
            self.module.load_state_dict(parts["model"])
            self._found.load_groups(parts.get("found", {}))
            self.update.load(parts)
            if self.average is not None and "average" in parts:
                self.average.load_state_dict(parts["average"])
            self._load_found(parts)
            self.sums.load(parts.get("sums"))
            set_random_state(parts.get("random"))
            self.step = int(parts["step"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise FolderError(f"the checkpoint does not fit the model: {error}") from error
        self.update.thaw(self.step)

    def _load_found(self, parts: Mapping[str, Any]) -> None:
        """Load the state that was found in the object; earlier versions stored only own optimizers."""
        self._found.load(parts.get("found", {"objects": parts.get("own_optimizers", {})}))

    def _reseed(self) -> None:
        seed = self.stream + self.step
        seed_torch(seed, self.device)
        if self.step % self.update.steps_per_epoch == 0:
            seed_slow(seed)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that computes in the precision of the config."""
        if self.precision not in DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])
