"""What `train` returns, and what can be asked of a run folder later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from manyfit.config.config import snapshot
from manyfit.config.load import load_component
from manyfit.config.read import read_file
from manyfit.config.roles import MODEL
from manyfit.core.errors import FolderError
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run: where it lies, what it measured, and its model.

    >>> result = manyfit.train("runs/digits-mlp")    # doctest: +SKIP
    >>> result.test["accuracy"]                      # doctest: +SKIP
    0.9741
    """

    folder: Path
    step: int
    best_step: int
    metrics: Mapping[str, float]
    test: Mapping[str, float]
    trained_steps: int = 0

    @property
    def history(self) -> list[Event]:
        """Every row of the run's log."""
        return RunFolder(self.folder).events()

    def load_model(self) -> nn.Module:
        """The model with the weights of the best checkpoint, ready to predict."""
        return load_model(self.folder)


def load_model(run: str | Path) -> nn.Module:
    """Rebuild the model of a run from its folder, with the weights of the best checkpoint."""
    from manyfit.learn.pack import unpack

    folder = RunFolder(Path(run))
    if not folder.resolved.exists():
        raise FolderError(f"{folder.path} has not been trained: it has no config.resolved.yaml")
    module: nn.Module = load_component(folder.resolved, "model", MODEL).build()
    values = snapshot(read_file(folder.resolved)).values
    state = folder.chosen(values["export.metric"], values["export.mode"]).load()
    module.load_state_dict(unpack(state)["model"])
    return module.eval()
