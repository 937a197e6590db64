"""Signals to a run, sent to its process or its process group."""

import os
import signal
import subprocess
import sys

import pytest

from manyfit.store.folder import RunFolder


def test_a_group_of_processes_is_asked_to_stop(project):
    project.write(
        "src/rows.py",
        """
        import time
        import numpy as np

        class Rows:
            def __init__(self, rows: int = 64) -> None:
                self.rows = rows

            def __len__(self):
                return self.rows

            def __getitem__(self, row):
                time.sleep(0.002)
                return np.full(64, row % 10, np.float32), row % 10
        """,
    )
    tree = project.changed(data={"class": "manyfit.data.Splits", "workers": 2, "batch_size": 8, "train": {"class": "rows.Rows"},
                                 "validation": {"class": "rows.Rows"}}, train__epochs=2000)  # fmt: skip
    project.config(tree, run="group")
    process = subprocess.Popen(
        [sys.executable, "-m", "manyfit", "train", "runs/group"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("epoch 2"):
            break
    os.killpg(process.pid, signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait() == 143, rest
    assert RunFolder(project.root / "runs/group").checkpoints()


@pytest.mark.soak
def test_a_second_interrupt_ends_at_once(project):
    project.write(
        "src/slow.py",
        """
        import time
        from models import MLP

        class Slow(MLP):
            def forward(self, images):
                time.sleep(5.0 * self.training)
                return super().forward(images)
        """,
    )
    project.config(project.changed(model={"class": "slow.Slow"}), run="slow")
    words = [sys.executable, "-m", "manyfit", "train", "runs/slow"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("training"):
            break
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(3) == -signal.SIGINT
    process.stderr.close()
