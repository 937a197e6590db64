"""The kind of PyTorch modules, with the loss and the optimizer of the config or with their own."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from manyfit.config import Config
from manyfit.config.typed.roles import MODULE, has_base
from manyfit.core.errors import UsageError
from manyfit.core.gpus import PINNED
from manyfit.core.state import State
from manyfit.core.stopwatch import TimedCall
from manyfit.data import Batch
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.fusing import Key, Refusal, Terms
from manyfit.learn.group import Part
from manyfit.learn.kind import Format, LearnerKind, Setup, Tracing
from manyfit.learn.learner import Learner
from manyfit.learn.models import Compiled, Made
from manyfit.learn.packing import unpack
from manyfit.learn.torch.build import build_loss, build_update, load_weights
from manyfit.learn.torch.exports import write_onnx, write_program
from manyfit.learn.torch.heads import HeadsObjective
from manyfit.learn.torch.launching import Launching
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.objective import TorchObjective

log = logging.getLogger("manyfit")

AVERAGED: Final = "module."
"""The prefix that `AveragedModel` adds to the names of a module."""


class _Counting(TorchDispatchMode):
    """While it is active, operations are counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count an operation, and call it."""
        self.count += 1
        return func(*args, **(kwargs or {}))


class TorchKind(LearnerKind):
    """The kind of learner for PyTorch modules."""

    name: ClassVar[str] = "torch"
    noun: ClassVar[str] = "a torch.nn.Module"
    takes_turns: ClassVar[bool] = True
    unused: ClassVar[Collection[str]] = ()
    formats: ClassVar[Mapping[str, Format]] = {
        "torch": Format("model.pt2", write_program),
        "onnx": Format("model.onnx", write_onnx),
    }

    def claims(self, model: Any) -> bool:
        """Return whether a model is a module, or has `parameters` like one."""
        cls = model if isinstance(model, type) else type(model)
        return has_base(cls, (MODULE,)) or hasattr(model, "parameters")

    def prepare(self, config: Config, made: Made, device: Any, warm: bool) -> None:
        """Move the module to its device, and load the weights of a warm start."""
        check_gpu(device)
        if config.run.train.precision == "tf32" and device.type != "cuda":
            log.warning("train.precision: tf32 has no effect on %s, which computes in fp32", device)
        made.model.to(device)
        if warm and (count := load_weights(config, made.model)):
            log.info("warm start: loaded %d tensors from %s", count, config.run.train.warm_start.path)  # type: ignore[union-attr]

    def build(self, setup: Setup) -> TorchLearner:
        """Build the learner."""
        return TorchLearner(**self.assemble(setup, setup.made.model))

    def assemble(self, setup: Setup, module: torch.nn.Module) -> dict[str, Any]:
        """Build loss, optimizers and schedules for a module; return the fields of a learner."""
        config, train = setup.config, setup.config.run.train
        compiled = setup.made.compiled or Compiled(module, optimizer=_own_optimizer(config, module))
        loss = build_loss(config, setup.device, setup.train) if train.loss is not None else compiled.loss
        objective: Any = HeadsObjective if isinstance(loss, dict) else TorchObjective
        if compiled.optimizer is not None and train.optimizer is not None:
            where = config.origin("train.optimizer")
            raise UsageError(f"{where}: train.optimizer: the model already has an optimizer")
        update = build_update(config, module, setup.device, setup.steps_per_epoch, compiled.optimizer)
        is_moved = update.optimizers or hasattr(module, "train_step") or FoundState(module).optimizers()
        if setup.made.builder and not is_moved:
            raise UsageError(
                f"{config.run.subject.origin}: nothing trains the module of {setup.made.builder}: set "
                "train.optimizer and train.loss, or return manyfit.pipeline.Compiled(module, loss, optimizer)"
            )
        averaged = None
        if train.ema is not None:
            rule = get_ema_multi_avg_fn(train.ema)  # type: ignore[no-untyped-call]
            averaged = AveragedModel(module, multi_avg_fn=rule, use_buffers=True)
        unused = config.run.data.beside.get("unused", ())
        return {
            "module": module,
            "objective": objective(module, loss, setup.device, unused, setup.fed_by, setup.unused_key),
            "update": update,
            "metrics": {**compiled.metrics, **setup.metrics},
            "accumulate": train.accumulate,
            "precision": train.precision,
            "average": averaged,
            "ema": train.ema,
            "seed": config.run.seed,
            "launching": Launching(train.capture, train.compile),
        }

    def model_state(self, state: State) -> Mapping[str, Any]:
        """Return the state of the module, or of its averaged weights if there are any."""
        parts = unpack(state)
        if "average" not in parts:
            return dict(parts["model"])
        found = parts["average"].items()
        return {name.removeprefix(AVERAGED): value for name, value in found if name.startswith(AVERAGED)}

    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Load the weights, and switch to evaluation mode."""
        model.load_state_dict(dict(state))
        return model.eval()

    def group_key(self, learner: Any) -> Key | Refusal:
        """Return what a run must have in common with others: everything but weights and numbers."""
        from manyfit.learn.torch.fused.group_key import group_key

        return group_key(learner)

    def launches(self, learner: Any) -> bool:
        """Return whether the config and the device allow it."""
        return isinstance(learner, TorchLearner) and learner.launching.is_wanted(learner.device)

    def foresee_compiling(self, learner: Any) -> Callable[[float], float] | None:
        """Return a prediction, unless steps are not launched."""
        if not isinstance(learner, TorchLearner) or not self.launches(learner):
            return None
        leaves = sum(1 for each in learner.module.parameters() if each.requires_grad)
        return functools.partial(learner.launching.predict, learner.device, leaves)

    def count_operations(self, do: Callable[[], object]) -> float:
        """Return how many operations of torch a function calls, also in backward passes on the CPU."""
        counting = _Counting()
        with counting:
            do()
        return counting.count

    def fuse(
        self, parts: Sequence[Part], first: Sequence[Sequence[Batch]], terms: Terms
    ) -> tuple[Learner, str]:
        """Return a learner with stacked parameters, and how long its steps take."""
        from manyfit.learn.torch.fused.learner import FusedLearner

        found = FusedLearner.open(parts, first, terms)
        return found, found.checked.describe(found.n)

    def list_places(self) -> Sequence[TimedCall]:
        """Return the parts of a step, of one run and of several in one pass."""
        from manyfit.learn.torch.timed_places import PLACES

        return PLACES

    def trace(self, learner: Any) -> Tracing | None:
        """Return a trace of operators and kernels."""
        from manyfit.learn.torch.timed_places import OperatorTrace

        return OperatorTrace(learner.device)

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return a `torch.export` program if the config leaves the choice to the kind."""
        return ["torch"] if is_auto else []


def check_gpu(device: torch.device) -> None:
    """Raise an error if a GPU was requested and only the CPU is available."""
    asked = os.environ.get(PINNED)
    if asked and device.type == "cpu" and not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"it was built for CUDA {built} but finds no GPU" if built else "it was built without CUDA"
        raise UsageError(f"--gpu {asked}: torch cannot use a GPU here: {reason}")


def _own_optimizer(config: Config, module: torch.nn.Module) -> Any:
    """Return the optimizer of the module's `configure_optimizers`, if the config names none."""
    own: Callable[[], Any] | None = getattr(module, "configure_optimizers", None)
    if own is None or config.run.train.optimizer is not None or config.run.has_own_functions():
        return None
    if hasattr(module, "train_step"):
        return None
    found = own()
    if not isinstance(found, torch.optim.Optimizer):
        name = f"{type(module).__name__}.configure_optimizers"
        raise UsageError(f"{config.run.subject.origin}: {name} must return an optimizer, not {found!r:.60}")
    return found
