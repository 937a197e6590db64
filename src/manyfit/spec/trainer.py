"""The component of a config that trains a minibatch spec."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

from manyfit.config.typed.kinds import FromProject, Kind
from manyfit.config.typed.roles import SPEC
from manyfit.core.errors import UsageError
from manyfit.core.methods import check_methods
from manyfit.data.randomness import own_randomness
from manyfit.learn.functions.functions import BUILDING
from manyfit.spec.functions import SpecFunctions
from manyfit.spec.minibatch import EXPECTED, NEEDED, MinibatchSpec

_prepared: dict[Any, Any] = {}
"""The specs of this worker, after `initialize_worker` and `read_misc`."""


class SpecTrainer:
    """Trains the models of a minibatch spec with one set of hyperparameters.

    trainer: {class: manyfit.spec.SpecTrainer, spec: {class: specs.Mine}, hyperparams: {lr: 1e-3}}
    """

    def __init__(
        self,
        spec: Annotated[MinibatchSpec, SPEC],
        hyperparams: Mapping[str, Any] | None = None,
        misc_path: Annotated[str, Kind.NEUTRAL, FromProject] = "",
    ) -> None:
        check_methods(spec, EXPECTED, NEEDED)
        self.spec = prepare_spec(spec, misc_path)
        self.spec.hyperparams = dict(hyperparams or {})
        self.spec.collected = {}
        around = BUILDING.get()
        if around is not None:
            check_same_batch_size(self.spec.hyperparams, around.batch_size)
        self.spec.model_object = self._create()

    def _create(self) -> dict[str, Any]:
        name = f"{type(self.spec).__name__}.create_model_components"
        found = self.spec.create_model_components(self.spec.hyperparams)
        if not isinstance(found, dict) or "optimizer" not in found:
            keys = sorted(found) if isinstance(found, dict) else type(found).__name__
            raise UsageError(
                f"{name} must return a dict of models with the key 'optimizer', but returned {keys}"
            )
        return found

    def train(self) -> None:
        """Do nothing: a spec is trained by `manyfit.train`, one minibatch at a time."""
        raise UsageError("a spec is trained by manyfit.train or manyfit.spec.Experiment")

    def as_functions(self) -> SpecFunctions:
        """Return the functions of the spec."""
        return SpecFunctions(self.spec)


def prepare_spec(spec: Any, misc_path: str) -> Any:
    """Return a copy of a spec for one run; the worker is initialized once, for the first of them."""
    key = type(spec), misc_path, repr(sorted(vars(spec).items()))
    if key not in _prepared:
        with own_randomness():  # the first run of a worker must not draw other numbers than the next
            spec.initialize_worker()
            spec.read_misc(misc_path if not misc_path or misc_path.endswith("/") else f"{misc_path}/")
        _prepared[key] = spec
    made = copy.copy(_prepared[key])
    made.worker_attributes = (*vars(_prepared[key]), "worker_attributes")
    return made


def check_same_batch_size(hyperparams: Mapping[str, Any], batch_size: int) -> None:
    """Raise an error if the rows come in other batches than the hyperparameters say."""
    wanted = hyperparams.get("batch_size", batch_size)
    if wanted != batch_size:
        raise UsageError(
            f"hyperparams.batch_size is {wanted}, but data.batch_size is {batch_size}; "
            "write data: {batch_size: ${trainer.hyperparams.batch_size}}"
        )
