"""Images and texts: those that the model logs, and those of a report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.data import Batch
from manyfit.learn.step_log import StepLog
from manyfit.report.image_grid import read_images, read_pair, stretch, write_image_grid
from manyfit.run.evaluation.first_rows import FirstRows
from manyfit.store.folder import RunFolder

MODEL = """
import manyfit
from torch import nn


class Talks(nn.Module):
    def __init__(self, name: str = "seen"):
        super().__init__()
        self.layer, self.name = nn.Linear(64, 10), name

    def forward(self, x):
        out = self.layer(x)
        manyfit.log(self.name, x.view(-1, 1, 8, 8).sigmoid())
        manyfit.log("words", [f"row {i}: {value:.3f}" for i, value in enumerate(out[:2, 0].tolist())])
        return out
"""


@pytest.fixture
def talking(project):
    project.write("src/talks.py", MODEL)
    return {**project.changed(), "model": {"class": "talks.Talks"}}


def samples(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for name in ("images", "texts")
        for file in sorted((folder / name).rglob("step-*"))
    }


def test_images_and_texts_are_in_the_run_and_in_tensorboard(project, talking):
    result = manyfit.train(talking, folder="runs/b", callbacks=None)
    run = RunFolder(result.folder)
    found = samples(run.path)
    step = f"step-{result.step:06d}"
    assert {f"images/{n}/{step}.png" for n in ("seen", "val_seen")} <= set(found)
    assert found[f"texts/val_words/{step}.txt"].decode().startswith("row 0: ")
    board = EventAccumulator(str(run.tensorboard), size_guidance={"images": 0, "tensors": 0}).Reload()
    assert {"seen", "val_seen"} <= set(board.Tags()["images"])
    shown = board.Images("seen")
    assert [f"images/seen/step-{image.step:06d}.png" in found for image in shown] == [True] * len(shown) != []
    (first, *_) = board.Tensors("words")
    text = first.tensor_proto.string_val[0].decode()
    assert text == "\n".join(
        f"    {line}" for line in found[f"texts/words/step-{first.step:06d}.txt"].decode().splitlines()
    )
    with Image.open(run.images / "seen" / f"{step}.png") as image:
        assert image.size == (4 * 8 + 5, 4 * 8 + 5)  # 16 images


def test_a_resumed_run_has_the_same_samples(project, talking):
    resumes(project, talking, 6)
    whole, parts = (samples(project.root / "runs" / name) for name in ("whole", "parts"))
    assert whole and all(parts[name] == data for name, data in whole.items())


def test_what_cannot_be_shown_is_explained(project, talking):
    log = StepLog()
    log.rows = 2
    with pytest.raises(UsageError, match="images must have shape"):
        log.add("maps", np.zeros((2, 5, 8, 8)))
    for name in ("a/b", "val_a", "a" * 101):
        with pytest.raises(UsageError, match="are named by up to 100 letters"):
            log.add(name, "text")
    with pytest.raises(UsageError, match="real numbers"):
        log.add("a", np.zeros((2, 1, 8, 8), dtype=complex))
    log.add("a", np.zeros((1, 1, 1, 1)))
    assert log.take() and not log.samples
    log.add("a", np.zeros((200, 8, 8)))
    log.add("b", torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8))
    grids = log.take_samples()
    assert grids["a"].shape[:2] == (37, 37)
    assert grids["b"][1:-1, 1:-1, 0].ravel().tolist() == list(range(64))
    talking["model"]["name"] = "a b"
    with pytest.raises(ManyfitError, match="a name consists of"):
        manyfit.train(talking, folder="runs/c", callbacks=[])


def test_images_of_a_report_are_side_by_side(tmp_path):
    dice = np.random.RandomState(0)
    inputs = dice.rand(12, 3, 16, 16).astype(np.float32)
    scores, classes = dice.randn(12, 5, 16, 16), dice.randint(0, 5, (12, 16, 16))

    def write(output, target, name):
        batches = iter([Batch(inputs, None, np.arange(12))])
        return write_image_grid(batches, FirstRows(output, target, np.arange(8)), tmp_path / name)

    assert write(scores, classes, "classes.png")
    with Image.open(tmp_path / "classes.png") as image:
        assert image.size == (3 * 64 + 4, 8 * 64 + 9)
        pixels = np.asarray(image)
    part = scores[0].argmax(0)
    shown = pixels[1:65:4, 131:195:4, 0] / 255 * 4
    assert np.abs(shown - part).max() < 0.02
    assert write({"mask": dice.rand(12, 1, 8, 8), "kind": dice.randn(12, 4)}, None, "dict.png")
    assert not write(dice.randn(12, 10), np.arange(12), "none.png")
    assert not (tmp_path / "none.png").exists()
    assert stretch(read_images(np.full((2, 1, 8, 8), 300.0))).max() <= 1


def test_targets_and_outputs_have_one_scale():
    target = np.zeros((2, 8, 8), dtype=np.int64)
    target[:, 4:], target[:, 0] = 1, -100
    scores = np.eye(3)[np.maximum(target, 0)].transpose(0, 3, 1, 2)
    for output, known in (
        (scores, target),
        (scores.transpose(0, 2, 3, 1), target[..., None]),
        (scores, target[:, None]),
    ):
        pair = read_pair(output, known)
        assert set(pair) == {"target", "output"}
        assert np.array_equal(pair["output"][:, 0], np.maximum(target, 0) / 2)
        assert pair["target"].shape[0] == 2 and pair["target"].max() == 0.5 and pair["target"].min() == 0
    mask = (target > 0).astype(np.float32)[:, None]
    pair = read_pair(mask * 12 - 6, mask)
    assert pair["output"].max() == pytest.approx(0.9975, abs=1e-3) and pair["output"].min() < 0.01
    pair = read_pair(mask * 10, mask * 20)  # numbers, such as heights
    assert (pair["target"].max(), pair["output"].max()) == (1, 0.5)
    assert read_pair(np.zeros((2, 9, 9, 3)), None)["output"].shape == (2, 3, 9, 9)


def test_a_run_draws_them(project):
    project.write(
        "src/decoder.py",
        "from torch import nn\n\n\nclass Decoder(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(nn.Linear(64, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))\n\n"
        "    def forward(self, x):\n        found = super().forward(x)\n"
        "        return found, (found.flatten(1) - x).square().mean(1)\n",
    )
    tree = {**project.changed(train__loss=None, train__metrics=[]), "model": {"class": "decoder.Decoder"}}
    run = RunFolder(
        manyfit.train({**tree, "evaluate": {"figures": True}}, folder="runs/d", callbacks=[]).folder
    )
    assert (run.reports / "test.images.png").exists()
