"""What a user writes is used, or refused, or named in a warning; and what is measured is what was meant."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.cut import resumes
from torch.nn import functional as F

import manyfit
from manyfit.core.errors import RunFailed, UsageError
from manyfit.data import once
from manyfit.run.build import build
from manyfit.store.events import read_events
from manyfit.store.folder import RunFolder

SILENT = '''
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from models import MLP
from points import Blobs
from manyfit.data import ArraySource, DatasetSource


class Keyed(Blobs):
    """Inputs by name."""

    def __init__(self, keys: str = "images labels", rows: int = 64) -> None:
        super().__init__(rows=rows)
        self.keys = keys.split()

    def source(self, split):
        found = super().source(split)
        columns = {"images": found.inputs, "labels": found.target, "bonus": found.inputs * 2}
        return ArraySource({key: columns[key] for key in self.keys}, found.target)


class Typo(MLP):
    """Its argument is called `label`, the data's `labels`."""

    def forward(self, images, label=None):
        output = super().forward(images)
        return output, None if label is None else F.cross_entropy(output, label)


class Named(MLP):
    def forward(self, images, labels=None, bonus=None):
        output = super().forward(images if bonus is None else images + bonus)
        return output, None if labels is None else F.cross_entropy(output, labels)


class Needs(MLP):
    def forward(self, images, labels, mask):
        raise AssertionError


class NoLoss(MLP):
    def forward(self, images):
        return super().forward(images), None


class Detached(MLP):
    def forward(self, images):
        return super().forward(images).detach()


class Half(MLP):
    """A part that has no influence."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(64, 10), nn.Linear(64, 10)
        del self.layers

    def forward(self, images):
        return self.used(images)


class Idle(MLP):
    def train_step(self, batch, optimizer):
        return F.cross_entropy(self(batch.inputs), batch.target)


class ByName(MLP):
    """A step of its own, which says what the loss is made of."""

    def train_step(self, batch, optimizer):
        optimizer.zero_grad()
        output = self(batch.inputs)
        fit, size = F.cross_entropy(output, batch.target), output.square().mean()
        total = fit + 0.1 * size
        total.backward()
        optimizer.step()
        return {"fit": fit, "size": 0.1 * size, "count": 3} | ({"loss": total} if self.says else {})

    def __init__(self, says: bool = True) -> None:
        super().__init__()
        self.says = says


def contrastive(output, target):
    """Every row against all others of its batch."""
    normed = F.normalize(output, dim=1)
    return F.cross_entropy(normed @ normed.T / 0.1, torch.arange(len(output)))


def ranked(output, target):
    """Fails for a single row."""
    return (output[1:, 0] - output[:-1, 0]).abs().mean() if len(output) > 1 else output.sum(5)


def separable(output, target):
    return F.cross_entropy(output, target) * 3


def summed(output, target):
    return F.cross_entropy(output, target, reduction="none").sum()


class Coupled(MLP):
    def forward(self, images, target=None):
        output = super().forward(images)
        return output, contrastive(output, target)


class Apart(MLP):
    def forward(self, images, target=None):
        output = super().forward(images)
        return output, F.cross_entropy(output, target)


class Doubles(Blobs):
    def source(self, split):
        found = super().source(split)
        return ArraySource(found.inputs.astype("float64"), found.target)


class FloatClasses(Blobs):
    def source(self, split):
        found = super().source(split)
        return ArraySource(found.inputs, found.target.astype("float32"))


class Weighted(Blobs):
    def source(self, split):
        found = super().source(split)
        return ArraySource(found.inputs, found.target, weight=np.ones(len(found), "float32"))


def matrix(output, target):
    return F.cross_entropy(output, target, reduction="none")
'''


@pytest.fixture
def silent(project):
    project.write("src/silent.py", SILENT)
    return project


def train(project, *overrides, folder="runs/b", **changes):
    return manyfit.train(project.changed(**changes), overrides, folder=folder, callbacks=[])


def events(folder):
    return read_events(RunFolder(Path(folder)).metrics)


NO_LOSS = {"train__loss": None, "train__metrics": []}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": {"class": "silent.Typo"}, "data": {"class": "silent.Keyed"}, **NO_LOSS},
            ["silent.Keyed gives labels, but Typo.forward takes images, label", "did you mean label?", "data.unused: [labels]"],
        ),
        (
            {"model": {"class": "models.MLP"}, "data": {"class": "silent.Keyed", "keys": "images bonus"}},
            ["gives bonus, but MLP.forward takes images", "data.unused: [bonus]"],
        ),
        (
            {"model": {"class": "silent.Needs"}, "data": {"class": "silent.Keyed"}, **NO_LOSS},
            ["Needs.forward needs mask, but", "silent.Keyed gives images, labels"],
        ),
        ({"model": {"class": "silent.NoLoss"}, **NO_LOSS}, ["NoLoss gave no loss in the first step"]),
        ({"model": {"class": "silent.Detached"}}, ["no gradient of the loss reaches what the optimizer trains"]),
        (
            {"model": {"class": "silent.Half"}, "train__optimizer": {"used": "sgd", "idle": "sgd"}},
            ["no gradient of the loss reaches what the optimizer 'idle' trains (2 parameters of Half)"],
        ),
        ({"model": {"class": "silent.Idle"}}, ["Idle.train_step has not stepped any optimizer"]),
    ],
    ids=["typo", "unused", "missing", "no loss", "detached", "idle", "idle step"],
)  # fmt: skip
def test_what_nothing_takes_or_moves_is_an_error_before_anything_is_kept(silent, changes, words):
    with pytest.raises(UsageError) as error:
        train(silent, **changes)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert not RunFolder(silent.root / "runs/b").checkpoints()


def test_what_is_declared_unused_may_be_there(silent):
    data = {"class": "silent.Keyed", "keys": "images bonus", "unused": ["bonus"]}
    assert train(silent, data=data).step == 8
    assert train(silent, data=data | {"keys": "images"}, folder="runs/c").step == 8
    named = {"model": {"class": "silent.Named"}, "data": {"class": "silent.Keyed"}, **NO_LOSS}
    assert train(silent, folder="runs/d", **named).metrics["val_loss"] > 0


def test_a_model_that_is_frozen_at_first_moves_later(silent):
    frozen = {"train__freeze": [{"match": ".", "epochs": 1}]}
    assert train(silent, **frozen).step == 8


@pytest.mark.parametrize(
    ("loss", "model", "said"),
    [
        ("silent.contrastive", "models.MLP", "but the mean over its rows is 0"),
        ("silent.ranked", "models.MLP", "it fails for a single row"),
        (None, "silent.Coupled", "Coupled returns one loss for a batch, and it is"),
    ],
)
def test_a_loss_that_couples_rows_is_measured_batch_by_batch(silent, caplog, loss, model, said):
    changes = {"train__loss": loss, "model": {"class": model}, "data": {"class": "points.Blobs", "rows": 41}}
    result = train(silent, "train.epochs=3", **changes)
    assert caplog.text.count("it couples rows, so it is measured batch by batch") == 1
    assert said in caplog.text
    import silent as code

    module = manyfit.load_model("runs/b").eval()
    function = code.ranked if loss == "silent.ranked" else code.contrastive
    built = build(manyfit.load_config(silent.changed(**changes)))
    for split, value in (("test", result.test["loss"]), ("validation", result.metrics["val_loss"])):
        with torch.no_grad():
            found = [
                (len(b), float(function(module.layers(torch.from_numpy(b.inputs)), None)))
                for b in once(built.split(split), 16)
            ]
        assert value == pytest.approx(sum(n * each for n, each in found) / 41, rel=1e-5)
        with Path(f"runs/b/reports/{split}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 41
        assert "loss" not in rows[0]
        assert "accuracy" in rows[0]
    assert any(e.values.get("val_loss") for e in events("runs/b"))


@pytest.mark.parametrize(
    ("loss", "model"),
    [("silent.separable", "models.MLP"), ("silent.summed", "models.MLP"), (None, "silent.Apart")],
)
def test_a_loss_that_does_not_has_a_value_for_each_row(silent, caplog, loss, model):
    result = train(silent, train__loss=loss, model={"class": model})
    assert "couples" not in caplog.text
    with Path("runs/b/reports/test.csv").open() as file:
        rows = [float(row["loss"]) for row in csv.DictReader(file)]
    module = manyfit.load_model("runs/b").eval()
    source = build(manyfit.load_config(silent.changed())).split("test")
    with torch.no_grad():
        plain = F.cross_entropy(
            module.layers(torch.from_numpy(source.inputs)), torch.from_numpy(source.target), reduction="none"
        )
    assert rows == pytest.approx((plain * (3 if loss == "silent.separable" else 1)).tolist(), rel=1e-4)
    assert result.test["loss"] == pytest.approx(np.mean(rows))


def test_a_coupled_loss_resumes_and_is_said_by_check(silent, cli):
    changes = {"train__loss": "silent.contrastive", "train__metrics": []}
    resumes(silent, silent.changed(**changes))
    silent.config(silent.changed(**changes))
    found = cli("check", "runs/a")
    assert found.code == 0, found.out
    assert "loss (of each batch, as it couples rows)" in found.out


def test_weights_cannot_weigh_rows_that_are_coupled(silent):
    with pytest.raises(UsageError, match=r"Weighted has weights for rows, but train\.loss couples"):
        train(silent, train__loss="silent.contrastive", data={"class": "silent.Weighted"})


@pytest.mark.parametrize("says", [True, False])
def test_losses_by_name_are_logged_and_resumed(silent, says):
    tree = silent.changed(model={"class": "silent.ByName", "says": says}, train__every={"log": "3ba"})
    folder = resumes(silent, tree).folder
    for event in events(folder):
        if "train_loss" in event.values:
            parts = event.values["train_fit"] + event.values["train_size"]
            assert event.values["train_count"] == 3
            total = parts if says else parts + 3
            assert event.values["train_loss"] == pytest.approx(total, rel=1e-5)


def test_every_rate_is_logged(silent):
    groups = [{"match": "layers.1", "options": {"lr": 0.5}}, {"match": "bias", "options": {"lr": 0.25}}]
    train(silent, train__groups=groups)
    (last,) = [e for e in events("runs/b") if "lr" in e.values][-1:]
    assert [last.values[name] for name in ("lr", "lr_1", "lr_2")] == [0.01, 0.5, 0.25]
    two = {"used": {"class": "sgd", "lr": 0.3}, "idle": {"class": "sgd", "lr": 0.2}}
    silent.write("src/both.py", "from silent import Half\nclass Both(Half):\n    def forward(self, images):\n"
                 "        return self.used(images) + self.idle(images)\n")  # fmt: skip
    train(silent, folder="runs/c", model={"class": "both.Both"}, train__optimizer=two)
    (last,) = [e for e in events("runs/c") if "lr" in e.values][-1:]
    assert {n: v for n, v in last.values.items() if n.startswith("lr")} == {
        "lr": 0.3,
        "lr_used": 0.3,
        "lr_idle": 0.2,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"class": "silent.Doubles"}}, ["MLP.forward was given float64[16, 64] by", "cast it where it is read"]),
        ({"data": {"class": "silent.FloatClasses"}}, ["train.loss was given float32[16, 10] and float32[16]", "as int64"]),
        (
            {"model": {"class": "torch.nn.Linear", "in_features": 64, "out_features": 9}},
            ["the model has 9 outputs, but targets go from 0 to 9: see model"],
        ),
        ({"train__loss": "silent.matrix"}, ["returned shape (16,): see train.loss"]),
    ],
    ids=["float64", "float classes", "outputs", "matrix"],
)  # fmt: skip
def test_what_torch_says_comes_with_the_key_to_look_at(silent, changes, words):
    with pytest.raises(RunFailed) as error:
        train(silent, **changes)
    assert all(word in str(error.value) for word in words), str(error.value)
