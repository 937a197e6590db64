"""Callbacks that mirror committed metrics to trackers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from manyfit.config import Config
from manyfit.core.errors import ExtraMissing
from manyfit.run.callbacks.tracking import AUTO, MlflowCallback, is_missing
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.store.folder import RunFolder
from manyfit.store.tensorboard import TensorBoardMirror

log = logging.getLogger("manyfit")


def mirrors(config: Config, run: RunFolder) -> list[TensorBoardCallback | MlflowCallback]:
    """Return the mirrors of a config."""
    track = config.run.track
    found: list[TensorBoardCallback | MlflowCallback] = []
    if track.tensorboard:
        found.append(TensorBoardCallback())
    if track.mlflow is not None and not (track.mlflow == AUTO and is_missing("mlflow")):
        if is_missing("mlflow"):
            raise ExtraMissing("mlflow", "mlflow")
        found.append(MlflowCallback(config, run))
    return found


@contextmanager
def finish_trackers(
    trackers: Sequence[TensorBoardCallback | MlflowCallback], run: RunFolder
) -> Iterator[None]:
    """Finish the trackers on exit; if the run was evaluated, with its summary."""
    evaluated = False
    try:
        yield
        evaluated = True
    finally:
        for tracker in trackers:
            if isinstance(tracker, MlflowCallback):
                tracker.finish(run.summary() if evaluated else None)


class TensorBoardCallback:
    """Callback that mirrors the log of every run to TensorBoard files."""

    def __init__(self) -> None:
        self._mirrors: list[TensorBoardMirror] = []
        self._written: list[int] = []

    def on_start(self, cohort: Cohort) -> None:
        """Rewrite the files from the committed log."""
        self._mirrors = [
            TensorBoardMirror(member.folder.tensorboard, member.committed) for member in cohort.members
        ]
        self._written = [len(member.committed) for member in cohort.members]

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Write what was committed since the last call."""
        for i, (member, mirror) in enumerate(zip(cohort.members, self._mirrors, strict=True)):
            mirror.write_samples(member.folder.images, member.folder.texts)
            mirror.write(member.committed[self._written[i] :])
            self._written[i] = len(member.committed)

    def on_end(self, cohort: Cohort) -> None:
        """Write the remaining committed metrics, and close the files."""
        for i, (member, mirror) in enumerate(zip(cohort.members, self._mirrors, strict=True)):
            mirror.write_samples(member.folder.images, member.folder.texts)
            mirror.write(member.committed[self._written[i] :])
            mirror.close()
