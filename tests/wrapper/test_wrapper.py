"""Model wrappers and typed experiments, in Python and in a config; and the guide that describes them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.run.cut import same

import manyfit
from manyfit.core.errors import ConfigError, UsageError
from manyfit.wrapper import ModelConfig, RunConfig, TrainConfig

GUIDES = Path(os.environ.get("MANYFIT_GUIDES", Path(__file__).parents[3] / "shared" / "seeds"))
FOUND = sorted(GUIDES.glob("003_*.txt"))

HEAD = '''
from typing import Annotated, Any, Tuple
import torch
from torch import nn
from torch.nn import functional as F
from manyfit.wrapper import Derived, ModelConfig, ModelWrapper, RunConfig, Stateless, TrainConfig


class Images(torch.utils.data.Dataset):
    """Made-up images; the brighter half is class 1."""

    def __init__(self, root="data", train=True, transform=None, target_transform=None, download=True):
        drawn = torch.Generator().manual_seed(int(train))
        self.images = torch.rand(48 if train else 24, 3, 8, 8, generator=drawn)
        self.labels = (torch.arange(len(self.images)) % 2).long()
        self.images = self.images - 0.5 + 0.3 * self.labels[:, None, None, None]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Width(ModelConfig):
    hidden: int = 8
    doubled: Annotated[int, Derived(lambda config: 2 * config.hidden)] = 0


class Training(TrainConfig):
    train_hparam: float = 0.5


class Labeled(Images):
    def __getitem__(self, index):
        return {"x": self.images[index], "labels": self.labels[index]}


def load(config, flag="train"):
    data = Labeled(root=config["save_dir"], train=flag == "train")
    return torch.utils.data.DataLoader(data, batch_size=config["train"]["batch_size"], shuffle=True)


class Classifier(nn.Module):
    def __init__(self, config: Width) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, config.doubled), nn.ReLU(), nn.Linear(config["doubled"], 2))

    def forward(self, x, labels=None):
        scores = self.layers(x)
        return {"scores": scores}, None if labels is None else F.cross_entropy(scores, labels, reduction="none")


class Wrapper(ModelWrapper):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def make_dataloader_train(self, config):
        return load(config, "train")

    def make_dataloader_val(self, config):
        return load(config, "val")

    def evaluation_functions(self):
        return {"accuracy": lambda scores, labels: (scores.argmax(1) == labels).mean()}


class Custom(Wrapper):
    def create_model(self, config):
        return Classifier(config.model)

    def create_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def create_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def train_step(self, batch):
        outputs, losses = self.model(**batch)
        self.backward(losses.mean())
        self.step()
        return outputs, {"loss": losses.mean(), "worst": losses.max()}

    def custom_evaluation(self, model, dataloader):
        hits = [(model(x=batch["x"])[0]["scores"].argmax(1) == batch["labels"]).float() for batch in dataloader]
        return {"loss": 1 - float(torch.cat(hits).mean())}


class PrintsConfig(Wrapper):
    def create_scheduler(self, optimizer):
        train, model, seed = self.config.train, self.config.model, self.config.random_seed
        print(
            f"epochs {train.epochs}, rate {train.learning_rate}, hidden {model.hidden}, "
            f"doubled {model.doubled}, seed {seed}"
        )


class Misspelt(Wrapper):
    def custom_evalatuion(self, model, dataloader):
        return {}


class Ignores(Wrapper):
    def predict_step(self, batch):
        return self.model(x=batch["x"])[0]["scores"]

    def train_step(self, batch):
        loss = self.model(x=batch["x"], label=batch["x"][:, 0, 0, 0].long() * 0)[1].mean()
        self.backward(loss)
        self.step()
        return loss


class Renamed(nn.Module):
    def __init__(self, config: Width) -> None:
        super().__init__()
        self.inner = Classifier(config)

    def forward(self, x, label=None):
        return self.inner(x, label)
'''


@pytest.fixture
def typed(project, monkeypatch):
    project.write("src/typed.py", HEAD)
    monkeypatch.syspath_prepend(str(project.src))
    import importlib
    import sys

    sys.modules.pop("typed", None)
    return importlib.import_module("typed")


def experiment(typed, folder=None, **train):
    given = {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, **train}
    return RunConfig(
        model=typed.Width(hidden=4), train=typed.Training(**given), experiment_dir=folder, verbose=False
    )


def test_a_wrapper_trains_in_python_and_goes_on_from_its_config(typed, project, cli):
    typed.Wrapper(typed.Classifier).train(experiment(typed, "runs/parts", epochs=2))
    answer = cli("train", "runs/parts", "train.epochs=3")
    assert answer.code == 0, answer.err
    whole = typed.Wrapper(typed.Classifier).train(experiment(typed, "runs/whole"))
    assert same(project, "parts", "whole") == ""
    assert whole.metrics["val_accuracy"] > 0.7
    assert manyfit.load_model("runs/parts").layers[1].weight.shape == (8, 192)
    kept = typed.Wrapper(typed.Classifier).train(experiment(typed))
    assert kept.metrics == whole.metrics


def test_text_of_a_typed_config_is_no_reference(typed, cli):
    given = experiment(typed, "runs/b", epochs=1)
    given.save_dir = "a ${seed} and \\${x}"
    typed.Wrapper(typed.Classifier).train(given)
    assert manyfit.load_config("runs/b").experiment.save_dir == given.save_dir
    answer = cli("train", "runs/b", "train.epochs=2")
    assert answer.code == 0, answer.err


def test_overrides_reach_the_typed_config(typed, cli):
    typed.PrintsConfig(typed.Classifier).train(experiment(typed, "runs/b", epochs=1))
    for overrides in (
        ("train.epochs=2", "train.optimizer.lr=0.5", "experiment.model.hidden=3", "seed=7"),
        [
            f"experiment.{each}"
            for each in ("train.epochs=2", "train.learning_rate=0.5", "model.hidden=3", "random_seed=7")
        ],
    ):
        answer = cli("train", "runs/b", *overrides, "--debug")
        assert answer.code == 0, answer.err
        assert "epochs 2, rate 0.5, hidden 3, doubled 6, seed 7" in answer.out + answer.err
        assert "epoch 2/2" in answer.out + answer.err
        assert "no effect" not in answer.out + answer.err
    answer = cli("train", "runs/b", "experiment.train.epcohs=3")
    assert answer.code == 2
    assert "1 problem in the configuration" in answer.err
    assert "experiment.train.epcohs: unknown key" in answer.err
    answer = cli("train", "runs/b", "model.config.hidden=3")
    assert answer.code == 2
    assert "model.config is a reference to experiment.model" in answer.err
    assert "override experiment.model.hidden instead" in answer.err
    answer = cli("train", "runs/b", "experiment.train.amp=true", "--debug")
    assert (
        "experiment.train.amp=True has no effect: override train.precision, which is False"
        in answer.out + answer.err
    )


def test_everything_that_a_wrapper_may_create(typed):
    result = typed.Custom().train(experiment(typed, "runs/b"))
    rows = [event.values for event in result.history]
    assert [row["lr"] for row in rows] == pytest.approx([1e-3, 1e-6, 1e-9])
    assert {"train_worst", "val_loss"} <= set(rows[0])
    assert 0 <= rows[-1]["val_loss"] <= 1
    assert manyfit.load_model("runs/b")(__import__("torch").zeros(1, 3, 8, 8))[0]["scores"].shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("Misspelt", "Classifier", "did you mean custom_evaluation"),
        ("Wrapper", "Renamed", "did you mean label"),
        ("Ignores", "Renamed", "never reads 'labels' of the batch"),
    ],
)
def test_near_misses_are_errors(typed, name, model, says):
    with pytest.raises(UsageError, match=says):
        getattr(typed, name)(getattr(typed, model)).train(experiment(typed, "runs/b"))


def test_configs_are_typed_and_read_by_item_or_attribute(typed):
    found = experiment(typed)
    assert found["train"]["train_hparam"] == found.train.train_hparam == 0.5
    assert found.model.doubled == 8
    with pytest.raises(KeyError, match="did you mean 'batch_size'"):
        found["train"]["batch_sise"]
    with pytest.raises(TypeError):
        typed.Training(batch_sise=3)
    with pytest.raises(ConfigError, match="batch_size"):
        typed.Wrapper(typed.Classifier).train(experiment(typed, "runs/b", batch_size=2.5))
    with pytest.raises(UsageError, match="needs a RunConfig"):
        typed.Wrapper(typed.Classifier).train({"epochs": 3})
    assert isinstance(ModelConfig(), ModelConfig)
    assert TrainConfig().epochs == 10


def test_a_stateless_field_may_change(typed):
    typed.Wrapper(typed.Classifier).train(experiment(typed, "runs/b", epochs=1))
    given = experiment(typed, "runs/b", epochs=2, keep_n_checkpoints=1)
    given.save_dir = "elsewhere"
    assert typed.Wrapper(typed.Classifier).train(given).step == 12


DOCUMENTED = {
    "torchvision.datasets.CIFAR10": "Images",
    "    transform = transforms.Compose(\n        [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]\n    )\n": "    transform = None\n",
    "        super().__init__()\n\n    def forward(": "        super().__init__()\n        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))\n\n    def forward(",
    "        out = some_fn()\n": "        out = self.net(x)\n        loss = F.cross_entropy(out, labels, reduction='none')\n",
}


@pytest.mark.skipif(not FOUND, reason=f"the guide does not lie in {GUIDES}")
def test_the_guide_trains_resumes_and_is_loaded(project, cli, caplog):
    """Its data set, loader, model and wrapper, with what they leave undefined supplied."""
    blocks = re.findall(r"```python\n(.*?)```", FOUND[0].read_text(), flags=re.DOTALL)
    text = HEAD + "\n\n".join(blocks)
    for old, new in DOCUMENTED.items():
        assert old in text
        text = text.replace(old, new)
    project.write("src/guide.py", text)
    tree = {
        "data": {
            "class": "manyfit.wrapper.LoaderData",
            "loader": "guide.load_cifar10",
            "config": {"save_dir": "data", "train": {"batch_size": 8}},
        },
        "model": {"class": "guide.MyModel", "config": {"class": "manyfit.wrapper.ModelConfig"}},
        "trainer": {"class": "guide.MyModelWrapper"},
        "train": {"epochs": 3, "optimizer": {"class": "adam", "lr": 0.01}},
    }
    from tests.run.cut import resumes

    result = resumes(project, tree, 8)
    assert "validation and test have the same rows" in caplog.text
    assert result.history[-1].values["val_loss"] < result.history[0].values["val_loss"]
    assert manyfit.load_model(result.folder).net[1].weight.shape == (2, 192)
