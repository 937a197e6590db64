"""What a Lightning module sees instead of Lightning: its trainer, and its optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim import LBFGS, Optimizer

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.learn.functions.lightning_optimizers import Schedule

if TYPE_CHECKING:
    from manyfit.learn.functions.lightning import LightningFunctions


class Attached:
    """What `self.trainer` is for a Lightning module: where training is, and what was measured."""

    def __init__(self, functions: LightningFunctions, learner: Any) -> None:
        self._learner = learner
        self._functions = functions
        self.logger, self.loggers, self.datamodule = RunLogger(functions), list[Any](), None
        self.progress_bar_callback = None
        self.is_at_end = self.is_after_step = False
        self.should_stop = self.sanity_checking = False
        self.training, self.validating, self.testing = True, False, False
        self.is_global_zero, self.world_size = True, 1
        self.global_rank = self.local_rank = self.node_rank = 0
        self.max_epochs = learner.epochs
        self.num_training_batches = learner.per_epoch
        self.estimated_stepping_batches = learner.per_epoch * learner.epochs
        self.max_steps = -1

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers that the module has configured."""
        return tuple(self._functions.optimizers.values())

    @optimizers.setter
    def optimizers(self, value: Any) -> None:
        raise UsageError("self.trainer.optimizers cannot be replaced: change their parameter groups")

    @property
    def current_epoch(self) -> int:
        """The current epoch, from 0."""
        is_over = self.is_at_end or not self.training
        return int((self._learner.step - is_over) // self._learner.per_epoch) if self._learner.step else 0

    @property
    def global_step(self) -> int:
        """The number of batches trained on."""
        return int(self._learner.step + self.is_after_step)

    @property
    def is_last_batch(self) -> bool:
        """Whether the epoch ends with the current batch."""
        return bool((self._learner.step + 1) % self._learner.per_epoch == 0)

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The values that were logged last, or measured after an epoch."""
        return self._functions.root.logged

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """The values that were logged last."""
        return self.callback_metrics

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [key for key in (*vars(self), *vars(type(self))) if not key.startswith("_")]
        raise AttributeError(
            f"manyfit trains this module, and its trainer has no {name!r}; it has {listing(known)}"
        )


def is_metric(value: Any) -> bool:
    """Return whether a value is a metric of torchmetrics, which covers many batches."""
    return hasattr(value, "compute") and hasattr(value, "update") and hasattr(value, "reset")


class RunLogger:
    """What `self.logger` is for a Lightning module: its metrics are logged as with `self.log`."""

    def __init__(self, functions: LightningFunctions) -> None:
        self._functions = functions

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log several values."""
        self._functions.log_dict(metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the parameters of a run are in its config."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(f"self.logger.{name}: manyfit has no Lightning logger; use self.log(name, value)")


class ManualOptimizer:
    """An optimizer as a module with manual optimization receives it."""

    def __init__(self, optimizer: Optimizer, functions: LightningFunctions) -> None:
        self.optimizer = optimizer
        self._functions = functions

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Step the optimizer; with fp16, through the scaler."""
        self._functions.bench.calls.add("step")
        update = self._functions.bench.learner.update
        if closure is None:
            return update.step_bare(self.optimizer)
        if update.scaler is None:
            return self.optimizer.step(closure)
        if isinstance(self.optimizer, LBFGS):
            raise UsageError("train.precision: LBFGS cannot be combined with fp16")
        loss = closure()
        update.step_bare(self.optimizer)
        return loss

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Compute only the gradients of this optimizer's parameters."""
        owner = self._functions.owner
        owner.toggle_optimizer(self)
        try:
            yield
        finally:
            owner.untoggle_optimizer(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class Holder:
    """A Lightning module with its optimizers, its schedules and what it has logged: its whole state."""

    holds_state = True

    def __init__(self, module: Any) -> None:
        self.module = module
        self.logged: dict[str, Any] = {}
        self.metrics: dict[str, str] = {}
        """By name: the path of a metric that was logged in this epoch, and is computed at its end."""

    def hold(self, optimizers: Mapping[str, Optimizer], schedules: Sequence[Schedule]) -> None:
        """Add the optimizers and schedules that the module has configured."""
        self.__dict__.update(optimizers)
        self.__dict__.update({f"schedule_{i}": each.scheduler for i, each in enumerate(schedules)})
