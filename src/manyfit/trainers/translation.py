"""The functions of a trainer, for the learner that calls them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Batch
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.functions.functions import Functions, Span
from manyfit.learn.functions.losses import ReadKeys, as_written
from manyfit.trainers.parameters import functions_in, iterate_self_attributes

log = logging.getLogger("manyfit")

SPLIT_FUNCTIONS: Final = {"validation": "val_epoch", "test": "test_epoch"}


INTERNAL: Final = (
    "_bench", "_given", "_loss", "_optimizers", "_schedulers", "_frozen", "_place", "_loaders", "_key",
    "_made",
)  # fmt: skip


def hidden_attributes(cls: Any) -> tuple[str, ...]:
    """Return the attributes of a trainer that are not its state: manyfit's, and those of the config."""
    return (*INTERNAL, *(name for name in cls.supplied if name != "model"))


class TrainerFunctions(Functions):
    """The functions that a subclass of `Trainer` overrides."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.hidden = hidden_attributes(type(owner))
        own = self._is_own
        self.has_own_epoch = own("train_epoch")
        self.has_val_step = own("val_step")
        self.has_predictions = hasattr(owner, "predict_step")
        self.span = self._span()
        self.names_tools = self._reads_tools()
        self.uses_tools = self.span != "whole" or self.names_tools
        self._has_looked = False
        self._has_own_step = own("train_step")

    def _is_own(self, name: str) -> bool:
        base = next(cls for cls in type(self.owner).__mro__ if name in vars(cls) or cls is object)
        return base is not object and not base.__module__.startswith("manyfit.")

    def _span(self) -> Span:
        if self._is_own("train"):
            named = {
                name for function in functions_in(type(self.owner)) for name in function.__code__.co_names
            }
            return "loop" if named & {"train_epoch", "super"} else "whole"
        return "epoch" if self.has_own_epoch else "step"

    def _reads_tools(self) -> bool:
        """Return whether the code of the subclass has `self.backward` and `self.step`."""
        named = {
            name for each in functions_in(type(self.owner)) for name in iterate_self_attributes(each.__code__)
        }
        return named >= {"backward", "step"}

    @property
    def given(self) -> Mapping[str, Any]:
        """The parameters that the config sets."""
        known = set(type(self.owner).supplied)
        return {name: value for name, value in self.owner._given.items() if name not in known}

    def overrides(self) -> list[str]:
        """Return the functions that the subclass overrides."""
        names = ("train", "train_epoch", "train_step", "val_step", "val_epoch", "test_epoch", "predict_step")
        return [name for name in names if self._is_own(name)]

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Count parameters that `freeze_to` has frozen as trained: they may be unfrozen later."""
        frozen = [p for p in self.owner._frozen if not p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
        for parameter in frozen:
            parameter.requires_grad_(False)

    def bind(self, learner: Any) -> None:
        """Give the trainer its loaders, loss, optimizers, schedules and device; then call `setup`."""
        owner = self.owner
        if owner.num_epochs != learner.epochs and self.span != "whole":
            raise UsageError(f"{self.name}: the number of epochs of a run is set in its config: train.epochs")
        update = learner.update
        named = {name or "optimizer": each for name, each in update.optimizers.items()}
        owner.__dict__.update(
            _bench=learner.bench,
            train_loader=learner.loaders["train"],
            val_loader=learner.loaders["validation"],
            test_loader=learner.loaders["test"],
            device=learner.device,
        )
        plans = {name or "optimizer": each for name, each in update.schedulers.items()}
        self._provide("loss", learner.objective.loss, "train.loss")
        self._provide("optimizers", named, "train.optimizer")
        self._provide("schedulers", plans, "train.scheduler")
        owner.setup()

    def _provide(self, name: str, value: Any, key: str) -> None:
        """Set an attribute from the config, unless the trainer has set it itself."""
        owner, own = self.owner, self.owner.__dict__.get(name)
        if own is not None and own != {} and own is not owner.__dict__.get(f"_{name}"):
            if value is not None and value != {}:
                raise UsageError(f"{key}: {self.name} sets self.{name} itself; remove one of them")
            return
        owner.__dict__.update({name: value, f"_{name}": value})

    def remember_made(self, found: FoundState) -> None:
        """Keep what the trainer was made with: a trainer in Python may be trained several times."""
        found.share_made(self.owner.__dict__.setdefault("_made", {}))

    def train_step(self, batch: Batch) -> Any:
        """Train on one batch."""
        if not self._has_own_step:
            return self.owner._bench.default_step(batch)
        written = as_written(batch)
        if self._has_looked or not isinstance(written, dict):
            return self.owner.train_step(written)
        self._has_looked, seen = True, ReadKeys(written)
        returned = self.owner.train_step(seen)
        self._check_keys([key for key in written if key not in seen.read], list(written))
        return returned

    def _check_keys(self, unread: Sequence[str], keys: Sequence[str]) -> None:
        """Say which keys of a batch the step does not read; it is an error if the model misses one."""
        forward = getattr(self.owner.model, "forward", None)
        wanted = inspect.signature(forward).parameters.values() if forward is not None else ()
        missing = [p.name for p in wanted if p.name not in keys and p.kind is p.POSITIONAL_OR_KEYWORD]
        for key in unread:
            if best := nearest(key, missing):
                raise UsageError(
                    f"{self.step_name} never reads {key!r} of the batch, and the model's forward has a "
                    f"parameter {best!r}, which the batch does not provide: rename one of them"
                )
        if unread:
            log.warning("%s never reads %s of the batch", self.step_name, listing(list(unread)))

    def train_epoch(self) -> Any:
        """Train one epoch with the subclass's function."""
        return self.owner.train_epoch()

    def train(self) -> Any:
        """Run the subclass's loop."""
        return inspect.unwrap(type(self.owner).train)(self.owner)

    def val_step(self, batch: Batch, split: str = "validation") -> Any:
        """Evaluate one batch."""
        return self.owner.val_step(as_written(batch))

    def predict(self, batch: Batch) -> Any:
        """Return the predictions of `predict_step`."""
        return self.owner.predict_step(as_written(batch))

    def split_function(self, split: str) -> str:
        """Return the name of the function of a whole split; empty if it is evaluated batch by batch."""
        wanted = SPLIT_FUNCTIONS[split]
        return wanted if self._is_own(wanted) else ""

    def measure_split(self, split: str) -> Any:
        """Return the numbers of a whole split."""
        return getattr(self.owner, SPLIT_FUNCTIONS[split])()

    def on_train_start(self) -> None:
        """Call the hook."""
        self.owner.on_train_start()

    def on_epoch_start(self) -> None:
        """Call the hook."""
        self.owner.on_epoch_start()

    def on_epoch_end(self, row: Mapping[str, float]) -> None:
        """Append the row to the history, and call the hook."""
        if not isinstance(self.owner.history, list):
            raise UsageError(f"{self.name}.history must be a list of rows; use another name for your own")
        self.owner.history.append(dict(row))
        self.owner.on_epoch_end(row)

    def on_validation_end(self, row: Mapping[str, float]) -> None:
        """Call the hook."""
        self.owner.on_validation_end(row)

    def on_train_end(self) -> None:
        """Call the hook."""
        self.owner.on_train_end()
