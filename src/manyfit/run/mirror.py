"""Callbacks that keep trackers in step with what has been committed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from manyfit.config import Config
from manyfit.run.cohort import Cohort
from manyfit.run.plan import Boundary
from manyfit.store.tensorboard import TensorBoardMirror

log = logging.getLogger("manyfit")


def mirrors(config: Config) -> list[TensorBoardCallback]:
    """The mirrors that a config asks for."""
    return [TensorBoardCallback()] if config.run.track.tensorboard else []


class TensorBoardCallback:
    """Mirrors the log of every run into TensorBoard files."""

    def __init__(self) -> None:
        self._mirrors: list[TensorBoardMirror] = []
        self._written: list[int] = []

    def on_start(self, cohort: Cohort) -> None:
        """Write the files anew from the committed log."""
        self._mirrors = [
            TensorBoardMirror(member.folder.tensorboard, member.committed) for member in cohort.members
        ]
        self._written = [len(member.committed) for member in cohort.members]

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Mapping[str, float]]) -> None:
        """Write what has been committed since."""
        for i, (member, mirror) in enumerate(zip(cohort.members, self._mirrors, strict=True)):
            mirror.write(member.committed[self._written[i] :])
            self._written[i] = len(member.committed)

    def on_end(self, cohort: Cohort) -> None:
        """Write what was committed last, and close the files."""
        for i, (member, mirror) in enumerate(zip(cohort.members, self._mirrors, strict=True)):
            mirror.write(member.committed[self._written[i] :])
            mirror.close()
