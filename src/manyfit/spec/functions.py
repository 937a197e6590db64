"""The functions of a minibatch spec, for the learner that calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.core.methods import find_method, has_method
from manyfit.data import Batch
from manyfit.learn.functions.functions import Functions
from manyfit.learn.functions.losses import to_device
from manyfit.spec.minibatch import Metrics

log = logging.getLogger("manyfit")

MODES = {"validation": "val", "test": "test"}


class SpecFunctions(Functions):
    """Calls the methods of a minibatch spec. The spec is the copy of one run."""

    has_forward = False
    keeps_modes = True

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.hidden = owner.worker_attributes
        self.has_predictions = has_method(owner, "predict")
        self._aggregates = has_method(owner, "metrics_agg")
        self._has_warned = False
        self._learner: Any = None
        self._objects = {k: v for k, v in owner.model_object.items() if hasattr(v, "state_dict")}
        """The models and optimizers, which training may change but not replace."""

    @property
    def step_name(self) -> str:
        """The name of the function that trains on a batch."""
        return f"{self.name}.train"

    @property
    def name(self) -> str:
        """The name of the user's class."""
        return str(type(self.owner).__name__)

    def overrides(self) -> Sequence[str]:
        """Return the methods that the user has written."""
        return [
            name for name in ("train", "valtest", "predict", "metrics_agg") if has_method(self.owner, name)
        ]

    def bind(self, learner: Any) -> None:
        """Keep the learner, which has the loaders and the device."""
        self._learner = learner

    # -- training ---------------------------------------------------------------------------------

    def train_step(self, batch: Batch) -> None:
        """Train on one minibatch, and log its metrics."""
        owner = self.owner
        returned = owner.train(owner.model_object, as_pair(batch), owner.hyperparams, self._learner.device)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise RunFailed(f"{self.step_name} must return (model_object, metrics), not {returned!r:.60}")
        model, metrics = returned
        self._check_model(model)
        for name, value in self._check_metrics(metrics, self.step_name).items():
            if is_number(value):
                number = torch.as_tensor(value, device=self._learner.device).detach().reshape(())
                self._learner.add_losses({name: number.float()}, len(batch))
            if self._aggregates:
                owner.collected.setdefault(name, []).append(keep_value(value))

    def _check_model(self, model: Any) -> None:
        is_given = model is self.owner.model_object
        is_same = isinstance(model, Mapping) and model.keys() >= self.owner.model_object.keys()
        if not (is_given or is_same) or any(model.get(k) is not v for k, v in self._objects.items()):
            raise RunFailed(
                f"{self.step_name} must return the model object that it was given: its models and its "
                "optimizer may change, but not be replaced"
            )

    def _check_metrics(self, metrics: Any, where: str) -> dict[str, Any]:
        if metrics is None:
            return {}
        if not isinstance(metrics, Mapping):
            raise RunFailed(f"{where} must return metrics by name, not {metrics!r:.60}")
        return {str(name): value for name, value in metrics.items()}

    def on_epoch_end(self, row: Mapping[str, float]) -> None:
        """Aggregate the metrics of the epoch."""
        if not self._aggregates:
            return
        collected, self.owner.collected = self.owner.collected, {}
        for name, value in self._aggregate("train", collected).items():
            self._learner.bench.log_value(f"train_{name}", value)

    def _aggregate(self, mode: str, metrics: Metrics) -> dict[str, float]:
        """Return the numbers of an epoch or a split."""
        owner = self.owner
        found = owner.metrics_agg(mode, owner.hyperparams, metrics)
        if isinstance(found, tuple) and len(found) == 2:
            found = self._read_pair(found, list(metrics))
        if not isinstance(found, Mapping):
            raise RunFailed(f"{self.name}.metrics_agg must return numbers by name, not {found!r:.60}")
        numbers: dict[str, float] = {}
        for name, value in found.items():
            if not is_number(value):
                raise RunFailed(
                    f"{self.name}.metrics_agg must return one number for {name!r}, not {value!r:.60}"
                )
            numbers[str(name)] = float(value)
        return numbers

    def _read_pair(self, pair: tuple[Any, Any], names: Sequence[str]) -> dict[str, float]:
        """Return numbers from a pair of tensors: of two metrics, or of predictions and labels."""
        first, second = pair
        if second is None:
            numbers: dict[str, float] = {}
        elif is_number(first) and is_number(second):
            known = (*names, "first", "second")
            numbers = {known[0]: float(first), known[1]: float(second)}
        else:
            numbers = compare_pair(torch.as_tensor(first), torch.as_tensor(second))
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s.metrics_agg returns a pair of tensors, from which these are computed: %s; return numbers "
                "by name instead", self.name, ", ".join(numbers) or "none",
            )  # fmt: skip
        return numbers

    # -- evaluation -------------------------------------------------------------------------------

    def split_function(self, split: str) -> str:
        """Return the name of the method that evaluates a split, if the spec has it."""
        found = find_method(self.owner, "valtest")
        is_own = has_method(self.owner, "valtest") or getattr(found, "__name__", "") == "val_test"
        return found.__name__ if is_own else ""

    def measure_split(self, split: str) -> dict[str, float]:
        """Return the numbers of a split: all of its minibatches, aggregated."""
        return self.summarize_split(split, self.collect_split(split, None))

    @property
    def divides_splits(self) -> bool:
        """True, if the spec evaluates splits: lists of metrics can be continued."""
        return bool(self.split_function("validation"))

    def collect_split(self, split: str, known: Metrics | None) -> Metrics:
        """Return the metrics of the minibatches of a part of a split, after those of earlier parts."""
        learner, owner = self._learner, self.owner
        metrics = {name: list(values) for name, values in (known or {}).items()}
        method = find_method(owner, "valtest")
        for batch in learner.loaders[split].read():
            pair = as_pair(to_device(batch, learner.objective.tensor))
            found = method(owner.model_object, pair, owner.hyperparams, learner.device)
            for name, value in self._check_metrics(found, f"{self.name}.{method.__name__}").items():
                metrics.setdefault(name, []).append(keep_value(value))
        return metrics

    def summarize_split(self, split: str, collected: Metrics) -> dict[str, float]:
        """Return the numbers of a split from the metrics of all its minibatches."""
        return self._aggregate(MODES[split], collected)

    def predict(self, batch: Batch) -> Any:
        """Return the predictions of one minibatch."""
        owner = self.owner
        device = self._learner.device if self._learner is not None else torch.device("cpu")
        found = owner.predict(owner.model_object, as_pair(batch), owner.hyperparams, device)
        if not isinstance(found, tuple) or len(found) != 2:
            raise RunFailed(f"{self.name}.predict must return (classes, confidences), not {found!r:.60}")
        outputs = {"class": found[0], "confidence": found[1]}
        return {name: torch.as_tensor(value) for name, value in outputs.items() if value is not None}


def as_pair(batch: Batch) -> tuple[Any, Any]:
    """Return a batch as a pair of inputs and targets."""
    return batch.inputs, batch.target


def is_number(value: Any) -> bool:
    """Return whether a value is one number."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) or (getattr(value, "size", 0) == 1 and hasattr(value, "item"))


def keep_value(value: Any) -> Any:
    """Return a value that can be kept until the end of an epoch: a number, or a tensor without gradient."""
    kept = value.detach().cpu() if isinstance(value, Tensor) else value
    return float(kept) if is_number(kept) and not getattr(kept, "ndim", 0) else kept


def compare_pair(processed: Tensor, labels: Tensor) -> dict[str, float]:
    """Return how predictions compare with labels: the accuracy for classes, or else the squared error."""
    if processed.ndim == labels.ndim + 1 and not labels.is_floating_point():
        processed = processed.argmax(-1)
    if processed.shape != labels.shape:
        raise RunFailed(
            f"metrics_agg returned tensors of the shapes {tuple(processed.shape)} and {tuple(labels.shape)}, "
            "which cannot be compared"
        )
    if labels.is_floating_point():
        return {"mse": float(((processed.float() - labels) ** 2).mean())}
    return {"accuracy": float((processed.round() == labels).float().mean())}
