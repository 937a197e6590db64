"""Signals are obeyed while data is read, and a stream says how long it is."""

from __future__ import annotations

import signal
import time

import pytest
import torch
from tests.examples import quick

import manyfit
from manyfit.core.errors import UsageError
from manyfit.data import IterableSource
from manyfit.data import stream as datasets
from manyfit.run.resume_proof import difference
from manyfit.store.folder import RunFolder

STREAMS = """
import time
import numpy as np
from pathlib import Path
from points import Blobs
from manyfit.data import ArraySource, IterableSource

HERE = Path(__file__).parent.parent


def endless():
    state = np.random.RandomState(0)
    while True:
        row = state.normal(size=64).astype("float32")
        yield row, int(abs(row[0]) * 3) % 10


class Endless(Blobs):
    def source(self, split):
        return IterableSource(endless) if split == "train" else super().source(split)


class Slow(Blobs):
    \"\"\"Waits for ever at some place, if a file says so.\"\"\"

    def __init__(self, where: str = "train", after: int = 6) -> None:
        super().__init__(batch_size=8)
        self.where, self.after = where, after

    def source(self, split):
        found = super().source(split)
        if split != self.where:
            return found
        return IterableSource(lambda: self.walked(found), count=len(found))

    def walked(self, found):
        for i, (x, y) in enumerate(zip(found.inputs, found.target.tolist())):
            is_training = (HERE / "runs/a/config.resolved.yaml").exists()
            early = self.where != "train" or not self.after
            if i == self.after * 8 and (HERE / "wait").exists() and (early or is_training):
                (HERE / "waiting").touch()
                try:
                    time.sleep(600)
                except Exception:
                    raise AssertionError("caught") from None
            yield x, y


class SlowToBuild(Blobs):
    def source(self, split):
        if (HERE / "wait").exists():
            (HERE / "waiting").touch()
            time.sleep(600)
        return super().source(split)
"""


@pytest.fixture
def streams(project):
    project.write("src/streams_.py", STREAMS)
    return project


def interrupted(project, number):
    """Train in a process of its own, and send it a signal as soon as it waits for data."""
    (project.root / "wait").touch()
    process = quick.start(["train", "runs/a"], project.root)
    ends = time.monotonic() + 120
    while not (project.root / "waiting").exists() and time.monotonic() < ends:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    time.sleep(0.1)
    began = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=60)
    took, said = time.monotonic() - began, process.stderr.read()
    (project.root / "wait").unlink()
    assert took < 15
    assert "Traceback" not in said
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_a_signal_while_a_batch_is_read_costs_no_step(streams, number):
    tree = streams.changed(data={"class": "streams_.Slow", "after": 6})
    streams.config(tree)
    code, said = interrupted(streams, number)
    assert code == 128 + number
    assert f"ended by {number.name} at step 6" in said
    assert RunFolder(streams.run).checkpoints()[-1].step == 6
    manyfit.train("runs/a", callbacks=[])
    manyfit.train(tree, folder="runs/whole", callbacks=[])
    for name in ("a", "whole"):
        (streams.root / f"runs/{name}.trace").write_text("[0, []]\n")
    assert difference(RunFolder(streams.root / "runs/a"), RunFolder(streams.root / "runs/whole")) == ""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(
            {"class": "streams_.Slow", "after": 0}, "before anything was trained", marks=pytest.mark.soak
        ),
        ({"class": "streams_.SlowToBuild"}, "before anything was trained, while reading data"),
        pytest.param(
            {"class": "streams_.Slow", "where": "validation", "after": 1},
            "before anything was trained",
            marks=pytest.mark.soak,
        ),
        ({"class": "streams_.Slow", "where": "test", "after": 1}, "ended by SIGTERM before anything was"),
    ],
    ids=["first batch", "build", "validation", "test"],
)
def test_a_signal_while_anything_is_read_is_obeyed(streams, data, words):
    streams.config(streams.changed(data=data))
    code, said = interrupted(streams, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, said
    assert words in said
    assert manyfit.train("runs/a", callbacks=[]).step


def test_an_endless_stream_needs_a_length(streams, monkeypatch):
    monkeypatch.setattr(datasets, "PATIENCE", 0.3)
    tree = streams.changed(data={"class": "streams_.Endless"})
    with pytest.raises(UsageError, match=r"has not ended after [\d,]+ rows: .*train\.steps"):
        manyfit.train(tree, folder="runs/b")
    result = manyfit.train(tree, ["train.steps=5"], folder="runs/c", callbacks=[])
    assert result.step == 10
    with pytest.raises(UsageError, match=r"train\.steps: the data has a length"):
        manyfit.train(streams.changed(), ["train.steps=5"], folder="runs/d")


def test_an_iterable_is_counted_only_when_somebody_asks(caplog):
    def rows():
        yield from torch.arange(7.0)

    source = IterableSource(rows)
    assert source.is_stream
    assert "count its rows" not in caplog.text
    assert len(source) == 7
    assert not source.is_stream
