"""Modules with a `train_step(batch, optimizers)` of their own."""

from __future__ import annotations

from typing import Any

from manyfit.data import Batch
from manyfit.learn.functions.functions import Functions


class ModuleFunctions(Functions):
    """The functions of a module that performs the whole step itself."""

    def bind(self, learner: Any) -> None:
        """Keep the optimizers of the config, which are passed to every step."""
        found = learner.update.optimizers
        self._optimizers: Any = found[""] if list(found) == [""] else dict(found)

    def train_step(self, batch: Batch) -> Any:
        """Call the module's function with the batch and the optimizers."""
        return self.owner.train_step(batch, self._optimizers)
