"""Kinds of learners. A kind knows which models it trains, and everything about them that `run/` has to ask.

A kind of your own is one class in one file; registering it makes its models usable in every config:

    @register
    class PerceptronKind(LearnerKind):
        name = "perceptron"

        def claims(self, model): return isinstance(model, Perceptron) or model is Perceptron
        def build(self, setup): return PerceptronLearner(setup.made.model, seed=setup.config.run.seed)
        def restore(self, model, state, inputs=None): ...
"""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from manyfit.config import Config
from manyfit.config.schema.run import Train
from manyfit.config.typed.extensions import FORMATS, MODELS
from manyfit.core.errors import UsageError
from manyfit.core.state import State
from manyfit.core.tracebacks import user_frame
from manyfit.data import Batch, Order, Source
from manyfit.learn.learner import Learner
from manyfit.learn.models import Made

BUILT_IN: Final = (
    "manyfit.learn.keras.kind.KerasKind",
    "manyfit.learn.estimator.kind.EstimatorKind",
    "manyfit.learn.torch.kind.TorchKind",
)
"""In the order in which they are asked; those that were registered are asked before them."""
TORCH_ONLY: Final = (
    "loss", "optimizer", "groups", "freeze", "fine_tune", "scheduler", "accumulate", "clip_norm",
    "clip_value", "precision", "ema", "class_weights", "warm_start", "metrics", "device",
)  # fmt: skip
"""Keys of `train` that say how a module of PyTorch is trained."""


@dataclass(frozen=True)
class Setup:
    """Everything that a learner is built from."""

    config: Config
    made: Made
    device: Any
    """The torch device that the config asks for."""
    order: Order
    train: Source
    validation: Source | None
    steps_per_epoch: int
    epochs: int
    metrics: Mapping[str, Any]
    """Metrics that give a number for each row."""
    warm: bool
    """Whether to begin with the weights that `train.warm_start` names."""
    fed_by: str
    """What feeds the model, in the words of the config."""
    unused_key: str
    """The key of the config that declares inputs as unused."""


@dataclass(frozen=True, slots=True)
class Format:
    """A form in which a model can be exported."""

    name: str
    """The name of the file, or folder, in `exported/`."""
    write: Callable[[Any, Batch, Path], None]
    """Write the model of a learner to a path, and check it on a batch against the original."""
    is_folder: bool = False


class LearnerKind(ABC):
    """One kind of learner. To implement: `claims`, `build` and `restore`."""

    name: ClassVar[str]
    noun: ClassVar[str] = ""
    """What a model of this kind is called in messages, with its article."""
    unused: ClassVar[Collection[str]] = TORCH_ONLY
    """Keys of `train` that models of this kind decide themselves; to set one is an error."""
    takes_callbacks: ClassVar[bool] = False
    """Whether a model builder may bring callbacks."""
    formats: ClassVar[Mapping[str, Format]] = {}
    """Forms in which its models can be exported, beside safetensors."""
    loaders: ClassVar[Mapping[str, Callable[[Path, Collection[str]], Any]]] = {}
    """By suffix: functions that load a model from a file; the second argument allows code by its name."""

    @abstractmethod
    def claims(self, model: Any) -> bool:
        """Whether a model, or a class of models, is of this kind."""

    @abstractmethod
    def build(self, setup: Setup) -> Learner:
        """Return the learner of a model."""

    @abstractmethod
    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Return a model with the weights of an export or of `model_state`, ready to predict.

        `inputs` describes the inputs of a batch, for models that have no weights before they are called.
        """

    def model_state(self, state: State) -> Mapping[str, Any]:
        """Return what of the state of a learner belongs to its model."""
        return dict(state.tensors)

    def check(self, config: Config, made: Made) -> None:
        """Refuse what was set and would have no effect."""
        for key in self.unused:
            given, default = getattr(config.run.train, key), getattr(Train, key, None)
            if given != default and given not in ((), {}, None):
                where = config.origin(f"train.{key}")
                raise UsageError(f"{where}: train.{key}: {self.noun or self.name} decides this itself")
        if made.callbacks and not self.takes_callbacks:
            raise UsageError(
                f"{config.run.model.origin}: {made.builder}.get_callbacks gives callbacks, but only Keras "
                f"models take them, not a {type(made.model).__name__}; use train.stop for early stopping"
            )

    def prepare(self, config: Config, made: Made, device: Any, warm: bool) -> None:  # noqa: B027
        """Do what can fail before the data is read: move the model to its device, load weights."""

    def budget(self, train: Train, count_steps: Callable[[], int]) -> tuple[int, int]:
        """Return how many epochs are trained, and of how many steps."""
        return train.epochs, count_steps()

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return the formats that are exported though nobody has asked for them by name.

        `is_auto` is whether the config leaves the choice to the kind.
        """
        return []


_registered: list[LearnerKind] = []
K = TypeVar("K", bound=type[LearnerKind])


def register(kind: K) -> K:
    """Make a kind known. One that is defined again, by a module that is imported again, replaces itself."""
    if not isinstance(getattr(kind, "name", None), str):
        raise UsageError(f"the kind {kind.__name__} needs a name: {kind.__name__}.name is the word for it")
    _registered[:] = [each for each in _registered if each.name != kind.name]
    made = kind()
    _registered.insert(0, made)
    MODELS[kind.name] = functools.partial(is_claimed, made)
    FORMATS[kind.name] = tuple(kind.formats)
    return kind


def is_claimed(kind: LearnerKind, model: Any) -> bool:
    """Ask a kind whether a model is its own; what goes wrong names the kind."""
    try:
        return bool(kind.claims(model))
    except Exception as error:
        text = f"the kind {kind.name!r} cannot say whether {model!r:.60} is its own"
        raise UsageError(f"{text}: {type(error).__name__}: {error}\n  at {user_frame(error)}") from error


@functools.cache
def _load_built_in(path: str) -> LearnerKind:
    module, _, name = path.rpartition(".")
    kind: LearnerKind = getattr(importlib.import_module(module), name)()
    return kind


def kinds() -> list[LearnerKind]:
    """Return all kinds, in the order in which they are asked whether a model is theirs."""
    return [*_registered, *map(_load_built_in, BUILT_IN)]


def kind_of(model: Any) -> LearnerKind:
    """Return the kind that trains a model. PyTorch is asked last, and takes what looks like a module."""
    return next((kind for kind in kinds() if is_claimed(kind, model)), _load_built_in(BUILT_IN[-1]))


def all_formats() -> list[str]:
    """Return the names of all forms of export."""
    return list(dict.fromkeys(["safetensors", *(name for kind in kinds() for name in kind.formats)]))
