"""Kinds of learners. A kind decides which models it trains, and answers everything `run/` asks about them.

A custom kind is one class in one file; registering it makes its models usable in every config:

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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from manyfit.config import Config
from manyfit.config.schema.run import Train
from manyfit.config.typed.extensions import FORMATS, MODELS
from manyfit.core.errors import UsageError
from manyfit.core.state import State
from manyfit.core.stopwatch import TimedCall
from manyfit.core.tracebacks import user_frame
from manyfit.data import Batch, Order, Source
from manyfit.learn.fusing import Key, NotFusable, Refusal, Terms
from manyfit.learn.group import Part
from manyfit.learn.learner import Learner
from manyfit.learn.models import Made

BUILT_IN: Final = (
    "manyfit.learn.keras.kind.KerasKind",
    "manyfit.learn.functions.kind.FunctionKind",
    "manyfit.learn.estimator.kind.EstimatorKind",
    "manyfit.learn.torch.kind.TorchKind",
)
"""The built-in kinds, in the order in which they are asked; registered kinds are asked first."""
TORCH_ONLY: Final = (
    "loss", "optimizer", "groups", "freeze", "fine_tune", "scheduler", "accumulate", "clip_norm",
    "clip_value", "precision", "ema", "class_weights", "warm_start", "metrics", "device", "capture",
    "compile",
)  # fmt: skip
"""Keys of `train` that apply to PyTorch modules only."""


@dataclass(frozen=True)
class Setup:
    """Everything a learner is built from."""

    config: Config
    made: Made
    device: Any
    """The torch device of the config."""
    order: Order
    train: Source
    validation: Source | None
    test: Source | None
    steps_per_epoch: int
    epochs: int
    metrics: Mapping[str, Any]
    """Metrics with one value per row."""
    warm: bool
    """Whether to load the weights of `train.warm_start`."""
    fed_by: str
    """The data source, as error messages name it."""
    unused_key: str
    """The key of the config that declares inputs as unused."""


@dataclass(frozen=True, slots=True)
class Format:
    """An export format."""

    name: str
    """The name of the file or folder in `exported/`."""
    write: Callable[[Any, Batch, Path], None]
    """Write the model of a learner to a path, and compare it with the original on a batch."""
    is_folder: bool = False


class Tracing(AbstractContextManager[Any], Protocol):
    """A trace of everything that is done inside."""

    sees_gpu: bool
    """Whether it sees what a GPU does."""

    def mark(self, phase: str) -> AbstractContextManager[object]:
        """Mark a phase in the trace."""

    def wait(self) -> None:
        """Wait until the device has done everything."""

    def busy(self) -> float:
        """Return the seconds in which the GPU has computed."""

    def write(self, file: Path) -> None:
        """Write the trace."""


class LearnerKind(ABC):
    """One kind of learner. To implement: `claims`, `build` and `restore`."""

    name: ClassVar[str]
    noun: ClassVar[str] = ""
    """The name of a model of this kind in messages, with its article."""
    unused: ClassVar[Collection[str]] = TORCH_ONLY
    """Keys of `train` that do not apply to this kind; setting one is an error."""
    takes_callbacks: ClassVar[bool] = False
    """Whether a model builder may return callbacks."""
    takes_turns: ClassVar[bool] = False
    """Whether its learners can train in turn with others of the same process: all random numbers that they
    use come from the global generators of Python, NumPy and torch, which are exchanged between turns."""
    formats: ClassVar[Mapping[str, Format]] = {}
    """Export formats besides safetensors."""
    loaders: ClassVar[Mapping[str, Callable[[Path, Collection[str]], Any]]] = {}
    """By file suffix: functions that load a model; the second argument names the code that may be run."""

    @abstractmethod
    def claims(self, model: Any) -> bool:
        """Return whether a model, or a model class, is of this kind."""

    @abstractmethod
    def build(self, setup: Setup) -> Learner:
        """Return a learner for a model."""

    @abstractmethod
    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Return the model with the weights of an export or of `model_state`, ready to predict.

        `inputs` describes the inputs of a batch, for models that create their weights on the first call.
        """

    def model_state(self, state: State) -> Mapping[str, Any]:
        """Return the part of a learner's state that belongs to its model."""
        return dict(state.tensors)

    def check(self, config: Config, made: Made) -> None:
        """Raise an error for settings that would have no effect."""
        for key in self.unused:
            given, default = getattr(config.run.train, key), getattr(Train, key, None)
            if given != default and given not in ((), {}, None):
                where = config.origin(f"train.{key}")
                raise UsageError(f"{where}: train.{key}: does not apply to {self.noun or self.name}")
        if made.callbacks and not self.takes_callbacks:
            raise UsageError(
                f"{config.run.subject.origin}: {made.builder}.get_callbacks returns callbacks, but only "
                f"Keras models accept them, not a {type(made.model).__name__}; use train.stop to stop early"
            )

    def prepare(self, config: Config, made: Made, device: Any, warm: bool) -> None:  # noqa: B027
        """Do what can fail before the data is read: move the model to its device and load weights."""

    def budget(self, train: Train, count_steps: Callable[[], int]) -> tuple[int, int]:
        """Return the number of epochs and the number of steps per epoch."""
        return train.epochs, count_steps()

    def can_take_turns(self, learner: Any) -> bool:
        """Return whether a learner can train in turn with others of the same process."""
        return self.takes_turns

    def group_key(self, learner: Any) -> Key | Refusal:
        """Return what runs that train in one pass have in common, or why this one cannot."""
        return Refusal(f"{self.noun or self.name} is trained one run at a time")

    def launches(self, learner: Any) -> bool:
        """Return whether steps of a single run may be launched together, by the learner of a group of one."""
        return False

    def foresee_compiling(self, learner: Any) -> Callable[[float], float] | None:
        """Return what turns the seconds of all steps, not compiled, into what they take with compiling.

        None if steps are never compiled.
        """
        return None

    def count_operations(self, do: Callable[[], object]) -> float:
        """Return how many operations a function launches; infinity if that is not known."""
        return float("inf")

    def fuse(
        self, parts: Sequence[Part], first: Sequence[Sequence[Batch]], terms: Terms
    ) -> tuple[Learner, str]:
        """Return a learner that trains runs with equal keys in one pass, and what was measured.

        `first` has the batches of all runs in the next steps, on which the group is compared with each run
        alone. Raise `NotFusable` if that differs, or if it is not faster and must be.
        """
        raise NotFusable(f"{self.noun or self.name} is trained one run at a time")

    def list_places(self) -> Sequence[TimedCall]:
        """Return the functions that `manyfit profile` times in steps."""
        return ()

    def trace(self, learner: Any) -> Tracing | None:
        """Return what traces the operators of steps, or None."""
        return None

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return the formats that are exported without being named in the config.

        `is_auto`: the config leaves the choice to the kind.
        """
        return []


_registered: list[LearnerKind] = []
K = TypeVar("K", bound=type[LearnerKind])


def register(kind: K) -> K:
    """Register a kind. A kind with the same name, as after a repeated import, is replaced."""
    if not isinstance(getattr(kind, "name", None), str):
        raise UsageError(f"the kind {kind.__name__} needs a name: set {kind.__name__}.name to a string")
    _registered[:] = [each for each in _registered if each.name != kind.name]
    made = kind()
    _registered.insert(0, made)
    MODELS[kind.name] = functools.partial(is_claimed, made)
    FORMATS[kind.name] = tuple(kind.formats)
    return kind


def is_claimed(kind: LearnerKind, model: Any) -> bool:
    """Return whether a kind claims a model; errors name the kind."""
    try:
        return bool(kind.claims(model))
    except Exception as error:
        text = f"the kind {kind.name!r} failed in claims({model!r:.60})"
        raise UsageError(f"{text}: {type(error).__name__}: {error}\n  at {user_frame(error)}") from error


@functools.cache
def _load_built_in(path: str) -> LearnerKind:
    module, _, name = path.rpartition(".")
    kind: LearnerKind = getattr(importlib.import_module(module), name)()
    return kind


def kinds() -> list[LearnerKind]:
    """Return all kinds, in the order in which they are asked to claim a model."""
    return [*_registered, *map(_load_built_in, BUILT_IN)]


def kind_of(model: Any) -> LearnerKind:
    """Return the kind that trains a model; PyTorch if no kind claims it."""
    return next((kind for kind in kinds() if is_claimed(kind, model)), _load_built_in(BUILT_IN[-1]))


def all_formats() -> list[str]:
    """Return the names of all export formats."""
    return list(dict.fromkeys(["safetensors", *(name for kind in kinds() for name in kind.formats)]))
