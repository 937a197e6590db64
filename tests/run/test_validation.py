"""Validation: means over every row, in batches of their own size."""

import pytest

import manyfit
from manyfit.learn.metrics_by_run import fetch_all, split_by_run
from manyfit.store.folder import RunFolder

COUPLED = """
import torch
from torch import nn


class Coupled(nn.Module):
    '''A loss that compares the rows of a batch.'''

    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target) * output.shape[0] ** 0.5
"""


def train(project, name, **changes):
    folder = project.config(project.changed(**changes), run=name).parent
    manyfit.train(folder, callbacks=[])
    return RunFolder(folder)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_size_of_its_batches_does_not_change_what_is_measured(project, size):
    usual, other = (
        train(project, name, **({"evaluate": {"batch_size": size}} if name == "b" else {})) for name in "ab"
    )
    for left, right in zip(usual.events(), other.events(), strict=True):
        assert left.values == pytest.approx(right.values, rel=1e-5)
    reports = [(run.path / "reports/test.csv").read_text().splitlines() for run in (usual, other)]
    assert len(reports[0]) == len(reports[1]) == 65


def test_a_loss_that_couples_rows_sees_batches_of_that_size(project):
    project.write("src/coupled.py", COUPLED)
    small, large = (
        train(project, f"r{size}", train__loss="coupled.Coupled", evaluate={"batch_size": size})
        for size in (8, 64)
    )
    ratio = large.events()[0].values["val_loss"] / small.events()[0].values["val_loss"]
    assert ratio == pytest.approx(8**0.5, rel=0.2)
    assert large.events()[0].values["train_loss"] == small.events()[0].values["train_loss"]


def test_a_source_that_decides_itself_is_named(project, caplog):
    project.write(
        "src/own.py",
        """
        from dataclasses import replace
        from points import Blobs


        class Fixed:
            '''Gives batches of ten rows, whatever is asked for.'''

            def __init__(self, source):
                self.source = source
                self.ids, self.fingerprint = source.ids, source.fingerprint

            def __len__(self):
                return len(self.source)

            def batches(self, order, start=0):
                return self.source.batches(replace(order, batch_size=10), start)


        class Own(Blobs):
            def source(self, split):
                found = super().source(split)
                return found if split == "train" else Fixed(found)
        """,
    )
    train(project, "a", data={"class": "own.Own", "batch_size": 16}, evaluate={"batch_size": 32})
    assert "evaluate.batch_size has no effect: own.Own sets its own batch size" in caplog.text


def test_another_size_is_another_run(project):
    folder = project.config(project.changed()).parent
    manyfit.train(folder, callbacks=[])
    with pytest.raises(manyfit.ManyfitError, match=r"evaluate\.batch_size"):
        manyfit.train(folder, ["evaluate.batch_size=8", "train.epochs=3"], callbacks=[])


def test_metrics_come_from_the_device_together():
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    metrics = {
        "loss": torch.tensor([1.5, 2.5], device=device),
        "accuracy": torch.tensor([0.5, 0.25], device=device),
        "count": torch.tensor([3, 4], device=device),
    }
    assert {name: values.tolist() for name, values in fetch_all(metrics).items()} == {
        "loss": [1.5, 2.5],
        "accuracy": [0.5, 0.25],
        "count": [3.0, 4.0],
    }
    assert split_by_run(metrics, 2)[1] == {"loss": 2.5, "accuracy": 0.25, "count": 4.0}
