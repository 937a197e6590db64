"""The `Learner` protocol, which everything that trains implements, and defaults for it.

A learner trains a cohort of n runs at once. Everything it returns about them has a leading dimension n; the
state of each run is the same as if the run were trained alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from manyfit.core.state import State
from manyfit.data import Batch, Source
from manyfit.data.nested import Nested, map_arrays
from manyfit.learn.metrics_by_run import Metrics
from manyfit.learn.row_means import RowMeans
from manyfit.learn.split_metrics import SplitMetrics


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs for one batch: arrays of shape (n, rows, ...)."""

    index: npt.NDArray[np.int64]
    output: npt.NDArray[Any]
    target: npt.NDArray[Any] | None
    rows: Mapping[str, npt.NDArray[np.float64]]
    """Per-row values of shape (n, rows): `loss`, where there is one, and every metric."""
    shared: frozenset[str] = frozenset()
    """The names in `rows` whose values belong to the whole batch and are the same for all its rows."""
    several: Callable[[], tuple[Nested, Nested]] | None = None
    """With more than one output or target: a function that returns all of them, structured as the model and
    the data have them.

    `output` and `target` are then the main ones. It is called only for row reports."""

    has_heads: bool = False
    """Whether every output has a target of its own, so that columns of a report name them all."""

    def every(self, member: int) -> tuple[Nested, Nested]:
        """Return all outputs and targets of one run of a cohort."""
        every = (self.output, self.target) if self.several is None else self.several()
        return tuple(map_arrays(lambda array: array[member], value) for value in every)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model as exported: tensors, and the other values of its state."""

    tensors: Mapping[str, Any]
    extra: Mapping[str, Any]


class MembersFailed(Exception):
    """Error of some runs of a cohort; the others have completed the operation.

    `found` holds the results of the others, with None for the failed runs.
    """

    def __init__(self, errors: Mapping[int, BaseException], found: Sequence[Any] = ()) -> None:
        super().__init__("; ".join(f"run {i}: {error}" for i, error in errors.items()))
        self.errors = dict(errors)
        self.found = list(found)


class Learner(Protocol):
    """Weights, optimizers, schedules and training step of n runs. `run/` calls nothing but these methods."""

    @property
    def n(self) -> int:
        """The number of runs."""
        ...

    @property
    def step(self) -> int:
        """The number of steps trained so far."""
        ...

    @property
    def grain(self) -> int:
        """Training pauses only at multiples of this many steps: 1, or the steps of an epoch."""
        ...

    @property
    def backend(self) -> str:
        """The framework that computes; a run must resume on the same one."""
        ...

    @property
    def reads_data(self) -> bool:
        """Whether it reads all training rows itself instead of receiving batches."""
        ...

    @property
    def stands_between_batches(self) -> bool:
        """Whether `step` is up to date whenever the learner requests a batch."""
        ...

    def describe(self) -> str:
        """Describe the learner in a few words."""
        ...

    def details(self) -> Iterator[str]:
        """Yield details for debugging, one line each."""
        ...

    def hardware(self) -> str:
        """Return the device and the framework that uses it, for provenance."""
        ...

    # -- before the first step --------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it can predict; some models can only after training."""
        ...

    @property
    def models(self) -> Sequence[Any]:
        """The trained objects, one per run."""
        ...

    @property
    def row_metrics(self) -> Sequence[str]:
        """The per-row metrics that `evaluate` returns besides the loss."""
        ...

    @property
    def couples_rows(self) -> bool:
        """Whether the loss of a row depends on the other rows of its batch."""
        ...

    @property
    def names_are_known(self) -> bool:
        """Whether the names of all metrics are known before they are measured."""
        ...

    @property
    def lost(self) -> Mapping[str, str]:
        """State that checkpoints cannot keep, with the reason."""
        ...

    @property
    def guarantee(self) -> str:
        """Where training pauses and resumes, in words; empty for any step."""
        ...

    def rehearse(self) -> None:
        """Raise a `UsageError` for problems that can be detected before the first step."""
        ...

    def without_callbacks(self) -> Learner:
        """Return a learner that calls no callbacks of the model, since they may write files."""
        ...

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Any, steps: int) -> None:
        """Train for this many steps. Where a run pauses affects neither its weights nor its means.

        `batches` is an iterator of `Batch`; a learner of several runs receives a `manyfit.data.walk.Walk`. At
        the first step of an epoch, a learner seeds all random generators that its training uses. A learner
        that can tell which of its runs failed trains the others first, and then raises `MembersFailed`.
        """
        ...

    def take(self) -> Metrics:
        """Return the mean losses since the last call and the current learning rates, by name."""
        ...

    def has_gradients(self) -> bool:
        """Return whether any weight received a gradient in the last step; True if that is unknown."""
        ...

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Receive the metrics of each run after a validation, or after an epoch without one."""
        ...

    def take_logged(self) -> Sequence[Mapping[str, float]]:
        """Return what the model of each run has logged in its hooks since the last call, by full name."""
        ...

    def take_pictures(self) -> Sequence[Mapping[str, Any]]:
        """Return the images, (height, width, channels), and texts of each run since the last call."""
        ...

    def stop_reasons(self) -> Sequence[str]:
        """Return the reason to stop each run early; empty to continue."""
        ...

    def end(self) -> None:
        """Finish the training."""
        ...

    def options(self) -> Any:
        """Return the options of the optimizers, as the config sets them before a state is loaded."""
        ...

    def set_options(self, options: Any) -> None:
        """Set the options of the optimizers for all further steps."""
        ...

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these runs only; the others leave the cohort."""
        ...

    # -- evaluation -------------------------------------------------------------------------------

    def measure(self, batches: Any, further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the means over all rows: of the loss, of per-row metrics and of the model's own metrics.

        They are computed on the device; rows stay there. `further` holds, for each run, metrics of the whole
        split, which are updated with every batch.
        """
        ...

    def divides_measure(self, further: bool) -> bool:
        """Return whether a split can be measured part by part; `further` says if it has such metrics."""
        ...

    def collect(self, batches: Any, further: Sequence[SplitMetrics] = (), known: Any = None) -> Any:
        """Return what a part of a split adds to `known`, what earlier parts have returned.

        It can be pickled, and continued on another machine.
        """
        ...

    def summarize(self, collected: Any) -> Metrics:
        """Return the means over all rows that were collected."""
        ...

    def attend(self, source: Source | None) -> None:
        """Called before and after the rows of a split are evaluated, with the split and with None."""
        ...

    def evaluate(self, batches: Any) -> Iterator[Outputs]:
        """Yield per-row predictions, without training. `batches` is as in `train`."""
        ...

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return, for each run, the model's own metrics over all rows of the last evaluation."""
        ...

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the first run's model, or of `model` in its place, as arrays."""
        ...

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> Sequence[State]:
        """Return one state per run: tensors and plain values, nothing else.

        The tensors are live: copy a state to keep it while training continues.
        """
        ...

    def load(self, states: Sequence[State]) -> None:
        """Continue from states that `state` returned."""
        ...

    def weights(self) -> Sequence[Weights]:
        """Return, for each run, the weights that are evaluated and exported."""
        ...


class BaseLearner:
    """Defaults for custom learners.

    Subclasses implement `describe`, `train`, `take`, `evaluate`, `predict`, `state`, `load` and `weights`.
    """

    n: int = 1
    step: int = 0
    grain: int = 1
    reads_data: ClassVar[bool] = False
    stands_between_batches: ClassVar[bool] = False
    backend: str = "torch"
    names_are_known: bool = True
    guarantee: str = ""
    model: Any

    def details(self) -> Iterator[str]:
        """Yield nothing beyond the description."""
        return iter(())

    def hardware(self) -> str:
        """Return the CPU."""
        return "cpu"

    @property
    def is_ready(self) -> bool:
        """True: it can predict before training."""
        return True

    @property
    def models(self) -> Sequence[Any]:
        """The one model, for each run."""
        return [self.model] * self.n

    @property
    def row_metrics(self) -> Sequence[str]:
        """No metrics besides the loss."""
        return []

    @property
    def couples_rows(self) -> bool:
        """False: the loss of a row does not depend on other rows."""
        return False

    @property
    def lost(self) -> Mapping[str, str]:
        """Nothing: checkpoints keep all of its state."""
        return {}

    def rehearse(self) -> None:
        """Check nothing."""

    def without_callbacks(self) -> Any:
        """Return itself: it calls no callbacks."""
        return self

    def has_gradients(self) -> bool:
        """Return True: unknown."""
        return True

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Ignore the metrics."""

    def take_logged(self) -> Sequence[Mapping[str, float]]:
        """Return nothing: it has no hooks that log."""
        return [{} for _ in range(self.n)]

    def take_pictures(self) -> Sequence[Mapping[str, Any]]:
        """Return none: it makes no images."""
        return [{} for _ in range(self.n)]

    def stop_reasons(self) -> Sequence[str]:
        """Return no reasons: it never stops a run."""
        return [""] * self.n

    def end(self) -> None:
        """Do nothing."""

    def options(self) -> Any:
        """Return None: it has no options."""

    def set_options(self, options: Any) -> None:
        """Do nothing: it has no options."""

    def keep(self, indices: Sequence[int]) -> None:
        """Accept only the complete list of runs; a learner of several runs must override this."""
        if list(indices) != list(range(self.n)):
            raise ValueError(f"this learner cannot continue with only {list(indices)} of its {self.n} runs")

    def divides_measure(self, further: bool) -> bool:
        """Return False: a split is measured as a whole."""
        return False

    def collect(self, batches: Any, further: Sequence[SplitMetrics] = (), known: Any = None) -> Any:
        """Raise an error: a learner that divides measurements implements this."""
        raise NotImplementedError

    def summarize(self, collected: Any) -> Metrics:
        """Raise an error: a learner that divides measurements implements this."""
        raise NotImplementedError

    def attend(self, source: Source | None) -> None:
        """Do nothing: all splits are evaluated alike."""

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Raise an error: subclasses implement this."""
        raise NotImplementedError

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return none: every metric is per row."""
        return [{} for _ in range(self.n)]

    def measure(self, batches: Iterator[Batch], further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the means of the per-row values of `evaluate`."""
        sums: dict[str, RowMeans] = {}
        for outputs in self.evaluate(batches):
            for name, values in outputs.rows.items():
                sums.setdefault(name, RowMeans(name)).add(values)
            for member, metrics in enumerate(further):
                target = None if outputs.target is None else outputs.target[member]
                metrics.update(outputs.output[member], target, functools.partial(outputs.every, member))
        own = self.whole()
        means: dict[str, Any] = {name: each.mean() for name, each in sums.items()}
        return means | {name: np.array([row[name] for row in own]) for name in own[0]}
