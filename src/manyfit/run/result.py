"""What `train` returns, and what can be asked of a run folder later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit.config.load import load_component
from manyfit.config.typed.roles import MODEL
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder


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
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def failed_rows(self) -> dict[str, int]:
        """How many rows of each split a function has failed on."""
        splits, failed = self.summary.get("splits"), dict[str, int]()
        for name, found in splits.items() if isinstance(splits, dict) else ():
            rows = found.get("failed") if isinstance(found, dict) else None
            failed[name] = len(rows) if isinstance(rows, dict) else 0
        return failed

    @property
    def history(self) -> list[Event]:
        """Every row of the run's log."""
        return RunFolder(self.folder).events()

    def load_model(self) -> Any:
        """The model with the weights of the best checkpoint, ready to predict."""
        return load_model(self.folder, trust=True)  # it was trained a moment ago


def load_model(place: str | Path, allow: Collection[str] = (), trust: bool = False) -> Any:
    """Rebuild a model from a run (its best checkpoint), a checkpoint or an export, ready to predict.

    It takes the code that the model is made of, and no script: exports and checkpoints know the import path
    and the arguments. No pickle is read. What was not made here is data: listed classes are built, and code
    of the project that you are in; anything else is refused, unless you `trust` it. A `.keras` file may carry
    code (Lambda layers), or name some: it is refused, unless `allow` names that code.
    """
    from manyfit.learn.kind import kinds
    from manyfit.learn.models import make_model
    from manyfit.run.evaluation.export import Contents, load_export, restore

    path = Path(place)
    for kind in kinds() if path.suffix else ():
        if path.suffix in kind.loaders:
            return kind.loaders[path.suffix](path, allow)
    if (path / "model.json").is_file() or (path / "manifest.json").is_file():
        return load_export(path, trust)
    folder = RunFolder(path)
    folder.load_trained()
    made = make_model(load_component(folder.resolved, "model", MODEL, trust))
    return restore(made, Contents({}, None, folder.checkpoint("best").load()), path)
