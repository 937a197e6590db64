"""Exports that others open: free lengths, names of one's own, and files for servers."""

from __future__ import annotations

import json
import logging.handlers
import shutil
import subprocess
import sys
from queue import SimpleQueue

import numpy as np
import pytest
import torch

import manyfit
from manyfit.core.errors import ConfigError

SEQUENCES = """
import numpy as np
import torch
from torch import nn
from manyfit.data import ArraySource


class Sequences:
    batch_size = 8

    def source(self, split):
        state = np.random.RandomState(len(split))
        tokens = state.randint(0, 20, (24, 7))
        return ArraySource({"tokens": tokens, "scale": np.ones(24, "float32")}, tokens[:, 0] % 2)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens, scale):
        found, _ = self.cell(self.embed(tokens))
        return self.head(found.mean(1)) * scale[:, None]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, pictures):
        return self.layer(pictures)
"""


@pytest.fixture
def onnx(project):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    project.write("src/sequences.py", SEQUENCES)
    return pytest.importorskip("onnxruntime")


@pytest.mark.soak
def test_onnx_takes_sequences_of_any_length_by_the_names_of_the_model(project, onnx):
    tree = project.changed(data={"class": "sequences.Sequences"}, model={"class": "sequences.Tagger"})
    manyfit.train(tree | {"export": {"formats": ["onnx"]}}, folder="runs/b", callbacks=[])
    session = onnx.InferenceSession("runs/b/exported/model.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["tokens", "scale"]
    assert [each.name for each in session.get_outputs()] == ["output"]
    model = manyfit.load_model("runs/b").eval()
    for rows, length in ((1, 3), (5, 7), (2, 30)):
        tokens = np.random.RandomState(length).randint(0, 20, (rows, length))
        scale = np.full(rows, 0.5, "float32")
        (found,) = session.run(None, {"tokens": tokens, "scale": scale})
        with torch.no_grad():
            wanted = model(torch.from_numpy(tokens), torch.from_numpy(scale))
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-3, atol=1e-4)


def test_onnx_names_a_single_input_as_the_model_does(project, onnx):
    said = SimpleQueue()
    listener = logging.handlers.QueueHandler(said)
    logging.getLogger("torch.onnx").addHandler(listener)
    tree = project.changed(model={"class": "sequences.Plain"}) | {"export": {"formats": ["onnx"]}}
    manyfit.train(tree, folder="runs/b", callbacks=[])
    session = onnx.InferenceSession("runs/b/exported/model.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["pictures"]
    logging.getLogger("torch.onnx").removeHandler(listener)
    assert said.empty(), said.get().getMessage()


def test_an_estimator_is_a_file_that_others_open(project):
    skops = pytest.importorskip("skops.io")
    tree = project.changed(model={"class": "sklearn.linear_model.LogisticRegression", "max_iter": 50})
    tree["train"] = {"epochs": 1, "loss": None, "optimizer": None}
    manyfit.train(tree, folder="runs/b", callbacks=[])
    model = skops.load("runs/b/exported/model.skops")
    found = manyfit.predict("runs/b")
    rows = [int(id_.rpartition("-")[2]) for id_ in found["id"]]
    from points import Blobs

    assert model.predict(Blobs().source("test").inputs[rows]).tolist() == found["prediction"].tolist()


SCRIPT = """
import sys
import numpy as np
import manyfit
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, images):
        return self.layer(images)

if __name__ == "__main__":
    tree = {"data": "points.Blobs", "model": {"class": "__main__.Net"},
            "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": "adam"}}
    if sys.argv[1] == "train":
        manyfit.train(tree, folder="runs/b")
    else:
        study = {"base": tree, "space": {"model.hidden": [2, 3]}, "search": {"method": "grid"},
                 "objective": {"metric": "val_loss", "mode": "min"}, "execute": {"on": sys.argv[2]}}
        manyfit.sweep(study, folder="studies/b")
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "inline"],
        *(pytest.param(words, marks=pytest.mark.soak) for words in (["train"], ["sweep", "processes"])),
    ],
)
def test_classes_of_a_script_are_said_at_the_start(project, words):
    project.write("script.py", SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", *words], cwd=project.root, capture_output=True, text=True, check=False
    )
    assert "__main__.Net is defined in the script that is running" in done.stderr
    assert done.returncode == 0, done.stderr


def test_an_artifact_brings_no_code(project, tmp_path):
    manyfit.train("runs/a", callbacks=[])
    place = tmp_path / "elsewhere" / "exported"
    shutil.copytree(project.run / "exported", place)
    mark = tmp_path / "mark"
    for folder in (place, place / "src", place.parent):
        folder.mkdir(exist_ok=True)
    (place / "evil_module.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom torch import nn\nclass M(nn.Module): pass\n"
    )
    shutil.copy(place / "evil_module.py", place / "src")
    card = json.loads((place / "model.json").read_text())
    for source in (".", "src", str(place), "../exported", ""):
        card["model"] = {"component": {"class": "evil_module.M"}, "src_code_path": source}
        (place / "model.json").write_text(json.dumps(card))
        with pytest.raises(ConfigError):
            manyfit.load_model(place)
    assert not mark.exists()


def test_state_that_is_no_tensor_is_exported(project):
    project.write(
        "src/extra.py",
        """
        from models import MLP

        class Extra(MLP):
            seen = 0

            def get_extra_state(self):
                return {"seen": self.seen, "names": ["a", "b"]}

            def set_extra_state(self, state):
                self.seen = state["seen"]

            def forward(self, images):
                self.seen += self.training
                return super().forward(images)
        """,
    )
    result = manyfit.train(project.changed(model={"class": "extra.Extra"}), folder="runs/b", callbacks=[])
    assert result.load_model().seen == manyfit.load_model("runs/b/exported").seen == result.best_step
