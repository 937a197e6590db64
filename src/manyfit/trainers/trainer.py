"""The trainer: a model, its data and its training functions, each of which can be replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from manyfit.core.errors import UsageError
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.functions.functions import BUILDING
from manyfit.learn.torch.build import parameters_up_to
from manyfit.trainers.parameters import bind_arguments, find_unread, named_parameters, supplied_parameters
from manyfit.trainers.translation import TrainerFunctions, hidden_attributes

REPLACED: Final = ("train", "train_epoch", "val_epoch", "test_epoch")
"""Methods that are called by manyfit and by the user alike."""


class Constructed(type):
    """The type of trainers: it notes the values with which a trainer was constructed."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Construct a trainer."""
        made = super().__call__(*args, **kwargs)
        hidden = (*hidden_attributes(cls), "loss", "optimizers", "schedulers", "config", "model_class")
        FoundState(made, hidden=hidden, modes=True).share_made(made.__dict__.setdefault("_made", {}))
        return made


class Trainer(metaclass=Constructed):
    """Trains a model on its data. Override what should be different.

    | method | what it replaces |
    |---|---|
    | `train_step(batch)` | the training on one batch; returns a loss, losses by name, or None |
    | `val_step(batch)` | the evaluation of one batch: a loss, numbers by name, or `(outputs, numbers)` |
    | `val_epoch()`, `test_epoch()` | the numbers of a whole split |
    | `train_epoch()` | one epoch over `self.train_loader` |
    | `train()` | the loop over `self.train_epoch()` and `self.val_epoch()` |
    | `predict_step(batch)` | the predictions, for a trainer without a model |

    Everything that a checkpoint needs is found on the object: networks, optimizers, schedules, generators,
    and values that change. A subclass need not call `super().__init__()`.
    """

    supplied: ClassVar[tuple[str, ...]] = supplied_parameters(object)
    model: Any
    train_loader: Any
    val_loader: Any
    test_loader: Any
    loss: Any
    device: Any
    optimizers: dict[str, Any]
    schedulers: dict[str, Any]
    num_epochs: int
    start_epoch: int
    _bench: Any
    _given: dict[str, Any]
    _frozen: list[nn.Parameter]
    history: list[dict[str, float]]
    """One row for each epoch: losses, learning rates and validation metrics."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Trainer:
        """Create a trainer with all arguments as attributes, whatever its `__init__` does with them."""
        self = super().__new__(cls)
        around = BUILDING.get()
        arguments = bind_arguments(cls, PARAMETERS, args, kwargs)
        own = {name: p.default for name, p in named_parameters(cls).items() if p.default is not p.empty}
        values = {**PARAMETERS, **own, **arguments}
        self.__dict__.update({"_bench": None, "_given": dict(arguments), "_frozen": []})
        self.__dict__.update({name: value for name, value in values.items() if name != "start_epoch"})
        self.__dict__.update({
            "start_epoch": values["start_epoch"], "history": [], "optimizers": {}, "schedulers": {},
            "loss": None, "model": arguments.get("model"),
        })  # fmt: skip
        self.__dict__["device"] = find_place(values["device"], values["device_id"])
        if around is not None:
            if unread := find_unread(cls, around.given):
                raise UsageError(f"nothing reads the parameter {unread[0]!r} of {cls.__name__}")
            self.__dict__.update({
                "model": around.model, "device": around.device, "num_epochs": around.epochs,
                "batch_size": around.batch_size, "train_loader": around.train_loader,
                "val_loader": around.val_loader, "test_loader": around.test_loader,
                **({"config": around.config} if values.get("config", self) is None else {}),
                "_given": {name: arguments[name] for name in around.given if name in arguments},
            })  # fmt: skip
            self._sync_config(around.config)
        return self

    def _sync_config(self, config: Any) -> None:
        """Update a typed config from that of the run; called before `__init__`."""

    def __init__(
        self,
        model: Any = None,
        *,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        train_loader: Any = None,
        val_loader: Any = None,
        test_loader: Any = None,
        num_epochs: int = 10,
        start_epoch: int = 0,
        batch_size: int = 64,
        val_batch_size: int | None = None,
        test_batch_size: int | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        drop_last: bool = False,
        loss_function: Any = None,
        optim_function: Any = "adam",
        learning_rate: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        metrics: Any = (),
        scheduler: Any = None,
        precision: str = "fp32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        device: Any = "auto",
        device_id: int | None = None,
        seed: int = 0,
        save_every: int | str | None = None,
        print_every: int | str | None = None,
        save_best: bool = True,
        stop_when_acc: float | None = None,
        early_stop: int | None = None,
        folder: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_name: str | None = None,
        verbose: bool = True,
    ) -> None:
        """All arguments are attributes already; they are listed here to be checked."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let manyfit know when one of the methods that replace parts of the training is called."""
        super().__init_subclass__(**kwargs)
        for name in REPLACED if not cls.__module__.startswith("manyfit.") else ():
            if name in vars(cls):
                setattr(cls, name, _dispatch(name, vars(cls)[name]))
        cls.supplied = supplied_parameters(cls)

    def as_functions(self) -> TrainerFunctions:
        """Return the functions of this trainer, for the learner that calls them."""
        return TrainerFunctions(self)

    # -- what to override -------------------------------------------------------------------------

    def setup(self) -> None:
        """Create what training needs; called in every process before a state is loaded."""

    def train(self) -> Any:
        """Train all epochs; in Python, this trains, evaluates and stores the run in its folder."""
        if self._bench is None:
            return self._launch()
        for _ in range(self.start_epoch, self.num_epochs):
            self.train_epoch()
            if self.val_loader is not None:
                self.val_epoch()
        return None

    def train_epoch(self) -> Any:
        """Train for one epoch on `self.train_loader`."""
        bench = self._needs_bench("train_epoch")
        if not bench.is_in_epoch:
            return bench.call_epoch(None)
        for batch in self.train_loader:
            bench.log_losses(self.train_step(batch), len(bench.current))
        return None

    def train_step(self, batch: Any) -> Any:
        """Train on one batch with `train.loss` and the optimizers of the config."""
        return self._needs_bench("train_step").default_written_step(batch)

    def val_epoch(self) -> Any:
        """Return the numbers of the validation split."""
        bench = self._needs_bench("val_epoch")
        return bench.default_split("validation") if bench.is_evaluating else bench.validate_now()

    def test_epoch(self) -> Any:
        """Return the numbers of the test split."""
        return self._needs_bench("test_epoch").default_split("test")

    def on_train_start(self) -> None:
        """Called before the first step of a run; not again when it is resumed."""

    def on_epoch_start(self) -> None:
        """Called before each epoch."""

    def on_epoch_end(self, row: Mapping[str, float]) -> None:
        """Called after each epoch and its validation, with losses, rates and validation metrics."""

    def on_validation_end(self, row: Mapping[str, float]) -> None:
        """Called after a validation within an epoch."""

    def on_train_end(self) -> None:
        """Called when the run has ended."""

    # -- what to call -----------------------------------------------------------------------------

    def backward(self, loss: Tensor, name: str | None = None) -> None:
        """Accumulate gradients, with the precision and the accumulation of the config.

        With `name`, only the parameters of that optimizer receive gradients.
        """
        self._needs_bench("backward").backward(loss, name)

    def step(self, name: str | None = None) -> None:
        """Clip the gradients of an optimizer, step it, and clear its gradients."""
        self._needs_bench("step").step_optimizer(name)

    def log(self, name: str, value: Any) -> None:
        """Log a number: in training as `train_<name>`, in an evaluation as `val_<name>`."""
        self._needs_bench("log").log_value(name, value)

    def log_images(self, name: str, images: Any, columns: int | None = None) -> None:
        """Store a grid of images in the run folder, as `images/<name>/`, and in TensorBoard."""
        self._needs_bench("log_images").log_images(name, images, columns)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._bench.epoch if self._bench is not None else self.start_epoch

    @property
    def iteration(self) -> int:
        """The number of batches trained on so far."""
        return self._bench.step if self._bench is not None else 0

    @property
    def optimizer(self) -> Any:
        """The only optimizer of the config."""
        if len(self.optimizers) != 1:
            raise AttributeError(f"there are {len(self.optimizers)} optimizers: {', '.join(self.optimizers)}")
        return next(iter(self.optimizers.values()))

    @property
    def loss_history(self) -> list[float]:
        """The mean training loss of each epoch."""
        return [row["train_loss"] for row in self.history if "train_loss" in row]

    @property
    def val_loss_history(self) -> list[float]:
        """The validation loss of each epoch that was validated."""
        return [row["val_loss"] for row in self.history if "val_loss" in row]

    @property
    def acc_history(self) -> list[float]:
        """The validation accuracy of each epoch that was validated."""
        return [row["val_accuracy"] for row in self.history if "val_accuracy" in row]

    def set_num_epochs(self, num_epochs: int) -> None:
        """Set the number of epochs; more than before trains on, from where the run is."""
        if self._bench is not None:
            raise UsageError("the number of epochs of a run is set in its config: train.epochs")
        self.num_epochs = num_epochs

    def freeze_to(self, layer: str) -> None:
        """Freeze all parameters of the model up to and including a layer."""
        for parameter in parameters_up_to(self._module(), layer):
            parameter.requires_grad_(False)
            self._frozen.append(parameter)

    def unfreeze(self) -> None:
        """Train all parameters of the model again."""
        for parameter in self._module().parameters():
            parameter.requires_grad_(True)

    def _module(self) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            raise UsageError(f"{type(self).__name__} has no model to freeze layers of")
        return self.model

    def _needs_bench(self, method: str) -> Any:
        if self._bench is None:
            raise UsageError(f"{type(self).__name__}.{method}() works only during training: call train()")
        return self._bench

    def _launch(self) -> Any:
        from manyfit.trainers.launch import launch

        return launch(self)

    def _gather_data(self) -> Any:
        from manyfit.trainers.launch import gather_data

        return gather_data(self)

    def _describe_config(self, data: Any, folder: Path, is_kept: bool, key: str) -> dict[str, Any]:
        from manyfit.trainers.launch import describe_config

        return describe_config(self, data, folder, is_kept, key)


PARAMETERS: Final[Mapping[str, Any]] = {"model": None, **(Trainer.__init__.__kwdefaults__ or {})}
"""The parameters of every trainer, with their defaults."""


def find_place(device: Any, device_id: int | None) -> torch.device:
    """Return the device of a trainer that is not training: the one that it names, or the usual one."""
    if device_id is not None:
        return torch.device("cpu") if device_id < 0 else torch.device("cuda", device_id)
    if device != "auto":
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dispatch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that goes through manyfit when the user calls it."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bench = self._bench
        if name == "train":
            return self._launch(*args, **kwargs) if bench is None else function(self, *args, **kwargs)
        if bench is None:
            self._needs_bench(name)
        if name == "train_epoch" and not bench.is_in_epoch:
            return bench.call_epoch(functools.partial(function, self, *args, **kwargs))
        if name == "val_epoch" and not bench.is_evaluating:
            return bench.validate_now()
        return function(self, *args, **kwargs)

    return call
