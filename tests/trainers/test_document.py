"""The guide of models and trainers: its code trains, resumes and is loaded in another process."""

import os
import re
from pathlib import Path

import pytest
from tests.examples.quick import run
from tests.run.cut import same

import manyfit

GUIDES = Path(os.environ.get("MANYFIT_GUIDES", Path(__file__).parents[3] / "shared" / "seeds"))
FOUND = sorted(GUIDES.glob("002_*.txt"))
pytestmark = pytest.mark.skipif(not FOUND, reason=f"the guide does not lie in {GUIDES}")

IMPORTS = {
    "from lernomatic.model import common": "from manyfit.trainers import common",
    "from lernomatic.train import trainer": "from manyfit.trainers import trainer",
}
SUPPLIED = {
    "net": "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n",
    "flat": "\n    def num_flat_features(self, x):\n        return x[0].numel()\n",
}
DATA = '''
import numpy as np
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class Digits(Dataset):
    """Digits of the size that the network takes: 32 x 32."""

    def __init__(self, part: str = "train"):
        self.part = part
        images, labels = load_digits(return_X_y=True)
        rows = {"train": slice(0, 160), "val": slice(160, 200), "test": slice(200, 240)}[part]
        self.images = np.kron(images[rows].reshape(-1, 1, 8, 8), np.ones((1, 1, 4, 4))).astype(np.float32) / 16
        self.labels = labels[rows]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return self.images[row], int(self.labels[row])
'''
SCRIPT = """
import sys
from guide_digits import Digits
from new_network import LernomaticModelNet
from new_trainer import NewTrainer

made = NewTrainer(
    LernomaticModelNet(), train_dataset=Digits("train"), val_dataset=Digits("val"), test_dataset=Digits("test"),
    num_epochs=int(sys.argv[2]), batch_size=32, learning_rate=0.05, momentum=0.9, loss_function="CrossEntropyLoss",
    optim_function="SGD", checkpoint_dir=sys.argv[1], seed=3, verbose=False,
)
made.train()
print(len(made.history), made.history[-1]["val_loss"])
"""


def blocks():
    """The code of the guide with its import lines changed, and what it leaves undefined supplied."""
    net, model, new = re.findall(r"```\n(.*?)```", FOUND[0].read_text(), flags=re.DOTALL)
    for old, value in IMPORTS.items():
        model, new = model.replace(old, value), new.replace(old, value)
    lines = "\n".join(
        line.removeprefix(" ") if line.startswith(" #") else line for line in model.splitlines()
    )
    return SUPPLIED["net"] + net.rstrip() + "\n" + SUPPLIED["flat"] + "\n\n" + lines, new


@pytest.fixture
def guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, new = blocks()
    for name, text in (
        ("new_network", network),
        ("new_trainer", new),
        ("guide_digits", DATA),
        ("go", SCRIPT),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


BOTH = """
import runpy, sys, torch

for folder, epochs in (("runs/parts", "2"), ("runs/whole", "3")):
    torch.manual_seed(0)
    sys.argv = ["go.py", folder, epochs]
    runpy.run_path("go.py")
"""


def test_the_guide_trains_resumes_and_is_loaded_in_another_process(guide, cli):
    """In Python for two epochs, and here, on the command line, for a third: as three at once."""
    (guide / "both.py").write_text(BOTH)
    done = run("python both.py", guide)
    assert done.returncode == 0, done.stderr
    count, loss = done.stdout.split()[-2:]
    assert (count, float(loss) < 2.4) == ("3", True)
    answer = cli("train", "runs/parts", "train.epochs=3")
    assert answer.code == 0, answer.err
    assert same(type("Here", (), {"root": guide}), "parts", "whole") == ""
    assert type(manyfit.load_model("runs/parts")).__name__ == "LernomaticModelNet"


def test_its_trainer_works_in_a_config(guide):
    (guide / "src").mkdir()
    for name in ("new_network", "new_trainer", "guide_digits"):
        (guide / f"{name}.py").rename(guide / "src" / f"{name}.py")
    splits = {
        split: {"class": "guide_digits.Digits", "part": part}
        for split, part in (("train", "train"), ("validation", "val"))
    }
    tree = {
        "data": {"class": "manyfit.data.Splits", "batch_size": 32, **splits},
        "model": {"class": "new_network.LernomaticModelNet"},
        "trainer": {"class": "new_trainer.NewTrainer"},
        "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": {"class": "sgd", "lr": 0.05}},
    }
    result = manyfit.train(tree, folder="runs/a", callbacks=[])
    assert result.step == 5
