"""The minibatch spec: how models are created, trained and evaluated, one minibatch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

GIVEN: Final[WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any]]]] = WeakKeyDictionary()
"""By spec: the arguments that it was created with."""
Metrics = dict[str, list[Any]]
"""By name: what each minibatch has returned, in order."""


class MinibatchSpec:
    """How models are created, trained and evaluated. Subclasses fill in the methods; others may be added.

    `model_object` is what `create_model_components` has returned, and `minibatch` a pair of inputs and
    targets on the device; the targets are None where rows have none.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments, with which other processes make the spec again."""
        made = super().__new__(cls)
        with suppress(TypeError):  # a spec that cannot be hashed has no arguments
            GIVEN[made] = args, kwargs
        return made

    def initialize_worker(self) -> None:
        """Prepare a worker. Called exactly once on each."""

    def read_misc(self, misc_path: str) -> None:
        """Read further files from a folder, on every worker. The path ends in a slash.

        What this and `initialize_worker` store on `self` is not part of a checkpoint.
        """

    def create_model_components(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """Return the models by name, and the optimizer as `optimizer`."""
        raise NotImplementedError

    def train(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: dict[str, Any], device: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Train on one minibatch; return the model object and metrics by name."""
        raise NotImplementedError

    def valtest(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: dict[str, Any], device: Any
    ) -> dict[str, Any]:
        """Return the metrics of one minibatch of the validation or the test rows, by name."""
        raise NotImplementedError

    def predict(
        self, model_object: dict[str, Any], minibatch: Any, hyperparams: dict[str, Any], device: Any
    ) -> tuple[Any, Any]:
        """Return the predicted classes of one minibatch, and how confident they are."""
        raise NotImplementedError

    def metrics_agg(self, mode: str, hyperparams: dict[str, Any], metrics: Metrics) -> dict[str, float]:
        """Return the numbers of an epoch or a split: their means by default.

        `mode` is `train`, `val` or `test`.
        """
        return {name: average_values(values) for name, values in metrics.items() if values}


EXPECTED: Final = {
    "initialize_worker": (),
    "read_misc": ("misc_path",),
    "create_model_components": ("hyperparams",),
    "train": ("model_object", "minibatch", "hyperparams", "device"),
    "valtest": ("model_object", "minibatch", "hyperparams", "device"),
    "predict": ("model_object", "minibatch", "hyperparams", "device"),
    "metrics_agg": ("mode", "hyperparams", "metrics"),
}
"""The parameters of each method."""
NEEDED: Final = ("create_model_components", "train")


def average_values(values: Sequence[Any]) -> float:
    """Return the mean of the numbers of all minibatches, some of which may have several."""
    total, count = 0.0, 0
    for value in values:
        total += float(value.sum()) if hasattr(value, "sum") else float(value)
        count += int(value.numel()) if hasattr(value, "numel") else int(getattr(value, "size", 1))
    return total / max(1, count)
