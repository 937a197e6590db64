"""The kind of objects with training functions of their own: trainers, and modules with a `train_step`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from manyfit.config import Config
from manyfit.config.schema.consistency import find_deciding_metrics
from manyfit.config.typed.roles import LIGHTNING, has_base
from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.learn.found_state.state import FoundState
from manyfit.learn.functions.functions import BUILDING, Functions, Surroundings
from manyfit.learn.functions.learner import FunctionLearner
from manyfit.learn.functions.loaders import RunData, make_loaders
from manyfit.learn.functions.modules import ModuleFunctions
from manyfit.learn.functions.networks import Networks, networks_of
from manyfit.learn.functions.whole import WholeFunctions
from manyfit.learn.kind import Setup
from manyfit.learn.models import LIVE, Compiled, Made, build_seeded
from manyfit.learn.torch.build import load_weights
from manyfit.learn.torch.kind import TorchKind


class FunctionKind(TorchKind):
    """The kind of learner made of a user's functions."""

    name: ClassVar[str] = "own functions"
    noun: ClassVar[str] = "an object with training functions of its own"
    unused: ClassVar[Collection[str]] = ("capture", "compile")

    def claims(self, model: Any) -> bool:
        """Return whether an object, or a class, trains itself: a trainer, or a module with `train_step`."""
        cls = model if isinstance(model, type) else type(model)
        if hasattr(cls, "as_functions") or has_base(cls, LIGHTNING):
            return True
        if not super().claims(model):
            return not hasattr(cls, "fit") and callable(getattr(cls, "train", None))
        return callable(getattr(cls, "train_step", None))

    def prepare(self, config: Config, made: Made, device: Any, warm: bool) -> None:
        """Prepare the model; a trainer without one builds its networks later."""
        if made.model is not None:
            super().prepare(config, made, device, warm)

    def build(self, setup: Setup) -> FunctionLearner:
        """Build the object with its functions, and the learner that calls them."""
        config = setup.config
        splits = RunData(
            setup.train, setup.order, setup.validation, setup.test,
            config.run.evaluate.batch_size or setup.order.batch_size,
        )  # fmt: skip
        functions = self._translate(setup, splits)
        epochs, module = setup.epochs, setup.made.model
        if module is None:
            own = getattr(functions.owner, "model", None)
            module = own if isinstance(own, nn.Module) else networks_of(functions.owner)
            module.to(setup.device)
            if setup.warm:
                load_weights(config, module)
        if setup.device.type != "cpu":
            for each in FoundState(functions.owner, hidden=functions.hidden).modules():
                each.to(setup.device)
        check_average(config, module, functions)
        check_own_step(config, functions)
        optimizer = functions.create_optimizer(module)
        if optimizer is not None:
            made = replace(setup.made, compiled=Compiled(module, optimizer=optimizer))
            setup = replace(setup, made=made)
        with functions.unfrozen():
            parts = self.assemble(setup, module)
        functions.adjust(parts["update"])
        if functions.span == "whole":
            parts["update"].steps_per_epoch = epochs = 1
        return FunctionLearner(
            **parts,
            functions=functions,
            splits=splits,
            epochs=epochs,
            deciding={
                name: config.origin(".".join(path)) is not None
                for path, name in find_deciding_metrics(config.run)
            },
        )

    def _translate(self, setup: Setup, splits: RunData) -> Functions:
        """Return the functions of the trainer, or of the model itself."""
        trainer, model = setup.config.run.trainer, setup.made.model
        if trainer is None or LIVE.get():
            return functions_of(model if trainer is None else LIVE.get()["trainer"])

        def build() -> Any:
            loaders = make_loaders(splits, _converter(setup.device))
            around = Surroundings(
                model, setup.device, setup.epochs, splits.order.batch_size, loaders["train"],
                loaders["validation"], loaders["test"],
                tuple(trainer.params), setup.config,
            )  # fmt: skip
            before = BUILDING.set(around)
            try:
                return trainer.build(**({"model": model} if accepts_model(trainer.target) else {}))
            finally:
                BUILDING.reset(before)

        return functions_of(build_seeded(derive(setup.config.run.seed, "weights", "trainer"), build))

    def can_take_turns(self, learner: FunctionLearner) -> bool:
        """Return whether nothing but the step of a module is the user's."""
        return isinstance(learner.functions, ModuleFunctions)

    def usual_formats(self, learner: Any, is_auto: bool) -> Sequence[str]:
        """Return the formats of a module; none without one that can be called."""
        return super().usual_formats(learner, is_auto) if learner.evaluation.has_outputs else []

    def restore(self, model: Any, state: Mapping[str, Any], inputs: Any = None) -> Any:
        """Load the weights into a module, or into the networks of a trainer."""
        if hasattr(model, "load_state_dict"):
            return super().restore(model, state, inputs)
        owner = functions_of(model).owner
        own = getattr(owner, "model", None)
        return super().restore(own if isinstance(own, nn.Module) else networks_of(owner), state, inputs)


def _converter(device: Any) -> Callable[[Any], Any]:
    import torch

    return lambda array: torch.as_tensor(array).to(device)


def accepts_model(target: Any) -> bool:
    """Return whether the class of a trainer has a parameter for its model."""
    init = vars(target).get("__init__", target) if isinstance(target, type) else target
    parameters = inspect.signature(init).parameters
    return "model" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def functions_of(owner: Any) -> Functions:
    """Return the functions of an object, translated."""
    translate = getattr(owner, "as_functions", None)
    if translate is not None:
        found: Functions = translate()
        return found
    if has_base(type(owner), LIGHTNING):
        from manyfit.learn.functions.lightning import LightningFunctions

        return LightningFunctions(owner)
    return ModuleFunctions(owner) if hasattr(owner, "parameters") else WholeFunctions(owner)


def check_average(config: Config, module: Any, functions: Functions) -> None:
    """Refuse averaged weights where the user's functions evaluate: they would measure the others."""
    evaluates = functions.has_val_step or functions.has_predictions or functions.split_function("validation")
    if config.run.train.ema is not None and (evaluates or isinstance(module, Networks)):
        raise UsageError(
            f"{config.origin('train.ema')}: train.ema: {functions.name} evaluates its own networks, not "
            "averaged weights; keep a torch.optim.swa_utils.AveragedModel as an attribute and evaluate that"
        )


def check_own_step(config: Config, functions: Functions) -> None:
    """Raise an error for settings of the training step that the user's own code cannot apply."""
    if functions.uses_tools:
        return
    train = config.run.train
    asked = {
        "accumulate": train.accumulate > 1,
        "clip_norm": train.clip_norm is not None,
        "clip_value": train.clip_value is not None,
        "precision": train.precision == "fp16",
    }
    for key in (key for key, is_asked in asked.items() if is_asked):
        raise UsageError(
            f"{config.origin(f'train.{key}')}: train.{key}: {functions.name} has its own "
            f"{'train()' if functions.span == 'whole' else 'train_step'}; implement this there"
        )
