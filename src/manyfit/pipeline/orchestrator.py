"""`manyfit train` from Python, under the class names of the five components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional

if TYPE_CHECKING:
    from manyfit.run.evaluation.row_report import Report
    from manyfit.run.result import RunResult


class Orchestrator:
    """Training, export and evaluation of the run in a folder that holds a config.

    >>> Orchestrator("runs/baseline", data_dir="datasets/mnist").run()    # doctest: +SKIP
    """

    def __init__(
        self, run_dir: str | Path, data_dir: str | Path | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.run_dir = Path(run_dir)
        self.overrides = [*overrides]
        if data_dir is not None:
            self.overrides.append(f"data_dir={Path(data_dir).resolve()}")

    def run(self) -> RunResult:
        """Train the run to its end, from its last checkpoint; export the best weights, and evaluate them.

        A finished run is not trained again.
        """
        from manyfit.run.train import train

        return train(self.run_dir, self.overrides)

    def evaluate(self, split: str = "test") -> Report:
        """Evaluate the exported weights again, data point by data point."""
        from manyfit.run import reuse

        places = [override for override in self.overrides if override.startswith("data_dir=")]
        return reuse.evaluate(self.run_dir, split, overrides=places)


class TFKerasTrainer:
    """Training of the Keras model of a run.

    >>> trainer = TFKerasTrainer("runs/baseline", data_dir="datasets/mnist")    # doctest: +SKIP
    >>> trainer.train()    # doctest: +SKIP
    """

    def __init__(self, run_dir: str | Path, data_dir: str | Path | None = None) -> None:
        import_optional("keras", "keras")
        self._orchestrator = Orchestrator(run_dir, data_dir)

    def train(self) -> RunResult:
        """Train the run to its end, from its last checkpoint."""
        return self._orchestrator.run()

    def export(self) -> Path:
        """Return the folder of the exported model: SavedModel, `.keras` and safetensors."""
        folder = self._orchestrator.run_dir / "exported"
        if not folder.is_dir():
            raise UsageError(f"{self._orchestrator.run_dir} has not been trained yet")
        return folder

    def load(self) -> Any:
        """Load the model with the best weights."""
        from manyfit.run.result import load_model

        return load_model(self._orchestrator.run_dir)
