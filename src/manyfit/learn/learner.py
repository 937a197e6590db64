"""What a trainer trains. One protocol; everything that trains implements it.

A learner drives a cohort of n runs at once. Everything that it returns about them has a leading n; it returns
one state for each run, in the form in which a run of its own would have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.nested import Nested, map_arrays
from manyfit.learn.split_metrics import SplitMetrics

Metrics: TypeAlias = Mapping[str, Any]
"""Arrays of shape (n,), on the device.

Of training: `train_loss` is a mean over rows, `train_<name>` a further loss, `lr` the last rate of the only
optimiser, `lr_<name>` that of each one of several."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one batch gave, row by row: arrays of shape (n, rows, ...)."""

    index: npt.NDArray[np.int64]
    output: npt.NDArray[Any]
    target: npt.NDArray[Any] | None
    rows: Mapping[str, npt.NDArray[np.float64]]
    """Numbers for each row: `loss`, where there is one, and every metric, of shape (n, rows)."""
    shared: frozenset[str] = frozenset()
    """Those of them that are numbers of the whole batch, the same for all its rows."""
    several: Callable[[], tuple[Nested, Nested]] | None = None
    """Where there is more than one output or target: all of them, as the model and the data give them.

    `output` and `target` are then the main ones. It is called only where rows are reported."""

    def every(self, member: int) -> tuple[Nested, Nested]:
        """All outputs and targets of one run of a cohort."""
        every = (self.output, self.target) if self.several is None else self.several()
        return tuple(map_arrays(lambda array: array[member], value) for value in every)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model, as an export holds them: tensors, and what else its state has."""

    tensors: Mapping[str, Any]
    extra: Mapping[str, Any]


class MembersFailed(Exception):
    """Some runs of a cohort have failed; the others have done what was asked.

    `found` has what the others returned, with None for those that failed.
    """

    def __init__(self, errors: Mapping[int, BaseException], found: Sequence[Any] = ()) -> None:
        super().__init__("; ".join(f"run {i}: {error}" for i, error in errors.items()))
        self.errors = dict(errors)
        self.found = list(found)


def split_by_run(metrics: Metrics, n: int) -> list[dict[str, float]]:
    """Return the metrics of each run, without those that are masked for it; one transfer for all of them."""
    columns = fetch_all(metrics)
    masks = {name: np.ma.getmaskarray(value) for name, value in metrics.items() if np.ma.isMaskedArray(value)}
    return [
        {
            name: float(column[i])
            for name, column in columns.items()
            if name not in masks or not masks[name][i]
        }
        for i in range(n)
    ]


def fetch_all(metrics: Metrics) -> dict[str, npt.NDArray[np.float64]]:
    """Bring metrics from their device; those that are alike come together."""
    alike: dict[Any, list[str]] = {}
    for name, value in metrics.items():
        if hasattr(value, "detach") and getattr(value, "is_cuda", False):
            alike.setdefault((value.device, value.dtype, tuple(value.shape)), []).append(name)
    found: dict[str, npt.NDArray[np.float64]] = {}
    for names in alike.values():
        import torch

        stacked = fetch(torch.stack([metrics[name] for name in names]))
        found |= dict(zip(names, stacked, strict=True))
    return {name: found[name] if name in found else fetch(value) for name, value in metrics.items()}


def fetch(value: Any) -> npt.NDArray[np.float64]:
    """Bring one of a learner's metrics from its device."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)


class Learner(Protocol):
    """Weights, optimiser, schedule and steps of n runs. `run/` calls nothing that is not listed here."""

    @property
    def n(self) -> int:
        """The number of runs that it trains."""
        ...

    @property
    def step(self) -> int:
        """Steps that were trained."""
        ...

    @property
    def grain(self) -> int:
        """Training pauses only at multiples of so many steps: 1, or the steps of an epoch."""
        ...

    @property
    def backend(self) -> str:
        """The framework that computes: a run resumes on the same one."""
        ...

    @property
    def reads_data(self) -> bool:
        """Whether it reads the rows to train on itself, all at once, instead of being given batches."""
        ...

    @property
    def stands_between_batches(self) -> bool:
        """Whether `step` counts what was trained whenever a batch is asked for."""
        ...

    def describe(self) -> str:
        """Describe it in a few words."""
        ...

    def details(self) -> Iterator[str]:
        """Yield what somebody who debugs a run wants to know, line by line."""
        ...

    def hardware(self) -> str:
        """Return the device and what drives it, for provenance."""
        ...

    # -- before the first step --------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it can predict: some models can only once they were trained."""
        ...

    @property
    def models(self) -> Sequence[Any]:
        """The objects that are trained, one for each run."""
        ...

    @property
    def row_metrics(self) -> Sequence[str]:
        """The metrics that `evaluate` gives for each row, beside the loss."""
        ...

    @property
    def couples_rows(self) -> bool:
        """Whether the loss of a row depends on the other rows of its batch."""
        ...

    def rehearse(self) -> None:
        """Raise a `UsageError` for whatever can be found out before the first step."""
        ...

    def without_callbacks(self) -> Learner:
        """Return a learner that calls none of the callbacks that a model brings: they may write files."""
        ...

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Any, steps: int) -> None:
        """Train to the next boundary. Where a run pauses changes neither its weights nor its means.

        `batches` is an iterator of `Batch`; a learner of several runs gets a `manyfit.data.walk.Walk`. With
        the first step of an epoch, a learner seeds whatever random generators its training draws from. A
        learner that can tell which of its runs has failed trains the others first, and then raises
        `MembersFailed`.
        """
        ...

    def take(self) -> Metrics:
        """Return named losses and rates since the last call."""
        ...

    def has_gradients(self) -> bool:
        """Whether the last step gave any weight a gradient; True where that cannot be known."""
        ...

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Take what was measured at a validation, or that an epoch has ended without one."""
        ...

    def stop_reasons(self) -> Sequence[str]:
        """Return the reason to stop each run early; empty to continue."""
        ...

    def end(self) -> None:
        """Finish: the training is over."""
        ...

    def options(self) -> Any:
        """Return what the optimisers are set to, as the config asks for it before a state is loaded."""
        ...

    def set_options(self, options: Any) -> None:
        """Train with other options of the optimisers from now on."""
        ...

    def keep(self, indices: Sequence[int]) -> None:
        """Go on with these runs only; the others leave the cohort."""
        ...

    # -- evaluation -------------------------------------------------------------------------------

    def measure(self, batches: Any, further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the means over all rows: of the loss, of row metrics, of what the model measures itself.

        They are computed on the device; rows stay there. `further` are metrics of a whole split for each run,
        which see every batch.
        """
        ...

    def evaluate(self, batches: Any) -> Iterator[Outputs]:
        """Predict, row by row, without learning. `batches` is as in `train`."""
        ...

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return what the model has measured itself of all rows that were evaluated last, for each run."""
        ...

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the first run's model, or of another model in its place, as arrays."""
        ...

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> Sequence[State]:
        """Return one state for each run: tensors and plain values, nothing else.

        The tensors are the live ones: copy a state to keep it while training continues.
        """
        ...

    def load(self, states: Sequence[State]) -> None:
        """Continue from states that `state` returned."""
        ...

    def weights(self) -> Sequence[Weights]:
        """Return the weights that are evaluated and exported, for each run."""
        ...


class BaseLearner:
    """Defaults for a learner of a kind of your own, which overrides what it has.

    To implement: `describe`, `train`, `take`, `evaluate`, `predict`, `state`, `load` and `weights`.
    """

    n: int = 1
    step: int = 0
    grain: int = 1
    reads_data: ClassVar[bool] = False
    stands_between_batches: ClassVar[bool] = False
    backend: str = "torch"
    model: Any

    def details(self) -> Iterator[str]:
        """Nothing beyond the description."""
        return iter(())

    def hardware(self) -> str:
        """The CPU."""
        return "cpu"

    @property
    def is_ready(self) -> bool:
        """It can predict from the start."""
        return True

    @property
    def models(self) -> Sequence[Any]:
        """The one model."""
        return [self.model] * self.n

    @property
    def row_metrics(self) -> Sequence[str]:
        """None beside the loss."""
        return []

    @property
    def couples_rows(self) -> bool:
        """Each row has a loss of its own."""
        return False

    def rehearse(self) -> None:
        """Nothing can be found out in advance."""

    def without_callbacks(self) -> Any:
        """It calls none."""
        return self

    def has_gradients(self) -> bool:
        """Unknown."""
        return True

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Nothing depends on it."""

    def stop_reasons(self) -> Sequence[str]:
        """It never stops a run."""
        return [""] * self.n

    def end(self) -> None:
        """Nothing is left to do."""

    def options(self) -> Any:
        """There are none that could be changed."""

    def set_options(self, options: Any) -> None:
        """There are none that could be changed."""

    def keep(self, indices: Sequence[int]) -> None:
        """All runs can be kept; to leave some behind takes a learner of several."""
        if list(indices) != list(range(self.n)):
            raise ValueError(f"this learner cannot go on with {list(indices)} of its {self.n} runs")

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """To be implemented."""
        raise NotImplementedError

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Every number belongs to a row."""
        return [{} for _ in range(self.n)]

    def measure(self, batches: Iterator[Batch], further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Means of what `evaluate` gives for each row."""
        sums: dict[str, RowMeans] = {}
        for outputs in self.evaluate(batches):
            for name, values in outputs.rows.items():
                sums.setdefault(name, RowMeans(name)).add(values)
            for member, metrics in enumerate(further):
                target = None if outputs.target is None else outputs.target[member]
                metrics.update(outputs.output[member], target)
        own = self.whole()
        means: dict[str, Any] = {name: each.mean() for name, each in sums.items()}
        return means | {name: np.array([row[name] for row in own]) for name in own[0]}


class RowMeans:
    """The mean over rows: undefined for a loss that is so somewhere, else of the rows that have a number."""

    def __init__(self, name: str) -> None:
        self._is_loss = name == "loss"
        self._sums: list[Any] = []
        self._counts: list[Any] = []

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add the rows of a batch, of shape (n, rows)."""
        known = np.ones(values.shape, dtype=bool) if self._is_loss else ~np.isnan(values)
        self._sums.append(np.where(known, values, 0.0).sum(axis=1))
        self._counts.append(known.sum(axis=1))

    def mean(self) -> npt.NDArray[np.float64]:
        """Return the mean for each run."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.sum(self._sums, axis=0) / np.sum(self._counts, axis=0))
