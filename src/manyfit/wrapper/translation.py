"""The functions of a model wrapper, for the learner that calls them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from manyfit.core.errors import UsageError
from manyfit.core.names import listing
from manyfit.data import Batch
from manyfit.trainers.translation import TrainerFunctions


class WrapperFunctions(TrainerFunctions):
    """The functions that a subclass of `ModelWrapper` overrides."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.hidden = (*self.hidden, "config", "model_class")
        self._functions = dict(owner.evaluation_functions())
        self.collects = bool(self._functions)
        if owner.model is None and (owner.model_class is not None or self._is_own("create_model")):
            owner.__dict__["model"] = owner.create_model(owner.config)

    def overrides(self) -> list[str]:
        """Return the functions that the subclass overrides."""
        names = ("custom_evaluation", "evaluation_functions")
        return [*super().overrides(), *(name for name in names if self._is_own(name))]

    def create_optimizer(self, model: Any) -> Any:
        """Return the optimizer of the wrapper; None for that of the config."""
        return self.owner.create_optimizer(model)

    def adjust(self, update: Any) -> None:
        """Use the schedule and the scaler of the wrapper, if it has any."""
        scheduler = self.owner.create_scheduler(next(iter(update.optimizers.values()), None))
        scaler = self.owner.create_scaler()
        if scheduler is not None:
            update.schedulers = {next(iter(update.optimizers)): scheduler}
        if scaler is not None:
            update.scaler = scaler
        if scheduler is not None or scaler is not None:
            update.__post_init__()

    def train_step(self, batch: Batch) -> Any:
        """Train on one batch; of `(outputs, losses)`, the losses count."""
        returned = super().train_step(batch)
        return returned[1] if isinstance(returned, tuple) and len(returned) == 2 else returned

    def split_function(self, split: str) -> str:
        """Return the name of the function of a whole split."""
        return "custom_evaluation" if self._is_own("custom_evaluation") else super().split_function(split)

    def measure_split(self, split: str) -> Any:
        """Return the numbers of a whole split."""
        if not self._is_own("custom_evaluation"):
            return super().measure_split(split)
        owner = self.owner
        return owner.custom_evaluation(
            owner.model, owner.val_loader if split == "validation" else owner.test_loader
        )

    def measure_collected(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Call the evaluation functions with all outputs and inputs of a split, by argument name."""
        numbers: dict[str, float] = {}
        for name, function in self._functions.items():
            wanted = inspect.signature(function).parameters
            needed = [p.name for p in wanted.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
            missing = [each for each in needed if each not in found]
            if missing:
                raise UsageError(
                    f"{self.name}.evaluation_functions: {name} needs {listing(missing)}, but the outputs and "
                    f"inputs of the model are {listing(list(found))}"
                )
            value = function(**{key: found[key] for key in wanted if key in found})
            each = value if isinstance(value, Mapping) else {name: value}
            numbers |= {str(key): float(number) for key, number in each.items()}
        return numbers
