"""What a user's functions may call while they train, and checks of what they have called."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Batch
from manyfit.learn.functions.losses import from_written, read_losses, to_number
from manyfit.learn.pictures import make_grid

if TYPE_CHECKING:
    from manyfit.learn.functions.learner import FunctionLearner

log = logging.getLogger("manyfit")


class Bench:
    """The tools of a learner for the user's functions."""

    def __init__(self, learner: FunctionLearner) -> None:
        self.learner = learner
        self.share, self.is_last_part = 1.0, True
        """The share of the current part in its batch, and whether it is the last part."""
        self.current: Any = None
        """The batch that was handed out last."""
        self.stepped: set[int] = set()
        """The optimizers that were stepped in the current part of a batch."""
        self.calls: set[str] = set()
        """The tools that were used in the first epoch."""
        self.pictures: dict[str, Any] = {}
        self.logged: dict[str, float] = {}
        """What the hooks have logged, by full name."""
        self.is_from_start = False
        """Whether this process has trained the run from its first step."""
        self.is_in_hook = False
        self._is_checked = False
        self._noticed: set[str] = set()
        self._moved: set[str] = set()
        self._hooks: list[Any] = []

    @property
    def _name(self) -> str:
        return self.learner.functions.name

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.learner.epoch

    @property
    def step(self) -> int:
        """The number of batches trained on."""
        return self.learner.step

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers of the config and those on the object, by name."""
        update = self.learner.update
        return {**update.optimizers, **update.others}

    def backward(self, loss: Tensor, name: str | None = None) -> None:
        """Accumulate the gradients of a loss, of all parameters or of those of one optimizer."""
        self.calls.add("backward")
        if self.share != 1.0:
            if name is None and len(self.optimizers) > 1:
                raise UsageError(
                    f"train.accumulate with several optimizers: {self.learner.functions.step_name} must name "
                    f"the one whose gradients it wants: self.backward(loss, {next(iter(self.optimizers))!r})"
                )
            loss = loss * self.share
        inputs = None
        if name is not None:
            groups = self.find_optimizer(name).param_groups
            inputs = [p for group in groups for p in group["params"] if p.requires_grad]
        self.learner.update.backward(loss, inputs)

    def step_optimizer(self, name: str | None = None) -> None:
        """Clip the gradients of an optimizer, step it, and clear them; in the last part of a batch only."""
        self.calls.add("step")
        optimizer = self.find_optimizer(name)
        if self.share != 1.0:
            if id(optimizer) in self.stepped:
                raise UsageError(
                    f"train.accumulate: {self.learner.functions.step_name} steps {name or 'its optimizer'} "
                    "more than once for a batch, so that parts of it cannot be combined"
                )
            self.stepped.add(id(optimizer))
        if self.is_last_part:
            self.learner.update.step_one(optimizer)

    def find_optimizer(self, name: str | None) -> torch.optim.Optimizer:
        """Return an optimizer by name, or the only one."""
        known = {key or "optimizer": each for key, each in self.optimizers.items()}
        if name is None and len(known) == 1:
            return next(iter(known.values()))
        if name is not None and name in known:
            return known[name]
        names = listing([repr(each) for each in known]) or "none"
        if name is None:
            raise UsageError(f"{self._name}: name the optimizer to step: {names}")
        hint = f"did you mean {best!r}? " if (best := nearest(name, known)) else ""
        raise UsageError(f"{self._name}: there is no optimizer {name!r}; {hint}There are: {names}")

    def log_value(self, name: str, value: Any, rows: int | None = None) -> None:
        """Log a number under a name: in training its mean, in an evaluation that of the split.

        A hook after an epoch or a validation adds it to the row that was measured there.
        """
        number = to_number(value, f"the logged value {name!r}", self.learner.device)
        if self.is_in_hook:
            self.logged[name if name.startswith(("train_", "val_")) else f"train_{name}"] = float(number)
        elif self.is_evaluating:
            self.learner.evaluation.log(name, number, rows)
        else:
            self.learner.add_losses({name: number}, rows or 1)

    @contextmanager
    def gather_hook_logs(self) -> Iterator[None]:
        """Add values that are logged in this context to the row that was just measured."""
        self.is_in_hook = True
        try:
            yield
        finally:
            self.is_in_hook = False

    def call_last_hook(self) -> None:
        """Call the hook of the end of a run; what it logs is too late for the log."""
        with self.gather_hook_logs():
            self.learner.functions.on_train_end()
        if lost := self.learner.take_logged()[0]:
            log.warning("%s.on_train_end logs %s, but the log has ended", self._name, listing(list(lost)))

    def log_images(self, name: str, images: Any, columns: int | None = None) -> None:
        """Store a grid of images at the next pause, in the run folder and in TensorBoard."""
        if not name.replace("_", "").replace("-", "").isalnum():
            raise UsageError(f"the name of images must be letters, digits, - and _, not {name!r}")
        self.pictures[name] = make_grid(images, columns)

    def log_losses(self, returned: Any, rows: int) -> None:
        """Log what a step has returned."""
        learner = self.learner
        learner.add_losses(read_losses(returned, learner.functions.step_name, learner.device), rows)

    def default_step(self, batch: Batch) -> Tensor | None:
        """Train on a batch as for a plain module: loss, gradients, and all optimizers of the config."""
        learner = self.learner
        _, loss = learner.objective(learner.module, batch)
        if loss is None:
            return None
        if loss.requires_grad:
            self.calls |= {"backward", "step"}
            learner.update.backward(loss if self.share == 1 or learner.objective.sums else loss * self.share)
            if self.is_last_part:
                learner.update.step_all()
        return loss.detach()

    def default_written_step(self, written: Any) -> Tensor | None:
        """Train as for a plain module on a batch in the form of a PyTorch loader."""
        return self.default_step(from_written(written, self.current.index))

    def default_split(self, split: str) -> dict[str, float]:
        """Return the means over the rows of a split, as for a plain module."""
        return self.learner.evaluation.measure_default(split)

    def validate_now(self) -> dict[str, float]:
        """Validate when the user's loop asks for it; the run does not measure the same step again."""
        return self.learner.evaluation.validate()

    def call_epoch(self, function: Callable[[], Any] | None) -> None:
        """Train one epoch for the user's own loop; without a function, the usual one."""
        self.learner.own_epochs.enter(function)

    @property
    def is_in_epoch(self) -> bool:
        """Whether an epoch of the user's own is running."""
        return self.learner.own_epochs.is_running

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation is running."""
        return self.learner.evaluation.is_open

    # -- what is said before it costs a training --------------------------------------------------

    def watch_optimizers(self) -> None:
        """Note which optimizers are stepped in the first epoch."""
        self.forget()
        self._hooks = [
            optimizer.register_step_pre_hook(functools.partial(self._note_step, name))
            for name, optimizer in self.optimizers.items()
        ]

    def _note_step(self, name: str, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note that an optimizer is stepped, with gradients."""
        if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            self._moved.add(name)

    def forget(self) -> None:
        """Stop watching optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._moved.clear()

    def check_created(self) -> None:
        """Refuse objects that `on_train_start` creates: a resumed run would not have them."""
        for path in self.learner.found.find_created():
            raise UsageError(
                f"{self._name}.on_train_start creates {path.removeprefix('module.')}, which a resumed run "
                "would not have: create it in __init__ or in setup()"
            )

    def notice(self) -> None:
        """Name what training has changed and checkpoints cannot keep, each once."""
        for path, reason in self.learner.found.notice().items():
            if path not in self._noticed:
                self._noticed.add(path)
                log.warning("%s.%s is not kept in checkpoints: %s", self._name, path, reason)

    def check_moved(self) -> None:
        """Check after the first epoch that it has stepped the optimizers."""
        if not self._hooks:
            return
        moved = set(self._moved)
        self.forget()
        idle = [name for name in self.optimizers if name not in moved]
        if idle and not moved:
            raise UsageError(
                f"{self._where} did not step any optimizer in the first epoch, or only without gradients"
            )
        for name in idle:
            log.warning("no step of the first epoch has moved the optimizer %r of %s", name, self._name)

    def check_tools(self, is_over: bool) -> None:
        """Refuse settings of the step that the user's functions do not apply.

        A step may accumulate gradients by hand: what it does not call before `is_over`, it never calls.
        """
        if self._is_checked or self.learner.functions.names_tools or not self.is_from_start:
            return
        self._is_checked = is_over or self.calls >= {"backward", "step"}
        if not self._is_checked or self.calls >= {"backward", "step"}:
            return
        learner = self.learner
        asked = {
            "accumulate": learner.accumulate > 1,
            "clip_norm": learner.update.clip_norm is not None,
            "clip_value": learner.update.clip_value is not None,
            "precision": learner.update.scaler is not None,
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            raise UsageError(
                f"train.{key} has no effect: {self._where} does not call self.backward(loss) and self.step() "
                "to apply it; call them, or remove the key"
            )

    def check_names(self, logged: Sequence[str]) -> None:
        """Check after the first epoch that the metrics that decide are measured."""
        for name, is_asked in self.learner.deciding.items():
            is_unknown = name.startswith("val_") and not any(each.startswith("val_") for each in logged)
            if name in logged or (is_unknown and is_asked and not self._has_validation):
                continue
            if not is_asked:
                log.warning("%s is not measured: the last checkpoint is the best; see export.metric", name)
            else:
                best = nearest(name, logged)
                hint = f"did you mean {best}?" if best else f"there are {listing(list(logged))}"
                raise UsageError(
                    f"no metric named {name!r}, which decides about checkpoints or stopping, was measured in "
                    f"the first epoch; {hint}"
                )

    @property
    def _has_validation(self) -> bool:
        """Whether the first epoch should have measured the validation split."""
        return self.learner.loaders["validation"] is not None and self.learner.evaluation.has_measured

    @property
    def _where(self) -> str:
        functions = self.learner.functions
        return functions.step_name if functions.span == "step" else f"{functions.name}.train_epoch"
