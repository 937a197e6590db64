"""Feeders and variants on a GPU: the same as on the CPU, where that can be, and resumed exactly."""

from __future__ import annotations

import pytest
import torch

import manyfit
from manyfit.data.tfrecord.writer import write_records
from manyfit.run.resume_proof import Kill, difference, kill_and_resume
from manyfit.store.folder import RunFolder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]

MODEL = """
from torch import nn


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 8)
        self.body = nn.Linear(3, 8)
        self.head = nn.Linear(8, 7)

    def forward(self, x, words):
        found = self.words(words)
        found = found.to_padded_tensor(0.0) if found.is_nested else found
        return self.head(self.body(x) + found.sum(dim=1))
"""


def config(ragged: bool, device: str, **more: object) -> dict[str, object]:
    words = {"type": "VarLenFeature", "dtype": "int64", **({"ragged": True} if ragged else {"length": 4})}
    feeder = {
        "type": "TFRecordExamplesFeeder",
        "auto_generate_meta": True,
        "num_parallel_reads": 2,
        "features_map": {"x": {"type": "FixedLenFeature", "shape": [3]}, "words": words},
        "labels_map": {"label": {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}},
        **more,
    }
    return {
        "data": {
            "class": "manyfit.feeders.Feeders",
            "batch_size": 16,
            "train": {**feeder, "file_patterns": "data/train-*"},
            "validation": {**feeder, "file_patterns": "data/validation-*"},
        },
        "model": {"class": "mixed.Mixed"},
        "train": {
            "epochs": 3,
            "loss": "cross_entropy",
            "optimizer": {"class": "adam", "lr": 0.01},
            "device": device,
        },
    }


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mixed.py").write_text(MODEL)
    for name in ("train-0", "train-1", "validation-0"):
        rows = [
            {"x": [i / 9, 1.0, -1.0], "words": [j % 8 for j in range(i % 4 + 1)], "label": i % 7}
            for i in range(90)
        ]
        write_records(tmp_path / "data" / name, rows)
    return tmp_path


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_a_feeder_feeds_a_model(project, ragged, device):
    there = manyfit.train(config(ragged, device), folder="runs/there")
    here = manyfit.train(config(ragged, "cpu"), folder="runs/here")
    assert there.metrics["val_loss"] == pytest.approx(here.metrics["val_loss"], rel=1e-3)


@needs_gpu
def test_killed_and_resumed_on_a_gpu(project):
    from manyfit.config.tree.reader import dump

    (project / "runs" / "a").mkdir(parents=True)
    (project / "runs" / "a" / "config.yaml").write_text(
        dump(config(False, "cuda", cache=str(project / "cache")))
    )
    given = ["train.every.checkpoint=5ba"]
    whole, cut = project / "runs" / "whole", project / "runs" / "cut"
    assert kill_and_resume(project / "runs" / "a", given, whole, []) == 0
    assert kill_and_resume(project / "runs" / "a", given, cut, [Kill("step", 17)]) == 1
    assert difference(RunFolder(whole), RunFolder(cut)) == ""


@needs_gpu
def test_the_toy_variant_on_a_gpu(project):
    found = manyfit.train("toy", ["train.device=cuda"], folder="runs/toy")
    assert found.metrics["val_accuracy"] == 1.0
    program = torch.export.load(project / "runs" / "toy" / "exported" / "model.pt2")
    assert program.module()(torch.arange(5).reshape(-1, 1)).argmax(1).tolist() == [0, 1, 2, 3, 4]
