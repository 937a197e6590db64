"""Lightning modules as models: their steps, optimizers, schedules, hooks and logged values."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyfit.config.typed.roles import LIGHTNING, has_base
from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Batch
from manyfit.learn.functions.functions import Functions
from manyfit.learn.functions.lightning_names import normalize_name, pick_numbers, shorten_name
from manyfit.learn.functions.lightning_optimizers import Schedule, read_optimizers
from manyfit.learn.functions.lightning_parts import Attached, Holder, ManualOptimizer, is_metric
from manyfit.learn.functions.losses import as_written

SUPPORTED: Final = frozenset({
    "forward", "training_step", "validation_step", "test_step", "predict_step", "configure_optimizers",
    "configure_gradient_clipping", "setup", "on_train_start", "on_train_end", "on_fit_start", "on_fit_end",
    "on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end",
    "on_test_epoch_start", "on_test_epoch_end", "on_train_batch_start", "on_train_batch_end",
    "on_validation_batch_start", "on_validation_batch_end", "on_test_batch_start", "on_test_batch_end",
    "on_validation_start", "on_validation_end", "on_test_start", "on_test_end", "on_before_optimizer_step",
    "on_before_zero_grad", "on_before_backward", "on_after_backward", "lr_scheduler_step",
})  # fmt: skip
"""The methods of a Lightning module that may be overridden."""
INSTEAD: Final = {
    "train_dataloader": "set data in the config", "val_dataloader": "set data in the config",
    "test_dataloader": "set data in the config", "predict_dataloader": "pass the data to manyfit predict",
    "prepare_data": "prepare the data in its data class", "configure_callbacks": "set train.stop and export",
    "on_save_checkpoint": "state is found on the module by itself",
    "on_load_checkpoint": "state is found on the module by itself",
    "optimizer_step": "use automatic_optimization = False", "backward": "use automatic_optimization = False",
    "optimizer_zero_grad": "use automatic_optimization = False",
    "configure_model": "build the layers in __init__",
}  # fmt: skip


GIVEN: Final = ("log", "log_dict", "optimizers", "lr_schedulers", "manual_backward", "clip_gradients")
"""Methods of a Lightning module that manyfit replaces on the object."""


class LightningFunctions(Functions):
    """The functions of a Lightning module."""

    uses_tools = True

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.bench: Any = None
        self._holder = Holder(owner)
        self.optimizers: dict[str, Optimizer] = {}
        self.schedules: list[Schedule] = []
        self.has_val_step = self._is_own("validation_step")
        self.has_predictions = self._is_own("predict_step")
        self.has_forward = self._is_own("forward")
        self._batch = 0
        self._manual: list[ManualOptimizer] = []
        self._metrics: dict[str, Any] = {}
        """The metrics that were logged in this evaluation, by name."""
        self._full: dict[str, str] = {}
        """The names that were logged in this evaluation, by short name."""
        self.names_tools = not self.is_manual
        check_hooks(type(owner))

    def _is_own(self, name: str) -> bool:
        base = next((cls for cls in type(self.owner).__mro__ if name in vars(cls)), object)
        return base is not object and not _is_library(base)

    @property
    def step_name(self) -> str:
        """The name of the function that trains on a batch."""
        return f"{self.name}.training_step"

    @property
    def is_manual(self) -> bool:
        """Whether the module steps its optimizers itself."""
        return not self.owner.automatic_optimization

    @property
    def root(self) -> Holder:
        """The module with its optimizers, its schedules and what it has logged."""
        return self._holder

    def overrides(self) -> list[str]:
        """Return the steps that the module defines."""
        steps = ("training_step", "validation_step", "test_step", "predict_step")
        return [name for name in steps if self._is_own(name)]

    def bind(self, learner: Any) -> None:
        """Attach the module: optimizers, schedules, logging, and what stands for its trainer."""
        owner, self.bench, update = self.owner, learner.bench, learner.update
        owner._trainer = Attached(self, learner)
        if self._is_own("setup"):
            owner.setup("fit")
        if self._is_own("configure_optimizers"):
            if update.optimizers:
                raise UsageError(f"train.optimizer: {self.name}.configure_optimizers defines the optimizers")
            found = owner.configure_optimizers()
            self.optimizers, self.schedules = read_optimizers(found, self.name)
        else:
            self.optimizers = {name or "optimizer": each for name, each in update.optimizers.items()}
        self._holder.hold(self.optimizers, self.schedules)
        self._check_settings(learner)
        self._manual = [ManualOptimizer(each, self) for each in self.optimizers.values()]
        for name in GIVEN:
            owner.__dict__[name] = getattr(self, f"give_{name}", None) or getattr(self, name)
        for part in owner.modules():
            if part is not owner and has_base(type(part), LIGHTNING):  # it may log, too
                part.__dict__.update(_trainer=owner._trainer, log=self.log, log_dict=self.log_dict)

    def give_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizers, for manual optimization."""
        return self._manual[0] if len(self._manual) == 1 else list(self._manual)

    def give_lr_schedulers(self) -> Any:
        """Return the schedulers, for manual optimization."""
        found = [each.scheduler for each in self.schedules]
        return found[0] if len(found) == 1 else (found or None)

    def _check_settings(self, learner: Any) -> None:
        if not self.is_manual and len(self.optimizers) > 1:
            raise UsageError(
                f"{self.name} has {len(self.optimizers)} optimizers: set self.automatic_optimization = False "
                "and step them in training_step"
            )
        if not self.optimizers and not self.is_manual:
            raise UsageError(
                f"{self.name}: configure_optimizers returns no optimizer, and train.optimizer is not set"
            )
        if not self.is_manual and any(isinstance(each, LBFGS) for each in self.optimizers.values()):
            raise UsageError(
                f"{self.name}: LBFGS needs the loss several times in a step: set self.automatic_optimization "
                "= False and call optimizer.step(closure) in training_step"
            )
        asked = {
            "accumulate": learner.accumulate > 1,
            "clip_norm": learner.update.clip_norm is not None,
            "clip_value": learner.update.clip_value is not None,
        }
        for key in (key for key, is_asked in asked.items() if is_asked and self.is_manual):
            raise UsageError(f"train.{key} does not apply to manual optimization: do it in {self.step_name}")

    # -- what the module calls --------------------------------------------------------------------

    def log(self, name: str, value: Any, *args: Any, batch_size: int | None = None, **kwargs: Any) -> None:
        """Log a value as `train_<name>` or `val_<name>`; a prefix in its name is not doubled."""
        short, is_evaluating = shorten_name(name), self.bench.is_evaluating
        if is_metric(value):
            if is_evaluating:
                self._metrics[name] = value
            elif name not in self._holder.metrics:
                self._holder.metrics[name] = self._path_of(name, value)
            return
        if is_evaluating:
            self._full[short] = name
        self._holder.logged[name] = value.detach() if isinstance(value, Tensor) else value
        if short == "loss" and not is_evaluating and not self.is_manual and not self.bench.is_in_hook:
            return  # what training_step returns
        rows = batch_size or len(self.bench.current or ()) or None
        self.bench.log_value(normalize_name(name) if self.bench.is_in_hook else short, value, rows)

    def _path_of(self, name: str, metric: Any) -> str:
        found = [path for path, module in self.owner.named_modules() if module is metric]
        if not found:
            raise UsageError(
                f"{self.step_name} logs {name!r}, a {type(metric).__name__} that is not an attribute of "
                f"{self.name}: set it as one, so that checkpoints keep it"
            )
        return str(found[0])

    def log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log several values."""
        for name, value in values.items():
            self.log(name, value, **kwargs)

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Accumulate gradients; with fp16, of the scaled loss."""
        self.bench.calls.add("backward")
        scaler = self.bench.learner.update.scaler
        (scaler.scale(loss) if scaler is not None else loss).backward(*args, **kwargs)

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer, by norm or by value."""
        if gradient_clip_val is None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        else:
            nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    # -- training ---------------------------------------------------------------------------------

    def train_step(self, batch: Batch) -> Any:
        """Train on one batch: call `training_step`, and step the only optimizer unless that is manual."""
        owner, written = self.owner, as_written(batch)
        number = self.bench.step % self.bench.learner.per_epoch
        if owner.on_train_batch_start(written, number) == -1:
            raise RunFailed(f"{self.name}.on_train_batch_start returned -1: epochs cannot be cut short")
        returned = _call_step(owner.training_step, written, number)
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if not self.is_manual and loss is not None:
            self._update(loss)
        owner._trainer.is_after_step = True
        owner.on_train_batch_end(returned, written, number)
        owner._trainer.is_after_step = False
        return (pick_numbers(returned) if isinstance(returned, Mapping) else None) or loss

    def _update(self, loss: Tensor) -> None:
        owner, update, bench = self.owner, self.bench.learner.update, self.bench
        (optimizer,) = self.optimizers.values()
        owner.on_before_backward(loss)
        bench.backward(loss)
        owner.on_after_backward()
        bench.calls.add("step")
        if not bench.is_last_part:
            return
        update.unscale(optimizer)
        owner.on_before_optimizer_step(optimizer)
        if self._is_own("configure_gradient_clipping"):
            value = update.clip_value if update.clip_value is not None else update.clip_norm
            kind = "value" if update.clip_value is not None else "norm"
            owner.configure_gradient_clipping(optimizer, value, kind if value is not None else None)
        else:
            update.clip(optimizer)
        update.step_bare(optimizer)
        owner.on_before_zero_grad(optimizer)
        optimizer.zero_grad(set_to_none=True)
        for schedule in self.schedules:
            if schedule.interval == "step" and (bench.step + 1) % schedule.frequency == 0:
                self._step_schedule(schedule, self._holder.logged)

    def _step_schedule(self, schedule: Schedule, known: Mapping[str, Any]) -> None:
        metric = None
        if schedule.monitor is not None:
            if schedule.monitor not in known:
                best = nearest(schedule.monitor, list(known))
                hint = f"did you mean {best!r}?" if best else f"there are {listing(list(known))}"
                raise UsageError(
                    f"{self.name}.configure_optimizers: the scheduler monitors {schedule.monitor!r}, which "
                    f"is not logged; {hint}"
                )
            metric = float(known[schedule.monitor])
        if self._is_own("lr_scheduler_step"):
            self.owner.lr_scheduler_step(schedule.scheduler, metric)
        elif isinstance(schedule.scheduler, ReduceLROnPlateau):
            schedule.scheduler.step(metric)  # type: ignore[arg-type]
        else:
            schedule.scheduler.step()

    # -- evaluation -------------------------------------------------------------------------------

    def val_step(self, batch: Batch, split: str = "validation") -> Any:
        """Evaluate one batch with `validation_step`, or `test_step` for the test split."""
        is_test = split == "test" and self._is_own("test_step")
        word, written = "test" if is_test else "validation", as_written(batch)
        getattr(self.owner, f"on_{word}_batch_start")(written, self._batch)
        returned = _call_step(getattr(self.owner, f"{word}_step"), written, self._batch)
        getattr(self.owner, f"on_{word}_batch_end")(returned, written, self._batch)
        self._batch += 1
        return (pick_numbers(returned) or None) if isinstance(returned, Mapping) else returned

    def predict(self, batch: Batch) -> Any:
        """Return the predictions of `predict_step`."""
        return _call_step(self.owner.predict_step, as_written(batch), 0)

    def on_evaluation_start(self, split: str) -> None:
        """Call the hooks before an evaluation."""
        self._batch, self._metrics, self._full = 0, {}, {}
        word = "test" if split == "test" else "validation"
        attached = self.owner._trainer
        attached.training, attached.validating, attached.testing = False, word == "validation", word == "test"
        getattr(self.owner, f"on_{word}_start")()
        getattr(self.owner, f"on_{word}_epoch_start")()

    def on_evaluation_end(self, split: str) -> None:
        """Call the hooks after an evaluation, and log the metrics that cover all of it."""
        word = "test" if split == "test" else "validation"
        for short, mean in self.bench.learner.evaluation.means().items():
            self._holder.logged[self._full.get(short, short)] = mean
        self._holder.logged |= {name: metric.compute() for name, metric in self._metrics.items()}
        getattr(self.owner, f"on_{word}_epoch_end")()
        for name, metric in self._metrics.items():
            self.bench.log_value(shorten_name(name), metric.compute(), 1)
        for metric in self._metrics.values():
            metric.reset()
        self._metrics = {}
        getattr(self.owner, f"on_{word}_end")()
        attached = self.owner._trainer
        attached.training, attached.validating, attached.testing = True, False, False

    # -- hooks ------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Call the hooks."""
        self.owner.on_fit_start()
        self.owner.on_train_start()

    def on_epoch_start(self) -> None:
        """Call the hook."""
        self.owner.on_train_epoch_start()

    def on_epoch_end(self, row: Mapping[str, float]) -> None:
        """Call the hook, and step the schedules that are due after an epoch."""
        attached = self.owner._trainer
        self._holder.logged |= row
        attached.is_at_end = True
        self._holder.logged |= {name: metric.compute() for name, metric in self._iterate_metrics()}
        self.owner.on_train_epoch_end()
        attached.is_at_end = False
        found = list(self._iterate_metrics())
        for name, metric in found:
            self._holder.logged[name] = metric.compute()
            self.bench.log_value(normalize_name(name), self._holder.logged[name])
        for _, metric in found:
            metric.reset()
        self._holder.metrics = {}
        epoch = int(row["epoch"])
        if not self.is_manual:
            for schedule in self.schedules:
                if schedule.interval == "epoch" and epoch % schedule.frequency == 0:
                    self._step_schedule(schedule, {**self._holder.logged, **row})

    def _iterate_metrics(self) -> Iterator[tuple[str, Any]]:
        """Yield the metrics that were logged in this epoch of training, by name."""
        for name, path in self._holder.metrics.items():
            yield name, self.owner.get_submodule(path)

    def on_train_end(self) -> None:
        """Call the hooks."""
        self.owner.on_train_end()
        self.owner.on_fit_end()

    def stop_reason(self) -> str:
        """Return why the module asks to stop."""
        attached = getattr(self.owner, "_trainer", None)
        return f"{self.name} set trainer.should_stop" if attached is not None and attached.should_stop else ""


def _call_step(step: Any, batch: Any, number: int) -> Any:
    """Call a step with the arguments that it has."""
    parameters = inspect.signature(step).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return step(batch, number)
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return step(*(batch, number, 0)[: len(places)])


def _is_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric", "torch")


def check_hooks(cls: type) -> None:
    """Refuse overridden methods of a Lightning module that would not be called."""
    known: Collection[str] = {
        name
        for base in cls.__mro__
        if _is_library(base) and base.__module__.partition(".")[0] != "torch"
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    for base in cls.__mro__:
        if _is_library(base) or base is object:
            continue
        for name in vars(base):
            if name in known and name not in SUPPORTED and name != "__init__":
                instead = INSTEAD.get(name, "manyfit does not call it")
                raise UsageError(f"{cls.__name__} overrides {name}, which is not supported: {instead}")
            near = difflib.get_close_matches(name, SUPPORTED, n=1, cutoff=0.88)
            if name not in known and near and callable(vars(base)[name]):
                raise UsageError(f"nothing calls {cls.__name__}.{name}; did you mean {near[0]}?")
