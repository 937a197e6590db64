"""The learner made of a user's functions. Its state is found by looking at the object."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from manyfit.core.state import State
from manyfit.data import Batch, Source
from manyfit.data.nested import Nested, map_arrays
from manyfit.data.randomness import own_randomness
from manyfit.learn.found_state.hidden import find_globals
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.found_state.values import is_same
from manyfit.learn.functions.bench import Bench
from manyfit.learn.functions.epochs import OwnEpochs
from manyfit.learn.functions.evaluation import OwnEvaluation
from manyfit.learn.functions.functions import GUARANTEES, Functions
from manyfit.learn.functions.loaders import RunData, make_loaders
from manyfit.learn.functions.losses import read_losses, to_device
from manyfit.learn.functions.networks import Networks
from manyfit.learn.metrics_by_run import Metrics, split_by_run
from manyfit.learn.step_log import logging_to
from manyfit.learn.torch.learner import DTYPES, TorchLearner
from manyfit.learn.torch.loss_sums import EpochSums
from manyfit.learn.torch.outputs import to_numpy
from manyfit.learn.torch.randomness import seed_slow, seed_torch

log = logging.getLogger("manyfit")

MOST_STEPS_WITHOUT_UPDATE: Final = 64
"""After this many steps without a call of `self.step()`, `train_step` is assumed never to call it."""


@dataclass
class FunctionLearner(TorchLearner):
    """Learner that calls a user's functions; everything that they do not replace is as for a module."""

    functions: Functions = field(default_factory=lambda: Functions(None))
    splits: RunData | None = None
    epochs: int = 1
    deciding: Mapping[str, bool] = field(default_factory=dict)
    """The metrics that select the best checkpoint or stop a run, and whether the config names them."""

    def __post_init__(self) -> None:
        self.epoch_sums = EpochSums(self.objective.device)
        self._again: Mapping[str, Any] | None = None
        """The state to load once more, when the user's loop has begun."""
        self._rates: Mapping[str, float] = {}
        self._measured: dict[str, float] = {}
        """The latest validation metrics."""
        self.bench = Bench(self)
        self.evaluation = OwnEvaluation(self)
        self.own_epochs = OwnEpochs(self)
        self.loaders = make_loaders(self.splits, self.objective.tensor)
        super().__post_init__()
        if self.functions.span in ("epoch", "loop"):
            self.grain = self.per_epoch

    # -- what the object is given -----------------------------------------------------------------

    def _find_state(self) -> FoundState:
        functions = self.functions
        functions.bind(self)
        kept = [self.module, *self.update.optimizers.values(), *self.update.schedulers.values()]
        kept += [self.update.scaler, self.average]
        kept += self.module.children() if isinstance(self.module, Networks) else ()
        found = FoundState(functions.root, kept, functions.hidden, modes=functions.keeps_modes)
        functions.remember_made(found)
        return found

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return self.update.steps_per_epoch

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.step // self.per_epoch

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train for this many steps: one by one, or in epochs of the user's own."""
        if not self.step:
            self.seed_all(self.stream)
            self.functions.on_train_start()
            self.bench.check_created()
            self.bench.is_from_start = True
        if self.update.frozen:
            self.update.thaw(self.step)
        with logging_to(self.step_log):
            if self.functions.span != "step":
                self.own_epochs.train(batches, steps)
            else:
                for _ in range(steps):
                    self.train_batch(batches)

    def train_batch(self, batches: Iterator[Batch]) -> None:
        """Train one step."""
        if self.step % self.per_epoch == 0:
            self.open_epoch()
        batch = self.take_batch(batches)
        self._train_on(batch)
        self.count_batch(batch)
        if self._found.is_waiting:
            self.complete_state()
        self.close_step()

    def take_batch(self, batches: Iterator[Batch]) -> Batch:
        """Return the next batch of training, with the random generators seeded for its step."""
        batch = self.bench.current = self._next(batches)
        self._rates = self.update.rates()
        return batch

    def count_batch(self, batch: Batch) -> None:
        """Count a batch that was trained on, with the learning rates that it was trained with."""
        self._count(batch, None, self._rates)

    def count_whole(self) -> None:
        """Count a training without epochs as one step."""
        self.sums.rates = self.update.rates()
        self.step += 1

    def open_epoch(self) -> None:
        """Begin an epoch."""
        self._reseed()
        if self.loaders["train"] is not None:
            self.loaders["train"].epoch = self.epoch
        if self.epoch == 0:
            self.bench.watch_optimizers()
        self.functions.on_epoch_start()

    def close_step(self) -> None:
        """Check in the first epoch that settings have an effect, optimizers step, and state is kept."""
        if self.step == 1:
            self.bench.notice()
        if self.step <= self.per_epoch:
            self.bench.check_tools(self.step in (MOST_STEPS_WITHOUT_UPDATE, self.per_epoch))
            if self.step == self.per_epoch:
                self.bench.check_moved()

    def close_epoch(self) -> None:
        """Check the user's own epoch, if it was the first."""
        self.update.close_step()
        self.close_step()

    def all_modules(self) -> list[nn.Module]:
        """Return all modules that training or evaluation may call."""
        return [self.module, *self._found.modules()]

    def _train_on(self, batch: Batch) -> None:
        """Call the user's step with a batch, or with its parts, and add up its losses."""
        losses = (self._call_step if self.accumulate == 1 else self._call_parts)(batch)
        self.update.close_step()
        self.add_losses(losses, len(batch))

    def _call_step(self, batch: Batch) -> dict[str, Tensor]:
        moved = to_device(batch, self.objective.tensor)
        if self.precision not in DTYPES:
            returned = self.functions.train_step(moved)
        else:
            with self.autocast():
                returned = self.functions.train_step(moved)
        return read_losses(returned, self.functions.step_name, self.device)

    def _call_parts(self, batch: Batch) -> dict[str, Tensor]:
        """Call the user's step with each part of a batch; return the losses of the whole."""
        bench, parts = self.bench, list(batch.split(self.accumulate))
        sums: dict[str, Tensor] = {}
        for i, (part, share) in enumerate(parts):
            bench.current, bench.share, bench.is_last_part = part, share, i == len(parts) - 1
            bench.stepped.clear()
            for name, value in self._call_step(part).items():
                sums[name] = value * share + sums.get(name, 0)
        bench.current, bench.share, bench.is_last_part = batch, 1.0, True
        return sums

    def add_losses(self, losses: Mapping[str, Tensor], rows: int) -> None:
        """Add losses of some rows to those that are logged."""
        super().add_losses(losses, rows)
        if losses:
            self.epoch_sums.add(losses, rows)

    def seed_all(self, seed: int) -> None:
        """Seed all global random generators."""
        seed_torch(seed, self.device)
        seed_slow(seed)

    # -- what is said before it costs a training --------------------------------------------------

    def rehearse(self) -> None:
        """Name state that is not kept, and call the functions of whole splits with one batch."""
        lost = {**self._found.lost, **find_globals(self.functions.owner)}
        for path, reason in lost.items():
            log.warning(
                "%s.%s is not kept in checkpoints (%s): a resumed run would differ from one that was not "
                "interrupted, if training changes it", self.functions.name, path, reason,
            )  # fmt: skip
        if self.functions.span == "whole":
            log.warning("%s %s", self.functions.name, GUARANTEES["whole"])
        self.evaluation.rehearse()

    @property
    def lost(self) -> Mapping[str, str]:
        """What is not kept, with the reason."""
        return {**self._found.lost, **find_globals(self.functions.owner)}

    # -- evaluation -------------------------------------------------------------------------------

    def measure(self, batches: Iterator[Batch], further: Sequence[Any] = ()) -> Metrics:
        """Return the numbers of the validation split: those of the user's function, or means over rows."""
        return self.evaluation.measure(batches, further)

    def measure_rows(self, batches: Iterator[Batch], further: Sequence[Any] = ()) -> Metrics:
        """Return means over rows, as for a plain module."""
        return super().summarize(super().collect(batches, further))

    def divides_measure(self, further: bool) -> bool:
        """Return whether the functions evaluate a split part by part, and all metrics are theirs."""
        return self.functions.divides_splits and not (further or self.metrics)

    def collect(self, batches: Iterator[Batch], further: Sequence[Any] = (), known: Any = None) -> Any:
        """Return what the functions return for a part of the validation split, after what is known."""
        return self.evaluation.collect(batches, known)

    def summarize(self, collected: Any) -> Metrics:
        """Return the numbers that the functions make of all parts."""
        return self.evaluation.summarize(collected)

    def _evaluate(self, batches: Iterator[Batch]) -> Iterator[Any]:
        return self.evaluation.iterate(batches)

    def evaluate_rows(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """Yield outputs and losses of rows, as for a plain module."""
        return super()._evaluate(batches)

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """Yield predictions with per-row values; what the functions change on the object is undone."""
        with self.evaluation.undoing():
            yield from super().evaluate(batches)

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return the numbers of the user's function for a whole split."""
        return [self.evaluation.measure_attended()]

    def attend(self, source: Source | None) -> None:
        """Note which split is evaluated: it decides which functions are called."""
        self.evaluation.attended = source

    def seed_evaluation(self, number: int) -> None:
        """Seed the generators for a batch of an evaluation; for the first one, also the slow ones."""
        if number < 0:
            seed_slow(self._measuring)
        seed_torch(self._measuring + max(0, number), self.device)

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs for a batch."""
        if not self.functions.has_predictions and not self.evaluation.has_outputs:
            return np.zeros((len(batch), 0), dtype=np.float32)
        if not self.functions.has_predictions or (model is not None and not isinstance(model, Networks)):
            with self.evaluation.evaluating():
                return super().predict(batch, model)
        owner = self.functions if model is None else type(self.functions)(model.to(self.device).eval().owner)
        with self.evaluation.evaluating(), own_randomness(), torch.no_grad(), self.autocast():
            outputs = owner.predict(to_device(batch, self.objective.tensor))
        return map_arrays(to_numpy, outputs)

    def has_gradients(self) -> bool:
        """Return True: the functions step their optimizers themselves."""
        return True

    @property
    def reads_data(self) -> bool:  # type: ignore[override]
        """Whether training is one step, in which the object reads its loaders."""
        return self.functions.span == "whole"

    @property
    def names_are_known(self) -> bool:  # type: ignore[override]
        """False: the names of losses are known once the functions have returned them."""
        return False

    # -- after a validation or an epoch -----------------------------------------------------------

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Call the hooks with what was measured."""
        measured = {name: value for name, value in rows[0].items() if name.startswith("val_")}
        self.update.observe(measured)
        self._measured |= measured
        if self.step % self.per_epoch:
            with own_randomness(), self.bench.gather_hook_logs():
                self.seed_all(self._measuring + self.step)
                self.functions.on_validation_end(measured)
            return
        taken = self.epoch_sums.take_at(self.step, self.sums.rates, not self.objective.sums)
        (means,) = split_by_run(taken, 1)
        self.update.observe({name: value for name, value in means.items() if name.startswith("train_")})
        self.seed_all(self._measuring + self.step)  # the next epoch seeds them again
        with self.bench.gather_hook_logs():
            self.functions.on_epoch_end({"epoch": self.epoch, "step": self.step, **means, **self._measured})
        if self.epoch == 1:
            self.bench.check_names([*rows[0], *means, *self._measured, *self.bench.logged])

    def take(self) -> Metrics:
        """Return mean losses and learning rates."""
        is_epoch = self.sums.has_same_batches(self.epoch_sums)
        found = super().take()
        self.epoch_sums.known = (self.step, found) if is_epoch else None
        return found

    def take_logged(self) -> Sequence[Mapping[str, float]]:
        """Return what the hooks have logged since the last call."""
        found, self.bench.logged = self.bench.logged, {}
        return [found]

    def take_pictures(self) -> Sequence[Mapping[str, Any]]:
        """Return the images that the functions have made since the last call."""
        found, self.bench.pictures = self.bench.pictures, {}
        return [{**super().take_pictures()[0], **found}]

    def stop_reasons(self) -> Sequence[str]:
        """Return why the user's loop has ended early, if it has."""
        self.own_epochs.stop_reason = self.own_epochs.stop_reason or self.functions.stop_reason()
        return [self.own_epochs.stop_reason]

    def end(self) -> None:
        """Finish the user's loop, and call the hook."""
        self.own_epochs.close()
        self.bench.call_last_hook()

    # -- state ------------------------------------------------------------------------------------

    def _read_parts(self) -> dict[str, Any]:
        own = {**self.own_epochs.state(), **self.evaluation.state(), "epoch_sums": self.epoch_sums.state()}
        own |= {"measured": dict(self._measured)} if self._measured else {}
        own |= {"given": given} if (given := self.functions.read_given()) else {}
        self.bench.notice()
        return {**super()._read_parts(), **own}

    def _load_found(self, parts: Mapping[str, Any]) -> None:
        self.own_epochs.load(parts)
        self.evaluation.load(parts)
        self.epoch_sums.load(parts.get("epoch_sums"))
        self._measured = dict(parts.get("measured", {}))
        self._reload(parts)
        self._again = parts if self.functions.span == "loop" else None

    def _reload(self, parts: Mapping[str, Any]) -> None:
        saved = parts.get("found", {"objects": parts.get("own_optimizers", {})})
        is_changed = (given := parts.get("given")) and not is_same(given, self.functions.read_given())
        self._found.load(saved, bool(is_changed))

    def load(self, states: Sequence[State]) -> None:
        """Load a state."""
        super().load(states)
        self.bench.forget()

    def complete_state(self) -> None:
        """Load the state once more: the user's loop may have set attributes or created objects."""
        if self._again is not None:
            again, self._again = self._again, None
            self.module.load_state_dict(again["model"])
            self._found.load_groups(again.get("found", {}))
            self.update.load(again)
            self._reload(again)
        for path in self._found.complete():
            what = f"{self.functions.name}.{path} was not there when the run was resumed"
            log.warning("%s, so its state is lost: create it in __init__ or in setup()", what)
        self.update.watch(self._found.optimizers())

    def copy_state(self) -> State:
        """Return a copy of the state, to go back to."""
        (state,) = self.state()
        return State({name: tensor.clone() for name, tensor in state.tensors.items()}, state.values)

    def describe(self) -> str:
        """Describe the object in a few words."""
        text = super().describe()
        own = self.functions.overrides()
        named = self.functions.name if isinstance(self.module, Networks) else ""
        text = text.replace("Networks", named, 1) if named else text
        return f"{text}, with {self.functions.name}.{', '.join(own)}" if own else text

    @property
    def guarantee(self) -> str:  # type: ignore[override]
        """What is guaranteed, given how much of the training is the user's."""
        return GUARANTEES[self.functions.span]

    @property
    def found(self) -> FoundState:
        """The state that was found on the object."""
        return self._found
