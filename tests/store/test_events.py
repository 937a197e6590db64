"""The event log of a run."""

import pytest

import manyfit
from manyfit.core.errors import FolderError


def test_a_log_that_was_deleted_or_replaced(project):
    manyfit.train("runs/a", callbacks=[])
    size = (project.run / "metrics.jsonl").stat().st_size
    (project.run / "metrics.jsonl").write_bytes(b"[" * size)
    with pytest.raises(FolderError, match="damaged"):
        manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])
