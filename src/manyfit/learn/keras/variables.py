"""The variables of a Keras model, its optimizers, its metrics and its random generators, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from manyfit.core.errors import FolderError
from manyfit.core.lazy import import_optional

KINDS: Final = ("model/", "optimizer/", "metrics/", "random/")
UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)


class Variables:
    """The variables of one model that a checkpoint holds."""

    def __init__(self, keras: Any, model: Any, random: Any) -> None:
        """`random` is the state of the global generator."""
        self._keras = keras
        self._model = model
        self._random = random

    def by_name(self) -> dict[str, Any]:
        """Return all variables by their names in a checkpoint."""
        # Numbered: the names that Keras generates depend on how many models were created before.
        groups = {
            "model": self._model.variables,
            "optimizer": [v for optimizer in self._optimizers() for v in optimizer.variables],
            "metrics": self._model.metrics_variables,
            "random": [self._random],
        }
        return {f"{kind}/{i:04d}": v for kind, found in groups.items() for i, v in enumerate(found)}

    def _optimizers(self) -> list[Any]:
        """Return the optimizer of the model, and those in its attributes for a custom `train_step`."""
        kind = self._keras.optimizers.Optimizer
        found = [self._model.optimizer, *(v for v in vars(self._model).values() if isinstance(v, kind))]
        return list({id(each): each for each in found if isinstance(each, kind)}.values())

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Assign the values of a checkpoint to the variables."""
        variables = self.by_name()
        known = {name for name in tensors if name.startswith(KINDS)}
        if known != set(variables):
            odd = sorted(known ^ set(variables))
            raise FolderError(f"the checkpoint does not fit the model: {odd[0]} is only in one of them")
        for name, variable in variables.items():
            value = tensors[name]
            if tuple(value.shape) != tuple(variable.shape):
                shapes = f"{tuple(value.shape)}, not {tuple(variable.shape)}"
                raise FolderError(f"the checkpoint does not fit the model: {name} has shape {shapes}")
            variable.assign(value.cpu().numpy().astype(str(variable.dtype).replace("bfloat16", "float32")))

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore, on exit, what an evaluation changes: metric variables and the seeds of random layers."""
        weights = {id(v) for v in self._model.non_trainable_weights}
        seeds = [v for v in self._model.non_trainable_variables if id(v) not in weights]
        touched = [*self._model.metrics_variables, *seeds, self._random]
        before = [self.array(variable) for variable in touched]
        try:
            yield
        finally:
            for variable, value in zip(touched, before, strict=True):
                variable.assign(value)

    def array(self, variable: Any) -> Any:
        """Return a copy of a variable as an array."""
        return np.array(self._keras.ops.convert_to_numpy(variable))

    def numpy(self, value: Any) -> Any:
        """Return a tensor of the backend as an array; bfloat16 becomes float32."""
        found = np.asarray(self._keras.ops.convert_to_numpy(value))
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found

    def tensor(self, variable: Any) -> torch.Tensor:
        """Return a variable as a torch tensor; unsigned integers become int64."""
        value = variable.value
        if isinstance(value, torch.Tensor):
            value = value.detach()
            return value.to(torch.int64) if value.dtype in UNSIGNED else value
        found = self.numpy(variable)
        return torch.from_numpy(found.astype(np.int64) if found.dtype.kind == "u" else np.array(found))


def fresh_generator(seed: int) -> Any:
    """Reset Keras' global generator, which layers without their own use, and return its state variable."""
    keras: Any = import_optional("keras", "keras")
    made = keras.random.SeedGenerator(seed & 0x7FFF_FFFF)
    state: Any = import_optional("keras.src.backend.common.global_state", "keras")
    state.set_global_attribute("global_seed_generator", made)
    return made.state
