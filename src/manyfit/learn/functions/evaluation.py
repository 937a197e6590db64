"""Evaluation by a user's functions: of a batch, or of a whole split."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data import Batch, Source, once
from manyfit.data.nested import named_arrays
from manyfit.data.randomness import own_randomness
from manyfit.learn.functions.loaders import CountedBatches
from manyfit.learn.functions.losses import read_losses, to_device
from manyfit.learn.functions.networks import Networks
from manyfit.learn.metrics_by_run import Metrics, fetch
from manyfit.learn.step_log import gather_logs
from manyfit.learn.torch.row_metrics import measure_batch

if TYPE_CHECKING:
    from manyfit.learn.functions.learner import FunctionLearner

log = logging.getLogger("manyfit")


class OwnEvaluation:
    """The evaluation of an object with functions of its own."""

    def __init__(self, learner: FunctionLearner) -> None:
        self._learner = learner
        self._cached: dict[str, Any] | None = None
        self._logged: dict[str, list[tuple[float, int]]] = {}
        self._last: dict[str, float] = {}
        """The means of what was logged in the last evaluation."""
        self._rows = 0
        self._has_warned: set[str] = set()
        self._form: set[str] | None = None
        """What the rows of the run have: a target, and inputs by name."""
        self.attended: Source | None = None
        """The split whose rows are evaluated for a report."""
        self.has_measured = False
        self.is_open = False
        """Whether logged values belong to an evaluation."""

    def measure(self, batches: Iterator[Batch], further: Sequence[Any] = ()) -> Metrics:
        """Return the numbers of the validation split; those that the user's loop has measured are used."""
        learner, known = self._learner, self._cached
        self._cached, self.has_measured = None, True
        if known is not None and known["step"] == learner.step and not further:
            return {name: np.array([value]) for name, value in known["values"].items()}
        is_own = learner.functions.has_val_step or learner.functions.split_function("validation")
        with self.undoing(always=False, completely=True) if is_own else nullcontext():
            if not learner.functions.split_function("validation"):
                means = learner.measure_rows(batches, further)
                return {**means, **{name: np.array([value]) for name, value in self._last.items()}}
            found = {n: np.array([v]) for n, v in self._call("validation", batches).items()}
            source = learner.splits.validation if learner.splits is not None else None
            if source is None or not (further or learner.metrics):
                return found
            rows = learner.measure_rows(once(source, learner.splits.batch_size), further)  # type: ignore[union-attr]
            return {**{name: value for name, value in rows.items() if name != "loss"}, **found}

    def collect(self, batches: Iterator[Batch], known: Any) -> Any:
        """Return what the functions return for a part of the validation split, after what is known."""
        self._cached, self.has_measured = None, True
        with self.undoing(always=False, completely=True):
            return self._read("validation", batches, lambda f: f.collect_split("validation", known))

    def summarize(self, collected: Any) -> Metrics:
        """Return the numbers of the validation split from all of its parts."""
        with self.undoing(always=False, completely=True), self.evaluating(), torch.no_grad():
            found = self._learner.functions.summarize_split("validation", collected)
        return {name: np.array([value]) for name, value in found.items()}

    def validate(self) -> dict[str, float]:
        """Measure the validation split for the user's loop; the run will use the same numbers."""
        self._cached, splits = None, self._learner.splits
        if splits is None or splits.validation is None or not len(splits.validation):
            return {}
        batches = once(splits.validation, splits.batch_size)
        found = {name: float(fetch(value)[0]) for name, value in self.measure(batches).items()}
        self._cached = {"step": self._learner.step, "values": found}
        return found

    def measure_attended(self) -> dict[str, float]:
        """Return the numbers of the user's function for the split that was evaluated, for its report."""
        learner, splits, source, split = self._learner, self._learner.splits, self.attended, self._split
        own = learner.functions.split_function(split)
        if source is None or splits is None or not own or learner.loaders[split] is None:
            return dict(self._last)
        with self.undoing():
            return self._call(split, once(source, splits.batch_size))

    @property
    def _split(self) -> str:
        splits, source = self._learner.splits, self.attended
        return "test" if splits is not None and source is not None and source is splits.test else "validation"

    @property
    def has_outputs(self) -> bool:
        """Whether a batch has outputs: of the model, or of a function of the user's."""
        functions = self._learner.functions
        is_callable = functions.has_forward and not isinstance(self._learner.module, Networks)
        return functions.has_predictions or is_callable

    def rehearse(self) -> None:
        """Call the function of the validation split with one batch, so that mistakes are found at once."""
        learner, splits = self._learner, self._learner.splits
        if splits is None or learner.loaders["validation"] is None:
            return
        if learner.functions.split_function("validation"):
            assert splits.validation is not None
            with own_randomness(), self.undoing(completely=True):
                batches = itertools.islice(once(splits.validation, splits.batch_size), 1)
                self._call("validation", batches)

    def _call(self, split: str, batches: Iterator[Batch]) -> dict[str, float]:
        """Call the user's function of a whole split, whose loader yields these batches."""
        learner, name = self._learner, self._learner.functions.split_function(split)
        returned = self._read(split, batches, lambda functions: functions.measure_split(split))
        losses = read_losses(returned, f"{learner.functions.name}.{name}", learner.device)
        numbers = {key: float(value) for key, value in losses.items()}
        if isinstance(returned, Mapping) and "loss" not in returned:
            numbers.pop("loss", None)  # a sum of named numbers is not a loss of the split
        return numbers | self.means()

    def _read(self, split: str, batches: Iterator[Batch], act: Callable[[Any], Any]) -> Any:
        """Call functions that read the loader of a split, which yields these batches."""
        learner, number = self._learner, itertools.count()
        name = learner.functions.split_function(split)

        def take() -> Batch | None:
            learner.seed_evaluation(next(number))
            return next(batches, None)

        feed, loader = CountedBatches(take, self._see), learner.loaders[split]
        assert loader is not None
        between = learner.step % learner.per_epoch == 0
        with nullcontext() if between else own_randomness(), self._logging(), self.evaluating():
            learner.seed_evaluation(-1)
            loader.attach(feed)
            with torch.no_grad(), learner.autocast():
                returned = act(learner.functions)
            loader.attach(None)
        left = next(feed, None)
        if (left is not None or not feed.handed) and split not in self._has_warned:
            self._has_warned.add(split)
            log.warning(
                "%s.%s has read only %d batches of self.%s_loader: its numbers do not cover the split",
                learner.functions.name, name, feed.handed - (left is not None),
                "val" if split == "validation" else split,
            )  # fmt: skip
        return returned

    def measure_default(self, split: str) -> dict[str, float]:
        """Return the means over the rows of a split, for a function that extends the usual evaluation."""
        loader = self._learner.loaders[split]
        found = self._learner.measure_rows(loader.read() if loader is not None else iter(()))
        return {name: float(fetch(value)[0]) for name, value in found.items()}

    def _see(self, batch: Batch) -> None:
        self._rows = len(batch)

    @contextmanager
    def _logging(self) -> Iterator[None]:
        self.is_open, self._logged = True, {}
        try:
            yield
        finally:
            self.is_open = False

    def log(self, name: str, value: Tensor, rows: int | None) -> None:
        """Log a number of the current batch, or of the split."""
        self._logged.setdefault(name, []).append((float(value), rows or max(1, self._rows)))

    def means(self) -> dict[str, float]:
        """Return the means of what was logged in this evaluation so far."""
        return {
            name: sum(value * rows for value, rows in values) / sum(rows for _, rows in values)
            for name, values in self._logged.items()
        }

    def iterate(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """Yield every batch with its output, its target, its values by name, and all outputs."""
        learner, functions, split = self._learner, self._learner.functions, self._split
        self._last = {}
        with self.evaluating(), self._logging():
            if not functions.has_val_step and self.has_outputs and not functions.has_predictions:
                found: dict[str, list[Any]] = {}
                for each in learner.evaluate_rows(batches):
                    if functions.collects:
                        collect_arrays(found, each[0], each[4])
                    yield each
                joined = {name: np.concatenate(parts) for name, parts in found.items()}
                self._last = functions.measure_collected(joined) if functions.collects else {}
                return
            between = learner.step % learner.per_epoch == 0
            with nullcontext() if between else own_randomness():
                learner.seed_evaluation(-1)
                functions.on_evaluation_start(split)
                for number, batch in enumerate(batches):
                    learner.seed_evaluation(number)
                    learner.bench.current = batch
                    yield self._evaluate(batch, split)
                with torch.no_grad():
                    functions.on_evaluation_end(split)
                self._last = self.means()

    @torch.no_grad()
    def _evaluate(self, batch: Batch, split: str) -> Any:
        learner, functions = self._learner, self._learner.functions
        moved, self._rows = to_device(batch, learner.objective.tensor), len(batch)
        with learner.autocast(), gather_logs(learner.taken, len(batch), learner.step_log) as logged:
            is_scored = functions.has_val_step and self._is_complete(batch)
            returned = functions.val_step(moved, split) if is_scored else None
            outputs = None
            if isinstance(returned, tuple) and len(returned) == 2:
                outputs, returned = returned
            if outputs is None:
                outputs = self._outputs(batch, moved)
        rows = row_values(returned, len(batch), f"{functions.name}.val_step", learner.device)
        main = outputs if isinstance(outputs, Tensor) else learner.objective.main_output(outputs, len(batch))
        target = moved.target
        if main.numel():
            rows |= measure_batch(learner.metrics, batch, main, target, outputs)
        return batch, main, target, rows | logged, outputs

    def _is_complete(self, batch: Batch) -> bool:
        """Return whether a batch has everything that rows of the run have; new rows may have no targets."""
        splits = self._learner.splits
        if splits is None:
            return True
        if self._form is None:
            with own_randomness():
                self._form = describe_form(next(once(splits.validation or splits.train, 1)))
        return describe_form(batch) >= self._form

    def _outputs(self, batch: Batch, moved: Batch) -> Any:
        learner = self._learner
        if learner.functions.has_predictions:
            return learner.functions.predict(moved)
        if not self.has_outputs:
            return torch.zeros(len(batch), 0, device=learner.device)
        return learner.objective.rows(learner.module, batch, with_loss=False)[2]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Set all modules to evaluation mode; afterwards each is in its own mode again."""
        modules = list(self._learner.all_modules())
        modes = [(part, part.training) for module in modules for part in module.modules()]
        for module in modules:
            module.eval()
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode

    @contextmanager
    def undoing(self, always: bool = True, completely: bool = False) -> Iterator[None]:
        """Undo what functions change on the object: always, or only if they are interrupted.

        `completely` also restores the weights and the optimizers of the run. In a loop of the user's, an
        interruption goes back to the beginning of the epoch instead.
        """
        learner = self._learner
        state = learner.copy_state() if completely else None
        before = learner.found.snapshot() if not completely else None
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if (always or not is_done) and not learner.own_epochs.is_here:
                if state is not None:
                    learner.load([state])
                elif before is not None:
                    learner.found.restore(before)

    def forget(self) -> None:
        """Forget what was measured."""
        self._cached = None

    def state(self) -> dict[str, Any]:
        """Return what the user's loop has measured at this step."""
        known = self._cached
        is_current = known is not None and known["step"] == self._learner.step
        return {"validated": known} if is_current else {}

    def load(self, parts: Mapping[str, Any]) -> None:
        """Load a state."""
        found = parts.get("validated")
        self._cached = dict(found) if found else None


def describe_form(batch: Batch) -> set[str]:
    """Return what a batch has: the names of its inputs, and whether there is a target."""
    names = set(batch.inputs) if isinstance(batch.inputs, dict) else set[str]()
    return names | ({"target"} if batch.target is not None else set())


def collect_arrays(found: dict[str, list[Any]], batch: Batch, outputs: Any) -> None:
    """Add the arrays of a batch by name: inputs, target and outputs, of which a single one is `outputs`."""
    arrays = {name or "inputs": array for name, array in named_arrays(batch.inputs)}
    arrays |= {"target": batch.target} if batch.target is not None else {}
    arrays |= {name or "outputs": array for name, array in named_arrays(outputs)}
    for name, array in arrays.items():
        value = array.detach().cpu() if isinstance(array, Tensor) else array
        value = value.float() if isinstance(value, Tensor) and value.dtype is torch.bfloat16 else value
        found.setdefault(name, []).append(np.asarray(value))


def row_values(returned: Any, rows: int, where: str, device: torch.device) -> dict[str, Tensor]:
    """Return the values of a batch by name: one for each row, or one for the batch."""
    if returned is None:
        return {}
    named = returned if isinstance(returned, Mapping) else {"loss": returned}
    found: dict[str, Tensor] = {}
    for name, value in named.items():
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if tensor.ndim == 0 or tensor.shape == (rows,):
            found[str(name)] = tensor.detach().to(device)
        elif tensor.numel() == 1:
            found[str(name)] = tensor.detach().reshape(()).to(device)
        else:
            raise RunFailed(
                f"{where} must return one number, or one for each of {rows} rows, for {name!r}, but returned "
                f"shape {tuple(tensor.shape)}"
            )
    return found
