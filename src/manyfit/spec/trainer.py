"""The component of a config that trains a minibatch spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from manyfit.config.typed.kinds import FromProject, Kind
from manyfit.config.typed.roles import SPEC
from manyfit.core.code_hash import hash_code
from manyfit.core.errors import UsageError
from manyfit.core.methods import check_methods
from manyfit.data.etl.run import digest_folder
from manyfit.data.randomness import own_randomness
from manyfit.learn.functions.functions import BUILDING
from manyfit.spec.functions import SpecFunctions
from manyfit.spec.minibatch import EXPECTED, NEEDED, MinibatchSpec

_prepared: dict[Any, dict[str, Any]] = {}
"""By spec: what `initialize_worker` and `read_misc` have stored on it, in this worker."""


class SpecTrainer:
    """Trains the models of a minibatch spec with one set of hyperparameters.

    trainer: {class: manyfit.spec.SpecTrainer, spec: {class: specs.Mine}, hyperparams: {lr: 1e-3}}
    """

    def __init__(
        self,
        spec: Annotated[MinibatchSpec, SPEC],
        hyperparams: Mapping[str, Any] | None = None,
        misc_path: Annotated[str, Kind.NEUTRAL, FromProject] = "",
        misc_digest: str = "",
    ) -> None:
        """`misc_digest` is a hash of the contents of the folder `misc_path`, which are part of the run."""
        if misc_digest and digest_folder(misc_path) != misc_digest:
            raise UsageError(f"{misc_path} has changed: it has other contents than the run was made for")
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
    """Prepare the spec of one run. The worker is initialized for the first of them.

    What `initialize_worker` and `read_misc` store on the spec is given to the later ones; everything else
    belongs to the run alone.
    """
    key = type(spec), misc_path, hash_code(vars(spec))
    if key not in _prepared:
        before = {name: hash_code(value) for name, value in vars(spec).items()}
        with own_randomness():  # the first run of a worker must not draw other numbers than the next
            spec.initialize_worker()
            spec.read_misc(misc_path if not misc_path or misc_path.endswith("/") else f"{misc_path}/")
        _prepared[key] = {
            name: value for name, value in vars(spec).items() if before.get(name) != hash_code(value)
        }
    vars(spec).update(_prepared[key])
    spec.worker_attributes = (*_prepared[key], "worker_attributes")
    return spec


def check_same_batch_size(hyperparams: Mapping[str, Any], batch_size: int) -> None:
    """Raise an error if the rows come in other batches than the hyperparameters say."""
    wanted = hyperparams.get("batch_size", batch_size)
    if wanted != batch_size:
        raise UsageError(
            f"hyperparams.batch_size is {wanted}, but data.batch_size is {batch_size}; "
            "write data: {batch_size: ${trainer.hyperparams.batch_size}}"
        )
