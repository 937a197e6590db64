"""The learner for a compiled Keras model, on the TensorFlow and the torch backend.

It trains by calling the model's own compiled train function up to the next boundary, so it is as fast as
`model.fit`. All the state of a run is in variables: of the model (weights, running means, dropout seeds),
of the optimizer and of the metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.native import native_of
from manyfit.data.nested import Nested, map_arrays, pair_outputs
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.learn.keras.callbacks import Callbacks, expand_logs
from manyfit.learn.keras.evaluation import (
    arrays_of,
    clean_message,
    has_entry_per_row,
    measure_function,
    row_loss,
)
from manyfit.learn.keras.names import check_input_names, name_outputs
from manyfit.learn.keras.variables import Variables, fresh_generator
from manyfit.learn.learner import BaseLearner, Outputs, Weights
from manyfit.learn.metrics_by_run import Metrics
from manyfit.learn.packing import pack, unpack
from manyfit.learn.row_outputs import PerRow
from manyfit.learn.split_metrics import SplitMetrics

log = logging.getLogger("manyfit")

BACKENDS: Final = ("tensorflow", "torch")


@dataclass
class KerasLearner(BaseLearner):
    """Learner of one compiled model."""

    model: Any
    steps_per_epoch: int
    example: Callable[[], Batch]
    """Returns a batch; Keras builds weights, optimizer and metrics only when it has seen one."""
    callbacks: Sequence[Any] = ()
    epochs: int = 1
    seed: int = 0
    n: int = 1
    step: int = 0
    unused: Collection[str] = ()
    """Inputs that the model may ignore."""
    fed_by: str = "the data"
    """The data source, as error messages name it."""

    def __post_init__(self) -> None:
        keras: Any = import_optional("keras", "keras")

        self._keras = keras
        self.backend = keras.backend.backend()
        if self.backend not in BACKENDS:
            raise UsageError(
                f"the Keras backend is {self.backend!r}; manyfit supports {' and '.join(BACKENDS)}: "
                "set the environment variable KERAS_BACKEND"
            )
        if not getattr(self.model, "compiled", False):
            raise UsageError("the model is not compiled: call model.compile(optimizer=..., loss=...)")
        if int(getattr(self.model, "steps_per_execution", 1) or 1) != 1:
            raise UsageError("steps_per_execution must be 1: a run can pause at any step")
        self.device = _device(self.model) if self.backend == "torch" else torch.device("cpu")
        self._stream = derive(self.seed, "model")
        self._prepared = False
        self._since = 0
        self._pending = False
        self._stopped = ""
        self._loaded_rate: float | None = None
        self._whole: dict[str, float] = {}
        self._callbacks = Callbacks(keras, self.callbacks, self.model, self.epochs, self.steps_per_epoch)
        self._random = fresh_generator(derive(self.seed, "keras"))
        self._variables = Variables(keras, self.model, self._random)
        self._measure: Any = None
        self._has_names = False
        self._per_row = PerRow(has_entry_per_row)
        self._row_loss = row_loss(keras, self.model)

    def describe(self) -> str:
        """Describe the model in a few words."""
        self.build_model()
        count, name = self.model.count_params(), type(self.model).__name__
        trained = sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)
        return f"{name} with {count:,} parameters, {trained:,} trained, Keras on {self.backend}"

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train for this many steps. Metrics cover the epoch so far, as in Keras."""
        self._prepare()
        callbacks = self._began()
        while steps:
            position = self.step % self.steps_per_epoch
            if position == 0:
                self.observe([{}])  # end the previous epoch, unless a validation has done so
                self.model.reset_metrics()
                callbacks.on_epoch_begin(self.step // self.steps_per_epoch)
            count = min(steps, self.steps_per_epoch - position)
            self._run(batches, count, callbacks if self._callbacks.sees_batches else None)
            steps -= count
            self._pending = self.step % self.steps_per_epoch == 0
        self._look_for_a_stop()

    def _run(self, batches: Iterator[Batch], count: int, callbacks: Any) -> None:
        function = self.model.train_function
        native = native_of(batches, "tensorflow") if self.backend == "tensorflow" else None
        if self.backend == "torch":
            self.model.train()
        while count:
            iterator, ready = native.native(count) if native is not None else (None, count)
            for step in range(self.step, self.step + ready):
                if self.backend == "torch":
                    self._reseed(step)
                if callbacks is not None:
                    callbacks.on_train_batch_begin(step % self.steps_per_epoch)
                logs = function(iterator if native is not None else self._to_feed(next(batches, None)))
                if callbacks is not None:
                    callbacks.on_train_batch_end(step % self.steps_per_epoch, self._numbers(logs))
            self.step += ready
            self._since += ready
            count -= ready

    def _reseed(self, step: int) -> None:
        """Seed torch's global generators, which dropout uses, as a function of the seed and the step."""
        seed = (self._stream + step) & 0x7FFF_FFFF_FFFF_FFFF
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _to_feed(self, batch: Batch | None) -> Any:
        """Return a batch in the form that a train function accepts."""
        if batch is None:
            raise RunFailed(f"the data ended at step {self.step}; a source must continue from epoch to epoch")
        data = self._data(batch)
        return iter((data,)) if self.backend == "tensorflow" else [data]

    def _data(self, batch: Batch) -> Any:
        convert = self._keras.ops.convert_to_tensor
        inputs, target, weight = (map_arrays(convert, v) for v in (batch.inputs, batch.target, batch.weight))
        return inputs, target, weight

    def take(self) -> Metrics:
        """Return the learning rate, and the metrics of the epoch so far if a step was trained since."""
        found: dict[str, Any] = {"lr": np.array([self._rate()])}
        if self._since:
            logs = self._results()
            found["train_loss"] = np.array([logs.get("loss", np.nan)])
            found |= {f"train_{n}": np.array([v]) for n, v in logs.items() if n != "loss"}
        self._since = 0
        return found

    def _rate(self) -> float:
        rate = getattr(self.model.optimizer, "learning_rate", 0.0)
        return float(self._keras.ops.convert_to_numpy(rate))

    def _results(self) -> dict[str, float]:
        return self._numbers(self.model.get_metrics_result())

    def _numbers(self, logs: Mapping[str, Any]) -> dict[str, float]:
        return expand_logs(logs, self._keras.ops.convert_to_numpy)

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Yield predictions. The model's metrics are updated with every row; `whole` returns them."""
        for batch, output, losses in self._evaluate(batches):
            rows = {} if losses is None else {"loss": self._variables.numpy(losses).astype(np.float64)[None]}
            output = self._per_row.of(name_outputs(self.model, output, self._has_names), len(batch))
            if not (pairs := pair_outputs(output, batch.target)):
                raise UsageError("none of the outputs of the model has one entry per row")
            _, main, shown = pairs[0]
            target = None if shown is None else np.asarray(shown)[None]
            every = arrays_of(self._variables.numpy, output, batch.target)
            yield Outputs(batch.index, self._variables.numpy(main)[None], target, rows, several=every)

    def measure(self, batches: Iterator[Batch], further: Sequence[SplitMetrics] = ()) -> Metrics:
        """Return the model's own metrics; no row leaves the device."""
        if any(further):
            return super().measure(batches, further)
        for _ in self._evaluate(batches):
            pass
        return {name: np.array([value]) for name, value in self._whole.items()}

    def _evaluate(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Any, Any]]:
        """Yield every batch with its output and per-row losses, after updating the model's metrics."""
        self.build_model()
        if self.backend == "torch":
            self.model.eval()
        with self._variables.preserve(), own_randomness():
            seed_for(derive(self.seed, "evaluate"))
            self.model.reset_metrics()
            callbacks = self._callbacks.begun()
            if callbacks is not None:
                callbacks.on_test_begin()
            for batch in batches:
                inputs, target, weight = self._data(batch)
                yield batch, *self._measure_batch(inputs, target, weight)
            self._whole = self._results()
            if callbacks is not None:
                callbacks.on_test_end(self._whole)

    def whole(self) -> Sequence[Mapping[str, float]]:
        """Return the model's own metrics over the rows of the last evaluation."""
        return [self._whole]

    def _measure_batch(self, inputs: Any, target: Any, weight: Any) -> Any:
        if self._measure is None:
            self._measure = measure_function(self.backend, self.model, self._row_loss)
        return self._measure(inputs, target, weight)

    # -- callbacks --------------------------------------------------------------------------------

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Pass the metrics of an epoch to the callbacks, which may change the rate or stop training."""
        if not self._pending:
            return
        self._pending = False
        logs = {**self._results(), **{k: v for k, v in rows[0].items() if k.startswith("val_")}}
        self._began().on_epoch_end(self.step // self.steps_per_epoch - 1, logs)
        self._look_for_a_stop()

    def _began(self) -> Any:
        """Return the callbacks after `on_train_begin`, and restore the rate, which one may have set there."""
        callbacks = self._callbacks.begin()
        if self._loaded_rate is not None:
            self._set_rate(self._loaded_rate)
            self._loaded_rate = None
        return callbacks

    def stop_reasons(self) -> Sequence[str]:
        """Return the reason if a callback has stopped the training."""
        return [self._stopped]

    def end(self) -> None:
        """Call `on_train_end` of the callbacks."""
        if self._callbacks.begun() is not None:
            self._callbacks.begun().on_train_end()

    def _look_for_a_stop(self) -> None:
        if self._callbacks.has_stopped:
            self._stopped = f"a callback of the model has stopped it in epoch {self._epoch + 1}"

    @property
    def _epoch(self) -> int:
        """The epoch of the last step, counted from 0."""
        return max(0, self.step - 1) // self.steps_per_epoch

    def options(self) -> Any:
        """Return the learning rate."""
        return self._rate()

    def set_options(self, options: Any) -> None:
        """Set the learning rate, unless it is a schedule, and forget that a callback stopped the training."""
        self._stopped = ""
        self._loaded_rate = options
        self._set_rate(options)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate for the next step."""
        self._set_rate(rate)

    def _set_rate(self, rate: float) -> None:
        schedule = self._keras.optimizers.schedules.LearningRateSchedule
        optimizer = self.model.optimizer
        if optimizer is not None and not isinstance(getattr(optimizer, "_learning_rate", None), schedule):
            optimizer.learning_rate = rate

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> Sequence[State]:
        """Return the variables of model, optimizer and metrics, and the state of the callbacks."""
        self._prepare()
        tensors = {
            name: self._variables.tensor(variable) for name, variable in self._variables.by_name().items()
        }
        values = pack(
            {
                "step": self.step,
                "since": self._since,
                "pending": self._pending,
                "stopped": self._stopped,
                "callbacks": self._callbacks.state(),
            }
        )
        return [State({**tensors, **values.tensors}, values.values)]

    def load(self, states: Sequence[State]) -> None:
        """Load a state."""
        self._prepare()
        state = states[0]
        self._variables.load(state.tensors)
        parts = unpack(State(state.tensors, state.values))
        self.step, self._since, self._pending = parts["step"], parts["since"], parts["pending"]
        self._stopped = parts["stopped"]
        self._callbacks.load(parts["callbacks"])
        self._loaded_rate = self._rate()

    def weights(self) -> Sequence[Weights]:
        """Return the variables of the model only."""
        self._prepare()
        found = {
            name.removeprefix("model/"): self._variables.tensor(variable)
            for name, variable in self._variables.by_name().items()
            if name.startswith("model/")
        }
        return [Weights(found, {})]

    def predict(self, batch: Batch, model: Any = None) -> Nested:
        """Return the outputs of the model, or of `model` in its place."""
        model = self.model if model is None else model
        return map_arrays(self.numpy, model(self.inputs(batch), training=False))

    def without_callbacks(self) -> KerasLearner:
        """Return a learner of the same model without callbacks."""
        return replace(self, callbacks=())

    def hardware(self) -> str:
        """Return the device of the backend."""
        if self.backend == "tensorflow":
            found = import_optional("tensorflow", "tensorflow").config.get_visible_devices("GPU")
            return f"{len(found)} GPUs (tensorflow)" if found else "cpu"
        if self.device.type == "cpu":
            return "cpu"
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return f"{self.device} ({name}, torch {torch.__version__})"

    def _prepare(self) -> None:
        """Create everything Keras creates lazily: weights, optimizer, metrics and the train function."""
        if self._prepared:
            return
        self.build_model()
        self.model.make_train_function()
        self._prepared = True

    def build_model(self) -> None:
        """Call the model once, so that it has its variables. Its random states are not moved."""
        if self._measure is not None:
            return
        batch = self.example()
        check_input_names(self.model, batch.inputs, self.unused, self.fed_by)
        self._has_names = isinstance(batch.target, Mapping)
        data = self._data(batch)
        before = self._variables.array(self._random)
        try:
            output, _ = self._measure_batch(*data)
        except Exception as error:
            row_loss, self._row_loss, self._measure = self._row_loss, None, None
            try:  # the loss may not support a single row
                output, _ = self._measure_batch(*data)
            except Exception:
                self._measure = None
                inputs, target = (map_arrays(np.shape, value) for value in (batch.inputs, batch.target))
                shapes = f"inputs {inputs}, target {target}"
                raise UsageError(
                    f"the model cannot be called on a batch of {shapes}: {clean_message(error)}"
                ) from error
            assert row_loss is not None
            log.warning("per-row losses are not available: %s", clean_message(error))
        part = batch.part(0, len(batch) - 1)
        self._per_row.look(
            name_outputs(self.model, output, self._has_names),
            len(batch),
            lambda: name_outputs(self.model, self._measure_batch(*self._data(part))[0], self._has_names),
        )
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.reset_metrics()
        self._random.assign(before)

    def inputs(self, batch: Batch) -> Any:
        """Return the inputs of a batch as tensors of the backend."""
        return self._data(batch)[0]

    def numpy(self, output: Any) -> Any:
        """Return an output of the model as an array."""
        return np.array(self._variables.numpy(output))


def _device(model: Any) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
