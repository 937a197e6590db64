"""The result of `train`, and loading the model of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit.config.load import load_subject
from manyfit.core.lazy import call_later
from manyfit.store.checkpoint import is_checkpoint
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run: its folder, its metrics and its model.

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
        """The number of rows of each split on which an evaluation function failed."""
        splits, failed = self.summary.get("splits"), dict[str, int]()
        for name, found in splits.items() if isinstance(splits, dict) else ():
            rows = found.get("failed") if isinstance(found, dict) else None
            failed[name] = len(rows) if isinstance(rows, dict) else 0
        return failed

    @property
    def history(self) -> list[Event]:
        """All entries of the run's log."""
        return RunFolder(self.folder).events()

    def plot(self, *metrics: str) -> Any:
        """Draw the curves of the run; a notebook shows the figure."""
        return call_later("manyfit.report.curves.plot_run", self.folder, metrics)

    def load_model(self) -> Any:
        """Return the model with the weights of the best checkpoint, ready to predict."""
        return load_model(self.folder, trust=True)  # it was trained by this process


def load_model(place: str | Path, allow: Collection[str] = (), trust: bool = False) -> Any:
    """Rebuild a model from a run (its best checkpoint), a checkpoint or an export, ready to predict.

    The code of the model must be importable, but no script is needed: exports and checkpoints hold the import
    path and the arguments. No pickle is read. For artifacts from elsewhere, only listed classes and code of
    the current project are used; anything else is refused unless you `trust` it. A `.keras` file that
    contains code (Lambda layers) or refers to code is refused unless `allow` names that code.
    """
    from manyfit.learn.kind import kinds
    from manyfit.learn.models import make_model
    from manyfit.run.evaluation.export import Contents, load_export, restore

    path = Path(place)
    for kind in kinds() if path.suffix else ():
        if path.suffix in kind.loaders:
            return kind.loaders[path.suffix](path, allow)
    if (path / "model.json").is_file() or is_checkpoint(path):
        return load_export(path, trust)
    folder = RunFolder(path)
    folder.load_trained()
    made = make_model(load_subject(folder.resolved, trust))
    return restore(made, Contents({}, None, folder.checkpoint("best").load()), path)
