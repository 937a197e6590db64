"""A project with a minibatch spec."""

import copy

import pytest

from manyfit.config.tree.reader import dump

SPEC = """
from pathlib import Path

from manyfit.spec import MinibatchSpec

CALLS = Path(__file__).with_name("calls.txt")


class Digits(MinibatchSpec):
    def initialize_worker(self):
        import os, random

        random.random()
        with CALLS.open("a") as file:
            file.write(f"initialize {os.getpid()}\\n")

    def read_misc(self, misc_path):
        self.scale = float(open(misc_path + "scale.txt").read()) if misc_path else 1.0

    def create_model_components(self, hyperparams):
        import torch
        from torch import nn

        model = nn.Sequential(
            nn.Linear(64, hyperparams["hidden"]), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hyperparams["hidden"], 10)
        )
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=hyperparams["lr"])}

    def loss(self, outputs, y):
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y)

    def train(self, model_object, minibatch, hyperparams, device):
        model, optimizer = model_object["model"], model_object["optimizer"]
        model.train()
        x, y = minibatch
        optimizer.zero_grad()
        outputs = model(x * self.scale)
        loss = self.loss(outputs, y)
        loss.backward()
        optimizer.step()
        return model_object, {"loss": loss, "correct": (outputs.argmax(1) == y).float().sum(), "rows": len(y)}

    def valtest(self, model_object, minibatch, hyperparams, device):
        import torch

        model = model_object["model"]
        model.eval()
        x, y = minibatch
        with torch.no_grad():
            outputs = model(x * self.scale)
        return {"loss": self.loss(outputs, y), "correct": (outputs.argmax(1) == y).sum(), "rows": len(y)}

    def predict(self, model_object, minibatch, hyperparams, device):
        x, _ = minibatch
        chances = model_object["model"](x * self.scale).softmax(1)
        return chances.argmax(1), chances.max(1).values

    def metrics_agg(self, mode, hyperparams, metrics):
        assert mode in ("train", "val", "test", "predict")
        return {
            "loss": sum(map(float, metrics["loss"])) / len(metrics["loss"]),
            "accuracy": sum(map(float, metrics["correct"])) / sum(metrics["rows"]),
        }
"""
CONFIG = {
    "seed": 3,
    "data": {"class": "points.Blobs", "batch_size": "${trainer.hyperparams.batch_size}", "rows": 70},
    "trainer": {
        "class": "manyfit.spec.SpecTrainer",
        "spec": {"class": "specs.Digits"},
        "hyperparams": {"lr": 0.01, "hidden": 8, "batch_size": 16},
    },
    "train": {"epochs": 3},
    "export": {"metric": "val_accuracy", "mode": "max"},
}


class SpecProject:
    """A project whose runs train a spec."""

    def __init__(self, project):
        self.project = project
        self.root = project.root
        self.folder = project.root / "studies" / "s"
        project.write("src/specs.py", SPEC)

    def config(self, run="a", **data):
        tree = copy.deepcopy(CONFIG)
        tree["data"] |= data
        self.project.config(tree, run)
        return self.root / "runs" / run

    def study(self, space=None, **execute):
        tree = {
            "base": "../../runs/a/config.yaml",
            "objective": {"metric": "val_accuracy", "mode": "max"},
            "search": {"method": "grid"},
            "space": space or {"trainer.hyperparams.lr": [0.001, 0.01, 0.03]},
            "execute": execute,
        }
        self.project.write("studies/s/study.yaml", dump(tree))
        return self.folder

    @property
    def calls(self):
        return (self.root / "src" / "calls.txt").read_text().split("\n")[:-1]


@pytest.fixture
def specs(project):
    return SpecProject(project)
