"""Training of a config with logging and progress, as the benchmarks time it."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manyfit.data.randomness import own_randomness
from manyfit.run.build.builder import build
from manyfit.run.callbacks.progress import PlainProgress
from manyfit.run.loop.cohort import Cohort, Member
from manyfit.run.loop.trainer import fit
from manyfit.store.events import EventLog
from manyfit.store.folder import RunFolder


def fit_config(config: Any) -> Iterator[None]:
    """Build a run, and train it between the two `yield`s."""
    built = build(config)
    with tempfile.TemporaryDirectory() as folder, own_randomness():
        run = RunFolder(Path(folder) / "run")
        with EventLog(run.metrics) as events:
            member = Member(config, run, events)
            cohort = Cohort([member], built.learner, built.plan, built.train.batches(built.order))
            yield
            fit(cohort, [PlainProgress(io.StringIO())])
            yield
