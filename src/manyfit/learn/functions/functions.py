"""The functions of a user's object that replace parts of a training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from manyfit.data import Batch
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.found_state.values import NotPlain, encode_value

Span: TypeAlias = Literal["step", "epoch", "loop", "whole"]
"""How much of the training is the user's: what happens with a batch, in an epoch, over all epochs through
`self.train_epoch()`, or everything, without epochs."""

GUARANTEES: Final[Mapping[Span, str]] = {
    "step": "pauses and resumes exactly at any step",
    "epoch": "has its own epoch: pauses and resumes exactly between epochs; a signal loses the current epoch",
    "loop": "has its own loop: pauses and resumes exactly between epochs, if everything that it carries from "
    "epoch to epoch is an attribute; a signal loses the current epoch",
    "whole": "has a train() without epochs: it is one step, so that nothing is logged, validated or resumed "
    "before it has ended",
}
"""What is guaranteed for each span, as `manyfit check` prints it."""


@dataclass(frozen=True)
class Surroundings:
    """What is known when an object with functions is built, before its `__init__` runs."""

    model: Any
    device: Any
    epochs: int
    batch_size: int
    train_loader: Any
    val_loader: Any
    test_loader: Any
    given: Sequence[str] = ()
    """The parameters that the config sets."""
    config: Any = None
    """The config of the run."""


BUILDING: ContextVar[Surroundings | None] = ContextVar("building", default=None)
"""The surroundings of the object that is being built for a run."""


class Functions:
    """The functions of an object. Doors derive from this and translate."""

    span: Span = "step"
    hidden: Collection[str] = ()
    """Attributes that manyfit sets on the object; they are not part of its state."""
    collects: bool = False
    """Whether `measure_collected` needs all outputs of a split."""
    has_own_epoch: bool = False
    """Whether `train_epoch` is the user's."""
    has_val_step: bool = False
    """Whether the object evaluates a batch itself, with `val_step`."""
    has_predictions: bool = False
    """Whether the object returns predictions of its own, with `predict`."""
    has_forward: bool = True
    """Whether the model can be called with the inputs of a batch."""
    names_tools: bool = False
    """Whether its code calls the tools that apply the settings of a step, as far as can be read from it."""
    uses_tools: bool = False
    """Whether precision, clipping and accumulation are available through `backward` and `step`."""
    keeps_modes: bool = True
    """Whether modules stay in training or evaluation mode as the object has set them."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @property
    def name(self) -> str:
        """The name of the object in messages."""
        return type(self.owner).__name__

    @property
    def step_name(self) -> str:
        """The name of the function that trains on a batch, in messages."""
        return f"{self.name}.train_step"

    @property
    def root(self) -> Any:
        """The object to look at for state: the user's, or one that holds it and more."""
        return self.owner

    @property
    def given(self) -> Mapping[str, Any]:
        """The parameters that the config sets: a checkpoint does not overwrite a new value."""
        return {}

    def read_given(self) -> dict[str, Any]:
        """Return the parameters that the config sets, as far as they are plain."""
        found: dict[str, Any] = {}
        for name, value in self.given.items():
            with suppress(NotPlain):
                found[name] = encode_value(value)
        return found

    def overrides(self) -> Sequence[str]:
        """Return the names of the functions that the user has written."""
        return []

    def unfrozen(self) -> AbstractContextManager[None]:
        """Return a context in which parameters that may be trained later count as trained."""
        return nullcontext()

    def bind(self, learner: Any) -> None:
        """Give the object what it needs for training: loaders, optimizers, device."""

    def remember_made(self, found: FoundState) -> None:
        """Called with the state of the object as it was made."""

    def train_step(self, batch: Batch) -> Any:
        """Train on one batch; return a loss, losses by name, or None."""
        raise NotImplementedError

    def train_epoch(self) -> Any:
        """Train for one epoch; return a loss, losses by name, or None."""
        raise NotImplementedError

    def train(self) -> Any:
        """Train all epochs."""
        raise NotImplementedError

    def val_step(self, batch: Batch, split: str = "validation") -> Any:
        """Evaluate one batch of a split."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Any:
        """Return the predictions for one batch."""
        raise NotImplementedError

    def measure_collected(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Return numbers from all arrays of a split, by name: outputs, inputs and target."""
        return {}

    def create_optimizer(self, model: Any) -> Any:
        """Return an optimizer instead of that of the config; None to use that one."""
        return None

    def adjust(self, update: Any) -> None:
        """Change schedules and scaler, after they were built from the config."""

    def split_function(self, split: str) -> str:
        """Return the name of the function that measures a whole split; empty if there is none."""
        return ""

    def measure_split(self, split: str) -> Any:
        """Return the numbers of a whole split, which the loader of this split provides."""
        raise NotImplementedError

    @property
    def divides_splits(self) -> bool:
        """Whether a split can be evaluated part by part, by `collect_split` and `summarize_split`."""
        return False

    def collect_split(self, split: str, known: Any) -> Any:
        """Return what a part of a split adds to `known`; its loader provides the part."""
        raise NotImplementedError

    def summarize_split(self, split: str, collected: Any) -> dict[str, float]:
        """Return the numbers of a whole split from what was collected."""
        raise NotImplementedError

    def on_evaluation_start(self, split: str) -> None:
        """Called before a split is evaluated batch by batch."""

    def on_evaluation_end(self, split: str) -> None:
        """Called after a split was evaluated batch by batch."""

    def stop_reason(self) -> str:
        """Return why the object asks to stop; empty to continue."""
        return ""

    def on_train_start(self) -> None:
        """Called before the first step of a run, and not again when it is resumed."""

    def on_epoch_start(self) -> None:
        """Called before the first step of each epoch."""

    def on_epoch_end(self, row: Mapping[str, float]) -> None:
        """Called after each epoch, and after its validation."""

    def on_validation_end(self, row: Mapping[str, float]) -> None:
        """Called after a validation within an epoch."""

    def on_train_end(self) -> None:
        """Called when the run has ended."""
