"""Several learners as one: each trains its own run, in turn, with its own random states.

It trains any runs with the same plan together, whatever their models are, and each run has the same result as
if trained alone. It is not faster than training them one after another; it only shares the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from manyfit.core.signals import StopRequested
from manyfit.core.state import State
from manyfit.data import Batch, Source
from manyfit.data.nested import Nested, map_arrays, named_arrays
from manyfit.data.randomness import RandomStates
from manyfit.data.walk import Walk
from manyfit.learn.learner import Learner, MembersFailed, Outputs, Weights
from manyfit.learn.metrics_by_run import Metrics, fetch
from manyfit.learn.split_metrics import SplitMetrics

T = TypeVar("T")


@dataclass
class Part:
    """One learner of a group."""

    learner: Learner
    turn: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while the learner works, for example to direct what it logs to its own run."""
    randomness: RandomStates | None = None
    """The global random states as they were when the learner last worked."""

    def __post_init__(self) -> None:
        if self.randomness is None:
            self.randomness = RandomStates.read()

    @contextmanager
    def work(self, keep: bool = True) -> Iterator[None]:
        """Restore the learner's own random states, and save them on exit."""
        assert self.randomness is not None
        self.randomness.restore()
        try:
            with self.turn():
                yield
        finally:
            if keep:
                self.randomness = RandomStates.read()


class GroupLearner:
    """A learner of n runs, composed of n learners of one run each.

    If some of them fail, the others complete the operation first; then `MembersFailed` is raised.
    """

    stands_between_batches: ClassVar[bool] = False

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)

    @property
    def _first(self) -> Learner:
        return self._parts[0].learner

    @property
    def n(self) -> int:
        """The number of runs."""
        return len(self._parts)

    @property
    def step(self) -> int:
        """The number of steps trained so far."""
        return self._first.step

    @property
    def grain(self) -> int:
        """The grain, which is the same for all."""
        return self._first.grain

    @property
    def backend(self) -> str:
        """The framework of the first run."""
        return self._first.backend

    @property
    def reads_data(self) -> bool:
        """Whether any of them reads its rows itself."""
        return any(part.learner.reads_data for part in self._parts)

    @property
    def is_ready(self) -> bool:
        """Whether all can predict."""
        return all(part.learner.is_ready for part in self._parts)

    @property
    def models(self) -> Sequence[Any]:
        """The model of each run."""
        return [part.learner.models[0] for part in self._parts]

    @property
    def row_metrics(self) -> Sequence[str]:
        """The per-row metrics of all of them."""
        return list(dict.fromkeys(name for part in self._parts for name in part.learner.row_metrics))

    @property
    def couples_rows(self) -> bool:
        """Whether any of the losses couples rows."""
        return any(part.learner.couples_rows for part in self._parts)

    @property
    def names_are_known(self) -> bool:
        """Whether all metrics of all of them are known."""
        return all(part.learner.names_are_known for part in self._parts)

    @property
    def lost(self) -> Mapping[str, str]:
        """What the checkpoints of any of them cannot keep."""
        return {path: reason for part in self._parts for path, reason in part.learner.lost.items()}

    @property
    def guarantee(self) -> str:
        """Where they pause, which is the same for all."""
        return self._first.guarantee

    def attend(self, source: Source | None) -> None:
        """Tell each which split is evaluated."""
        for part in self._parts:
            part.learner.attend(source)

    def take_logged(self) -> Sequence[Mapping[str, float]]:
        """Return what each has logged in its hooks."""
        return [part.learner.take_logged()[0] for part in self._parts]

    def take_pictures(self) -> Sequence[Mapping[str, Any]]:
        """Return the images of each."""
        return [part.learner.take_pictures()[0] for part in self._parts]

    def describe(self) -> str:
        """Describe all of them."""
        return "; ".join(part.learner.describe() for part in self._parts)

    def details(self) -> Iterator[str]:
        """Yield the details of each."""
        for part in self._parts:
            yield from part.learner.details()

    def hardware(self) -> str:
        """Return the devices."""
        return ", ".join(dict.fromkeys(part.learner.hardware() for part in self._parts))

    def rehearse(self) -> None:
        """Rehearse each."""
        self._each(lambda learner, i: learner.rehearse())

    def without_callbacks(self) -> Learner:
        """Return the same group without the callbacks of its models."""
        return GroupLearner([Part(p.learner.without_callbacks(), p.turn, p.randomness) for p in self._parts])

    def train(self, batches: Walk, steps: int) -> None:
        """Train each for this many steps."""
        errors: dict[int, BaseException] = {}
        for count, streams in batches.chunks(steps):
            self._each(lambda learner, i, c=count, s=streams: learner.train(s[i], c), errors)  # type: ignore[misc]
        if errors:
            raise MembersFailed(errors)

    def take(self) -> Metrics:
        """Return losses and rates, masked for runs that have no value of that name.

        What the others have is in `found` of the error if some of them fail: it cannot be taken twice.
        """
        return self._join(self._each(lambda learner, i: learner.take()))

    def has_gradients(self) -> bool:
        """Return whether all have gradients."""
        return all(part.learner.has_gradients() for part in self._parts)

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Pass the metrics of each run to its learner."""
        self._each(lambda learner, i: learner.observe(rows[i : i + 1]))

    def stop_reasons(self) -> Sequence[str]:
        """Return the reason to stop each run early; empty to continue."""
        return self._each(lambda learner, i: learner.stop_reasons()[0])

    def end(self) -> None:
        """Finish each."""
        self._each(lambda learner, i: learner.end())

    def options(self) -> Any:
        """Return the options of each."""
        return [part.learner.options() for part in self._parts]

    def set_options(self, options: Any) -> None:
        """Set the options of each."""
        for part, each in zip(self._parts, options, strict=True):
            part.learner.set_options(each)

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these runs only."""
        self._parts = [self._parts[i] for i in indices]

    def measure(self, batches: Walk, further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the means, masked for runs that have no value of that name. No random state is moved."""
        streams = batches.separate()

        def measure(learner: Learner, i: int) -> Metrics:
            found = learner.measure(streams[i], further[i : i + 1])
            for metrics in further[i : i + 1]:
                metrics.values()  # which may draw random numbers, too
            return found

        return self._join(self._each(measure, keep=False))

    def divides_measure(self, further: bool) -> bool:
        """Return whether all of them can measure a split part by part."""
        return all(part.learner.divides_measure(further) for part in self._parts)

    def collect(self, batches: Walk, further: Sequence[SplitMetrics] = (), known: Any = None) -> list[Any]:
        """Return what a part of a split adds for each run. No random state is moved."""
        streams, before = batches.separate(), known or [None] * self.n
        return self._each(
            lambda learner, i: learner.collect(streams[i], further[i : i + 1], before[i]), keep=False
        )

    def summarize(self, collected: Sequence[Any]) -> Metrics:
        """Return the means, masked for runs that have no value of that name."""
        return self._join(self._each(lambda learner, i: learner.summarize(collected[i]), keep=False))

    def evaluate(self, batches: Walk) -> Iterator[Outputs]:
        """Predict batch by batch, with the outputs of all runs side by side. No random state is moved."""
        each = [part.learner.evaluate(s) for part, s in zip(self._parts, batches.separate(), strict=True)]
        before = [part.randomness for part in self._parts]
        try:
            while True:
                found = self._each(lambda learner, i: next(each[i], None))
                if any(outputs is None for outputs in found):
                    return
                yield _side_by_side([outputs for outputs in found if outputs is not None])
        finally:
            for part, randomness in zip(self._parts, before, strict=True):
                part.randomness = randomness

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return the own metrics of each model."""
        return self._each(lambda learner, i: learner.whole()[0])

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the first run's model."""
        with self._parts[0].work(keep=False):
            return self._first.predict(batch, model)

    def state(self) -> Sequence[State]:
        """Return the state of each."""
        return self._each(lambda learner, i: learner.state()[0])

    def load(self, states: Sequence[State]) -> None:
        """Load the state of each."""
        self._each(lambda learner, i: learner.load(states[i : i + 1]))

    def weights(self) -> Sequence[Weights]:
        """Return the weights of each."""
        return self._each(lambda learner, i: learner.weights()[0])

    def _each(
        self,
        act: Callable[[Learner, int], T],
        failed: dict[int, BaseException] | None = None,
        keep: bool = True,
    ) -> list[T]:
        """Call `act` for each in turn. With `failed`, errors are added to it, and runs in it are skipped."""
        errors = failed if failed is not None else {}
        found: list[Any] = []
        for i, part in enumerate(self._parts):
            found.append(None)
            if i in errors:
                continue
            try:
                with part.work(keep):
                    found[-1] = act(part.learner, i)
            except StopRequested:
                raise
            except BaseException as error:  # user code may raise anything, such as SystemExit
                errors[i] = error
        if errors and failed is None:
            raise MembersFailed(errors, found)
        return found

    def _join(self, found: Sequence[Metrics]) -> Metrics:
        names = dict.fromkeys(name for metrics in found for name in metrics)
        return {
            name: np.ma.masked_array(
                [float(fetch(metrics[name])[0]) if name in metrics else 0.0 for metrics in found],
                [name not in metrics for metrics in found],
            )
            for name in names
        }


def _side_by_side(found: Sequence[Outputs]) -> Outputs:
    first = found[0]

    def stack(arrays: Sequence[Any]) -> Any:
        return np.concatenate(arrays)

    def every() -> tuple[Nested, Nested]:
        several = [outputs.every(0) for outputs in found]
        return tuple(_stack_nested([each[side] for each in several]) for side in (0, 1))

    return Outputs(
        first.index,
        stack([outputs.output for outputs in found]),
        None if first.target is None else stack([outputs.target for outputs in found]),
        {name: stack([outputs.rows[name] for outputs in found]) for name in first.rows},
        first.shared,
        None if first.several is None else every,
    )


def _stack_nested(values: Sequence[Nested]) -> Nested:
    """Stack nested arrays of the same structure along a new first axis."""
    leaves = [iter([array for _, array in named_arrays(value)]) for value in values]
    return map_arrays(lambda array: np.stack([next(each) for each in leaves]), values[0])
