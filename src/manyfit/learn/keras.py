"""The learner for a compiled Keras model, on the TensorFlow and the torch backend.

It trains by calling the model's own compiled train function up to the next boundary, so that it costs what
`model.fit` costs. All that a run needs to go on is in variables: those of the model (weights, running means,
seeds of dropout), of the optimiser, and of the metrics.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import optional
from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.learn.learner import Metrics, Outputs
from manyfit.learn.pack import pack, unpack

log = logging.getLogger("manyfit")

BACKENDS: Final = ("tensorflow", "torch")
EMPTY: Final[Mapping[str, Any]] = {}


@dataclass
class KerasLearner:
    """Trains one compiled model."""

    model: Any
    steps_per_epoch: int
    example: Callable[[], Batch]
    """A batch, for what Keras only makes when it has seen one."""
    callbacks: Sequence[Any] = ()
    epochs: int = 1
    seed: int = 0
    n: int = 1
    step: int = 0
    stopped: str = field(default="", init=False)
    """Why a callback has ended the training."""

    def __post_init__(self) -> None:
        keras: Any = optional("keras", "keras")

        self._keras = keras
        self.backend: str = keras.backend.backend()
        if self.backend not in BACKENDS:
            raise UsageError(
                f"Keras runs on {self.backend!r} here; manyfit trains it on {' and '.join(BACKENDS)}: "
                "set the environment variable KERAS_BACKEND"
            )
        if not getattr(self.model, "compiled", False):
            raise UsageError("the model is not compiled: call model.compile(optimizer=..., loss=...)")
        if int(getattr(self.model, "steps_per_execution", 1) or 1) != 1:
            raise UsageError("steps_per_execution must be 1: a run pauses at any step")
        self.device = _device(self.model) if self.backend == "torch" else torch.device("cpu")
        self._stream = derive(self.seed, "model")
        self._prepared = False
        self._since = 0
        self._pending = False
        self._logs: dict[str, float] = {}
        self._whole: dict[str, float] = {}
        self._hooks: Any = None
        self._callback_state: Mapping[str, Any] = EMPTY
        self._measure: Any = None
        self._row_loss = _row_loss(keras, self.model)

    def describe(self) -> str:
        """What it is, in a few words."""
        self._build()
        count, name = self.model.count_params(), type(self.model).__name__
        trained = sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)
        return f"{name} with {count:,} parameters, {trained:,} trained, Keras on {self.backend}"

    # -- training ---------------------------------------------------------------------------------

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train for some steps."""
        self._prepare()
        self._begin()
        while steps:
            position = self.step % self.steps_per_epoch
            if position == 0:
                self._begin_epoch()
            count = min(steps, self.steps_per_epoch - position)
            self._run(batches, count, position)
            steps -= count
            self._pending = self.step % self.steps_per_epoch == 0

    def _run(self, batches: Iterator[Batch], count: int, position: int) -> None:
        model, hooks = self.model, self._hooks if self._watches_batches else None
        function = model.train_function
        native = getattr(batches, "is_native", False) and self.backend == "tensorflow"
        if self.backend == "torch":
            model.train()
        while count:
            iterator, ready = batches.native(count) if native else (None, count)  # type: ignore[attr-defined]
            first = position
            for i in range(first, first + ready):
                if hooks is not None:
                    hooks.on_train_batch_begin(i)
                if self.backend == "torch":
                    self._reseed(self.step + i - first)
                given = iterator if native else self._fed(next(batches, None))
                logs = function(given)
                if hooks is not None:
                    hooks.on_train_batch_end(i, self._keras_logs(logs))
            self.step += ready
            self._since += ready
            position += ready
            count -= ready

    def _reseed(self, step: int) -> None:
        """On torch, dropout draws from the global generators: they are functions of the seed and the step."""
        seed = (self._stream + step) & 0x7FFF_FFFF_FFFF_FFFF
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _fed(self, batch: Batch | None) -> Any:
        """A batch in the form in which a train function takes it."""
        if batch is None:
            raise RunFailed(f"the data ended at step {self.step}; a source goes on, epoch after epoch")
        data = self._data(batch)
        return iter((data,)) if self.backend == "tensorflow" else [data]

    def _data(self, batch: Batch) -> Any:
        convert = self._keras.ops.convert_to_tensor
        inputs = batch.inputs

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(item) for name, item in value.items()}
            return tuple(map(moved, value)) if isinstance(value, tuple | list) else convert(value)

        target = None if batch.target is None else moved(batch.target)
        weight = None if batch.weight is None else moved(batch.weight)
        return moved(inputs), target, weight

    def take(self) -> Metrics:
        """Means since the last call, and the last rate."""
        found: dict[str, Any] = {"lr": np.array([self._rate()])}
        if self._since:
            logs = self._results()
            self._logs = logs
            found["train_loss"] = np.array([logs.get("loss", np.nan)])
            found |= {f"train_{n}": np.array([v]) for n, v in logs.items() if n != "loss"}
            self.model.reset_metrics()
        self._since = 0
        return found

    def _rate(self) -> float:
        rate = getattr(self.model.optimizer, "learning_rate", 0.0)
        return float(self._keras.ops.convert_to_numpy(rate))

    def _results(self) -> dict[str, float]:
        return self._keras_logs(self.model.get_metrics_result())

    def _keras_logs(self, logs: Mapping[str, Any]) -> dict[str, float]:
        return {name: float(self._keras.ops.convert_to_numpy(value)) for name, value in logs.items()}

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Predict; the metrics of the model see every row, and `whole` says what they are."""
        self._build()
        keep = [self._array(v) for v in self.model.metrics_variables]
        self.model.reset_metrics()
        if self.backend == "torch":
            self.model.eval()
        try:
            with own_randomness():
                seed_for(derive(self.seed, "evaluate"))
                for batch in batches:
                    inputs, target, weight = self._data(batch)
                    output, losses = self._measured(inputs, target, weight)
                    rows = {} if losses is None else {"loss": self._numpy(losses).astype(np.float64)[None]}
                    shown = None if batch.target is None else _first(batch.target)
                    yield Outputs(
                        batch.index,
                        self._numpy(_first(output))[None],
                        None if shown is None else np.asarray(shown)[None],
                        rows,
                    )
            self._whole = self._results()
        finally:
            for variable, value in zip(self.model.metrics_variables, keep, strict=True):
                variable.assign(value)

    def whole(self) -> Sequence[Mapping[str, float]]:
        """What the model's own metrics said of the rows that were evaluated last."""
        return [self._whole]

    def _measured(self, inputs: Any, target: Any, weight: Any) -> Any:
        if self._measure is None:
            self._measure = self._made_measure()
        return self._measure(inputs, target, weight)

    def _made_measure(self) -> Callable[[Any, Any, Any], Any]:
        model = self.model

        def measure(inputs: Any, target: Any, weight: Any) -> Any:
            if target is None:
                return model.predict_step((inputs,)), None
            with _outputs_of(model) as seen:
                model.test_step((inputs, target, weight))
            output = seen[-1] if seen else model.predict_step((inputs,))
            return output, None if self._row_loss is None else self._row_loss(target, output)

        if self.backend == "tensorflow":
            tf: Any = optional("tensorflow", "tensorflow")

            if getattr(model, "run_eagerly", False):
                return measure
            graph = tf.autograph.experimental.do_not_convert(measure)
            found: Callable[[Any, Any, Any], Any] = tf.function(graph, reduce_retracing=True)
            return found
        return torch.no_grad()(measure)

    # -- callbacks --------------------------------------------------------------------------------

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Tell callbacks what an epoch gave; they may change the rate, or end the training."""
        if not self._pending:
            return
        self._begin()
        logs = {("loss" if k == "train_loss" else k.removeprefix("train_")): v for k, v in rows[0].items()}
        self._end_epoch({name: value for name, value in logs.items() if name != "lr"})

    def end(self) -> None:
        """Tell callbacks that the training is over."""
        if self._hooks is not None:
            self._hooks.on_train_end(self._logs)

    def _begin(self) -> None:
        if self._hooks is not None:
            return
        given = self.callbacks
        self._hooks = self._keras.callbacks.CallbackList(
            list(given), model=self.model, epochs=self.epochs, steps=self.steps_per_epoch, verbose=0
        )
        base = self._keras.callbacks.Callback
        names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
        self._watches_batches = any(getattr(type(c), n) is not getattr(base, n) for c in given for n in names)
        self.model.stop_training = False
        self._hooks.on_train_begin()
        for callback, key in zip(given, _names(given), strict=True):
            for name, value in self._callback_state.get(key, EMPTY).items():
                setattr(callback, name, value)

    def _begin_epoch(self) -> None:
        if self._pending:
            self._end_epoch(self._logs)
        self._hooks.on_epoch_begin(self.step // self.steps_per_epoch)

    def _end_epoch(self, logs: Mapping[str, float]) -> None:
        self._pending = False
        epoch = self.step // self.steps_per_epoch - 1
        self._hooks.on_epoch_end(epoch, dict(logs))
        if self.model.stop_training:
            self.stopped = f"stopped by a callback of the model after epoch {epoch + 1}"

    # -- state ------------------------------------------------------------------------------------

    def state(self) -> Sequence[State]:
        """Variables of model, optimiser and metrics, and where callbacks stand."""
        self._prepare()
        tensors = {name: self._tensor(variable) for name, variable in self._variables().items()}
        values = pack(
            {
                "step": self.step,
                "since": self._since,
                "pending": self._pending,
                "logs": self._logs,
                "stopped": self.stopped,
                "callbacks": self._callbacks_now(),
            }
        )
        return [State({**tensors, **values.tensors}, values.values)]

    def load(self, states: Sequence[State]) -> None:
        """Go on from a state."""
        self._prepare()
        state, variables = states[0], self._variables()
        known = {name for name in state.tensors if name.startswith(KINDS)}
        if known != set(variables):
            odd = sorted(known ^ set(variables))
            raise RunFailed(f"the checkpoint does not fit the model: {odd[0]} is only in one of them")
        for name, variable in variables.items():
            value = state.tensors[name]
            if tuple(value.shape) != tuple(variable.shape):
                shapes = f"{tuple(value.shape)}, not {tuple(variable.shape)}"
                raise RunFailed(f"the checkpoint does not fit the model: {name} has shape {shapes}")
            variable.assign(value.cpu().numpy().astype(str(variable.dtype).replace("bfloat16", "float32")))
        parts = unpack(State(state.tensors, state.values))
        self.step, self._since, self._pending = parts["step"], parts["since"], parts["pending"]
        self._logs, self.stopped = parts["logs"], parts["stopped"]
        self._callback_state = {
            key: {name: _numpy_of(value) for name, value in found.items()}
            for key, found in parts["callbacks"].items()
        }

    def _callbacks_now(self) -> Mapping[str, Any]:
        if self._hooks is None:
            return {
                key: {name: _storable(value) for name, value in found.items()}
                for key, found in self._callback_state.items()
            }
        return {key: _plain_state(c) for c, key in zip(self.callbacks, _names(self.callbacks), strict=True)}

    def weights(self) -> dict[str, torch.Tensor]:
        """The variables of the model alone."""
        self._prepare()
        return {
            name.removeprefix("model/"): self._tensor(variable)
            for name, variable in self._variables().items()
            if name.startswith("model/")
        }

    def _variables(self) -> dict[str, Any]:
        # By their places: the names that Keras makes up depend on how many models there were before.
        found = {f"model/{i:04d}/{v.name}": v for i, v in enumerate(self.model.variables)}
        for i, variable in enumerate(getattr(self.model.optimizer, "variables", ())):
            found[f"optimizer/{i:04d}"] = variable
        for i, variable in enumerate(self.model.metrics_variables):
            found[f"metrics/{i:04d}"] = variable
        return found

    def _prepare(self) -> None:
        """Have Keras make whatever it makes late: weights, optimiser, metrics, the train function."""
        if self._prepared:
            return
        self._build()
        self.model.make_train_function()
        self._prepared = True

    def _build(self) -> None:
        if self._measure is not None:
            return
        batch = self.example()
        data = self._data(batch)
        try:
            self._measured(*data)
        except Exception as error:
            rows, self._row_loss, self._measure = self._row_loss, None, None
            try:  # the loss may be one that does not work row by row
                self._measured(*data)
            except Exception:
                self._measure = None
                shapes = f"inputs {_shape(batch.inputs)}, target {_shape(batch.target)}"
                text = str(error).strip().partition("\n")[0]
                raise UsageError(f"the model cannot be called on a batch of {shapes}: {text}") from error
            assert rows is not None
            log.warning("there is no loss for each row: %s", str(error).strip().partition("\n")[0])
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.model.reset_metrics()

    def _array(self, variable: Any) -> Any:
        return np.array(self._keras.ops.convert_to_numpy(variable))

    def inputs(self, batch: Batch) -> Any:
        """The inputs of a batch as tensors of the backend."""
        return self._data(batch)[0]

    def numpy(self, output: Any) -> Any:
        """An output of the model, the first of several, as an array."""
        return np.array(self._numpy(_first(output)))

    def _numpy(self, value: Any) -> Any:
        found = np.asarray(self._keras.ops.convert_to_numpy(value))
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found

    def _tensor(self, variable: Any) -> torch.Tensor:
        value = variable.value
        if isinstance(value, torch.Tensor):
            value = value.detach()
            return value.to(torch.int64) if value.dtype in UNSIGNED else value
        found = self._numpy(variable)
        return torch.from_numpy(found.astype(np.int64) if found.dtype.kind == "u" else np.array(found))


KINDS: Final = ("model/", "optimizer/", "metrics/")
UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)


@contextmanager
def _outputs_of(model: Any) -> Iterator[list[Any]]:
    """See what a test step hands to the metrics, whoever wrote it."""
    seen: list[Any] = []
    original = model.compute_metrics

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None, **more: Any) -> Any:
        seen.append(y_pred)
        return original(x, y, y_pred, sample_weight=sample_weight, **more)

    model.__dict__["compute_metrics"] = compute_metrics
    try:
        yield seen
    finally:
        del model.__dict__["compute_metrics"]


def _row_loss(keras: Any, model: Any) -> Callable[[Any, Any], Any] | None:
    """The compiled loss before it puts rows together; None for a model with several of them."""
    given = model.loss
    if given is None or isinstance(given, dict | list | tuple):
        return None
    loss = keras.losses.get(given)
    if isinstance(loss, keras.losses.Loss):
        loss = copy.copy(loss)
        loss.reduction = None

    def rows(target: Any, output: Any) -> Any:
        if isinstance(target, dict | list | tuple) or isinstance(output, dict | list | tuple):
            return None
        if len(target.shape) == len(output.shape) - 1 and output.shape[-1] == 1:
            target = keras.ops.expand_dims(target, -1)
        values = loss(target, output)
        if len(values.shape) == 0:
            return None  # a function of one's own that has put them together already
        return keras.ops.mean(keras.ops.reshape(values, (keras.ops.shape(values)[0], -1)), axis=-1)

    return rows


def _device(model: Any) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _first(value: Any) -> Any:
    """The output of a model that may have several: the first one."""
    while isinstance(value, dict | list | tuple):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    return [_shape(v) for v in value] if isinstance(value, tuple | list) else getattr(value, "shape", None)


def _names(callbacks: Sequence[Any]) -> list[str]:
    return [f"{i}/{type(callback).__name__}" for i, callback in enumerate(callbacks)]


def _plain_state(callback: Any) -> dict[str, Any]:
    """What of a callback can be kept: numbers, texts, arrays, and lists of them."""
    return {
        name: _storable(value)
        for name, value in vars(callback).items()
        if name not in ("params", "_model", "model") and _is_storable(value)
    }


def _is_storable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_storable(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.number | np.ndarray)


def _storable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    return value.item() if isinstance(value, np.number) else value


def _numpy_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_numpy_of(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value
