"""What a user writes is used, or refused, or named in a warning; and what is measured is what was meant."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.run.cut import resumes
from torch.nn import functional as F

import manyfit
from manyfit.core.errors import RunConflict, RunFailed, UsageError
from manyfit.core.gpus import Gpu
from manyfit.data import ArraySource, Limited, once
from manyfit.data.memory_feeder import MemorySamplesFeeder
from manyfit.data.overlap import inner
from manyfit.learn.exporting import compare_outputs
from manyfit.learn.metrics import accuracy
from manyfit.run.build.builder import build
from manyfit.run.closing_summary import print_summary
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
    return F.cross_entropy(normed @ normed.T / 0.1, torch.arange(len(output), device=output.device))


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
            ["silent.Keyed provides labels, but Typo.forward accepts images, label", "did you mean label?", "data.unused: [labels]"],
        ),
        (
            {"model": {"class": "models.MLP"}, "data": {"class": "silent.Keyed", "keys": "images bonus"}},
            ["provides bonus, but MLP.forward accepts images", "data.unused: [bonus]"],
        ),
        (
            {"model": {"class": "silent.Needs"}, "data": {"class": "silent.Keyed"}, **NO_LOSS},
            ["Needs.forward needs mask, but", "silent.Keyed provides images, labels"],
        ),
        ({"model": {"class": "silent.NoLoss"}, **NO_LOSS}, ["NoLoss returned no loss in the first step"]),
        ({"model": {"class": "silent.Detached"}}, ["no gradient of the loss reaches the parameters of the optimizer ("]),
        (
            {"model": {"class": "silent.Half"}, "train__optimizer": {"used": "sgd", "idle": "sgd"}},
            ["no gradient of the loss reaches the parameters of the optimizer 'idle' (2 parameters of Half)"],
        ),
        ({"model": {"class": "silent.Idle"}}, ["Idle.train_step did not step any optimizer"]),
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
    assert caplog.text.count("it couples rows, so it is measured per batch") == 1
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
    assert "loss (per batch, since it couples rows)" in found.out


def test_weights_cannot_weigh_rows_that_are_coupled(silent):
    with pytest.raises(UsageError, match=r"Weighted has sample weights, but train\.loss couples"):
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
        ({"data": {"class": "silent.Doubles"}}, ["MLP.forward received float64[16, 64] from", "cast the data to np.float32 on reading"]),
        ({"data": {"class": "silent.FloatClasses"}}, ["train.loss received float32[16, 10] and float32[16]", "as int64"]),
        (
            {"model": {"class": "torch.nn.Linear", "in_features": 64, "out_features": 9}},
            ["the model has 9 outputs, but targets range from 0 to 9: see model"],
        ),
        ({"train__loss": "silent.matrix"}, ["returned shape (16,): see train.loss"]),
    ],
    ids=["float64", "float classes", "outputs", "matrix"],
)  # fmt: skip
def test_what_torch_says_comes_with_the_key_to_look_at(silent, changes, words):
    with pytest.raises((RunFailed, UsageError)) as error:
        train(silent, **changes)
    assert all(word in str(error.value) for word in words), str(error.value)


TOTAL = 8
SCHEDULES = {
    "polynomial": {"class": "polynomial"},
    "linear": {"class": "linear", "start_factor": 1.0, "end_factor": 0.1},
    "sequential": {
        "class": "sequential",
        "schedulers": [{"class": "linear", "start_factor": 0.1}, {"class": "cosine"}],
        "milestones": [3],
    },
    "chained": {"class": "chained", "schedulers": [{"class": "polynomial"}, {"class": "linear"}]},
    "one_cycle": {"class": "one_cycle"},
}


def rates(project, every="step", folder="runs/b", **schedule):
    train(
        project,
        "train.every.log=1ba" if every == "step" else "train.every.log=1ep",
        train__scheduler=schedule,
        train__scheduler_every=every,
        train__epochs=2 if every == "step" else TOTAL,
        train__optimizer={"class": "sgd", "lr": 0.1},
        folder=folder,
    )
    return [e.values["lr"] for e in events(folder) if "lr" in e.values]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_schedule_lasts_as_long_as_the_training(silent, name, every):
    found = rates(silent, every, **SCHEDULES[name])
    assert len(found) == TOTAL
    expected = {
        "polynomial": [0.1 * (1 - i / TOTAL) for i in range(TOTAL)],
        "linear": [0.1 * (1 - 0.9 * i / TOTAL) for i in range(TOTAL)],
        "sequential": [0.01, 0.04, 0.07, *(0.05 * (1 + np.cos(np.pi * i / 5)) for i in range(5))],
        "chained": [0.1 * (1 - i / TOTAL) * (1 / 3 + 2 / 3 * i / TOTAL) for i in range(TOTAL)],
    }
    if name in expected:
        assert found == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
    else:
        assert max(found) == pytest.approx(0.1, rel=0.05)
        assert found[-1] < 0.01


def test_lengths_that_are_given_are_kept(silent):
    found = rates(silent, **{"class": "polynomial", "total_iters": 4})
    assert found[4:] == [0.0] * 4
    found = rates(silent, folder="runs/c", **{"class": "one_cycle", "max_lr": 0.5})
    assert max(found) == pytest.approx(0.5, rel=0.05)


def test_a_rate_that_a_schedule_overrides_is_said(silent, caplog):
    train(silent, train__scheduler={"class": "one_cycle", "max_lr": 0.5})
    assert (
        caplog.text.count("train.optimizer.lr has no effect: OneCycleLR sets the rate by its own max_lr") == 1
    )


@pytest.mark.parametrize("classes", [3, 7])
def test_accuracy_is_the_share_of_elements(classes):
    state = np.random.RandomState(classes)
    scores = torch.from_numpy(state.normal(size=(5, classes, 4, 6)))
    target = torch.from_numpy(state.randint(0, classes, (5, 4, 6)))
    target[:, 0, :3] = -100
    found = accuracy(scores, target)
    for i in range(5):
        valid = target[i] >= 0
        assert found[i] == pytest.approx(float((scores[i].argmax(0) == target[i])[valid].float().mean()))
    plain, classes_of = scores[:, :, 1, 1], target[:, 1, 1]
    assert accuracy(plain, classes_of).tolist() == (plain.argmax(1) == classes_of).tolist()
    assert accuracy(plain.argmax(1), classes_of).tolist() == accuracy(plain, classes_of).tolist()
    hot = F.one_hot(classes_of, classes).double()
    assert accuracy(plain, hot).tolist() == accuracy(plain, classes_of).tolist()


@pytest.mark.parametrize(
    ("output", "target", "words"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "see binary_accuracy"),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), "see binary_accuracy"),
        (
            torch.zeros(4, 3, 5),
            torch.zeros(4, dtype=torch.long),
            r"classes of shape \(4, 5\) with targets of",
        ),
        (torch.zeros(4, 3), torch.zeros(4, 5, dtype=torch.long), r"classes of shape \(4,\) with targets of"),
    ],
)
def test_accuracy_refuses_what_does_not_fit(output, target, words):
    with pytest.raises(ValueError, match=words):
        accuracy(output, target)


@pytest.mark.parametrize("metric", ["accuracy", "torchmetrics.MeanMetric"])
def test_a_metric_without_a_target_is_an_error(silent, metric):
    pytest.importorskip("torchmetrics")
    silent.write(
        "src/untold.py",
        "from points import Blobs\nfrom manyfit.data import ArraySource\nclass Untold(Blobs):\n"
        "    def source(self, split):\n        found = super().source(split)\n"
        "        return ArraySource({'images': found.inputs, 'labels': found.target})\n",
    )
    changes = {"model": {"class": "silent.Named"}, "data": {"class": "untold.Untold"}, "train__loss": None}
    with pytest.raises(UsageError, match=r"train\.metrics: .* needs a target, but .*untold\.Untold has none"):
        train(silent, train__metrics=[metric], **changes)
    assert train(silent, train__metrics=[], folder="runs/c", **changes).step


SORTED = '''
import numpy as np
import torch
from torch import nn
from manyfit.data import ArraySource, DatasetSource, IterableSource


class Sorted:
    """Rows by class, many more of the last one."""

    def __init__(self, kind: str = "array") -> None:
        self.batch_size, self.kind = 8, kind

    def source(self, split):
        target = np.repeat(np.arange(10), [10] * 9 + [70])
        state = np.random.RandomState(len(split))
        inputs = state.normal(size=(160, 64)).astype("float32")
        if self.kind == "dataset":
            return DatasetSource([(torch.from_numpy(x), int(y)) for x, y in zip(inputs, target)])
        return ArraySource(inputs, target)


class Normed(nn.Module):
    def __init__(self, affine: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16, affine=affine), nn.ReLU())
        self.head = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 10))

    def forward(self, images):
        return self.head(self.body(images))

    def training_step(self, batch, index):
        raise AssertionError

    def custom_evaluation(self, batch):
        raise AssertionError
'''


@pytest.fixture
def sorted_(project):
    project.write("src/sorted_.py", SORTED)
    return project


@pytest.mark.parametrize("kind", ["array", "dataset"])
def test_class_weights_come_from_all_rows_and_limits_take_rows_at_random(sorted_, cli, kind):
    changes = {"data": {"class": "sorted_.Sorted", "kind": kind}, "train__class_weights": "balanced"}
    config = manyfit.load_config(
        sorted_.changed(**changes), ["train.limit.train=4", "train.limit.validation=3"]
    )
    built = build(config)
    assert built.learner.objective.loss.weight.tolist() == pytest.approx([1.6] * 9 + [16 / 70])
    seen = [b for b, _ in zip(built.train.batches(built.order), range(4), strict=False)]
    rows = np.concatenate([b.index for b in seen])
    assert len(set(rows.tolist())) == 32
    assert len({int(t) for b in seen for t in b.target}) > 4
    again = build(config)
    assert [b.index.tolist() for b in once(again.validation, 8)] == [
        b.index.tolist() for b in once(built.validation, 8)
    ]
    other = build(manyfit.load_config(sorted_.changed(**changes, seed=9), ["train.limit.validation=3"]))
    assert [b.index.tolist() for b in once(other.validation, 8)] != [
        b.index.tolist() for b in once(built.validation, 8)
    ]
    sorted_.config(sorted_.changed(**changes))
    assert cli("train", "runs/a", "--fast-dev-run").code == 0
    assert cli("train", "runs/a", "--limit-train-batches", 2).code == 0


def test_reports_of_limited_splits_hold_the_rows_that_they_name(sorted_):
    result = train(sorted_, "train.limit.test=2", data={"class": "sorted_.Sorted"})
    module, source = manyfit.load_model(result.folder).eval(), build(
        manyfit.load_config(sorted_.changed(data={"class": "sorted_.Sorted"}))
    ).split("test")  # fmt: skip
    with Path("runs/b/reports/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    for row in rows:
        i = int(row["id"])
        with torch.no_grad():
            output = module(torch.from_numpy(source.inputs[i : i + 1]))
        loss = F.cross_entropy(output, torch.from_numpy(source.target[i : i + 1]))
        assert float(row["loss"]) == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("how", "still"),
    [
        ({"train__freeze": ["body"]}, True),
        ({"train__freeze": [{"match": "body", "statistics": True}]}, False),
        ({"train__freeze": [{"up_to": "body"}]}, True),
        ({"train__fine_tune": ["head"]}, True),
        ({"train__freeze": [{"match": "body", "epochs": 1}]}, False),
        ({}, False),
    ],
)
def test_frozen_means_frozen(sorted_, how, still, affine):
    changes = {"model": {"class": "sorted_.Normed", "affine": affine}, **how}
    resumes(sorted_, sorted_.changed(**changes))
    fresh = build(manyfit.load_config(sorted_.changed(**changes))).learner.module.cpu()
    found = manyfit.load_model("runs/whole")
    assert torch.equal(fresh.body[1].running_mean, found.body[1].running_mean) == still
    assert not torch.equal(fresh.head[0].running_mean, found.head[0].running_mean)


def test_statistics_move_once_a_layer_is_thawed(sorted_):
    tree = sorted_.changed(model={"class": "sorted_.Normed"}, train__freeze=[{"match": "body", "epochs": 1}])
    learner = build(manyfit.load_config(tree)).learner
    fresh = learner.module.body[1].running_mean.clone()
    built = build(manyfit.load_config(tree))
    batches = built.train.batches(built.order)
    learner.train(batches, 4)
    assert torch.equal(fresh, learner.module.body[1].running_mean)
    learner.train(batches, 1)
    assert not torch.equal(fresh, learner.module.body[1].running_mean)


def test_hooks_of_other_systems_are_said(sorted_, caplog):
    train(sorted_, model={"class": "sorted_.Normed"})
    assert "manyfit does not call training_step, custom_evaluation of Normed" in caplog.text


def test_a_batch_larger_than_the_data_is_said(silent, caplog):
    train(silent, data={"class": "points.Blobs", "batch_size": 100})
    assert "the batch size is 100, but there are only 64 training rows: each epoch is one step" in caplog.text


def test_workers_of_an_iterable_are_said(silent, caplog):
    silent.write(
        "src/streams.py",
        "from points import Blobs\nfrom torch.utils.data import IterableDataset\n"
        "class Rows(IterableDataset):\n"
        "    def __init__(self, found):\n        self.found = found\n"
        "    def __iter__(self):\n        return zip(self.found.inputs, self.found.target.tolist())\n"
        "    def __len__(self):\n        return len(self.found)\n"
        "class Streams(Blobs):\n    workers = 2\n"
        "    def source(self, split):\n        return Rows(super().source(split))\n",
    )
    train(silent, data={"class": "streams.Streams"})
    assert "workers: 2, but the number of shards is 1" in caplog.text


def test_validation_without_targets_is_an_error(silent):
    silent.write(
        "src/half.py",
        "from points import Blobs\nfrom manyfit.data import ArraySource\nclass Half(Blobs):\n"
        "    def source(self, split):\n        found = super().source(split)\n"
        "        return found if split == 'train' else ArraySource(found.inputs)\n",
    )
    with pytest.raises(UsageError, match=r"validation split have no target.*labels_map"):
        train(silent, data={"class": "half.Half"}, train__metrics=[])


def test_max_examples_beyond_the_data_is_said(caplog):
    feeder = MemorySamplesFeeder(np.zeros((5, 2), "float32"), np.arange(5), max_examples=9)
    assert len(feeder) == 5
    assert "max_examples is 9, but x has 5 rows" in caplog.text


def test_a_gpu_that_torch_cannot_use_is_an_error(silent, monkeypatch, cli):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU that torch can use")
    monkeypatch.setattr("manyfit.core.gpus.gpus", lambda: [Gpu(0, 0, 0), Gpu(1, 0, 0)])
    for name in ("MANYFIT_GPU", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")
    found = cli("train", "runs/a", "-g", "0", "-g", "1")
    assert found.code == 2
    assert "--gpu 0,1: torch cannot use a GPU here" in found.err
    assert "a run uses one GPU, here 0; only studies use several" in found.err


CODE = """
from torch import Tensor
def off(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax() != target) * {scale}
"""


def edited(project, name, text):
    """Change code as between two processes."""
    project.write(f"src/{name}.py", text)
    sys.modules.pop(name, None)


def test_evaluation_code_may_change_and_the_report_is_made_anew(silent, caplog, monkeypatch):
    silent.write("src/scores.py", CODE.format(scale=1))
    silent.config(silent.changed() | {"evaluate": {"functions": {"off": "scores.off"}}})
    manyfit.train("runs/a", callbacks=[])
    before = manyfit.evaluate("runs/a").means["off"]
    edited(silent, "scores", CODE.format(scale=2))
    assert manyfit.evaluate("runs/a").means["off"] == pytest.approx(2 * before)
    assert "evaluation code has changed since the run was trained: scores" in caplog.text
    edited(silent, "scores", CODE.format(scale=3))
    result = manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])
    assert result.summary["other_code"] == []
    sys.modules.pop("scores")


def test_code_that_the_model_imports_is_not_evaluation_code(silent):
    silent.write("src/scores.py", CODE.format(scale=1))
    silent.write("src/uses.py", "from models import MLP\nimport scores\nclass Uses(MLP):\n    pass\n")
    tree = silent.changed(model={"class": "uses.Uses"}) | {"evaluate": {"functions": {"off": "scores.off"}}}
    silent.config(tree)
    manyfit.train("runs/a", callbacks=[])
    edited(silent, "scores", CODE.format(scale=2))
    with pytest.raises(RunConflict, match="the code of runs/a has changed since it was trained: scores"):
        manyfit.evaluate("runs/a")
    sys.modules.pop("scores", None)


def test_old_weights_that_new_code_evaluates_are_marked(silent, caplog):
    text = "from models import MLP\nclass Own(MLP):\n    def forward(self, images):\n        return super().forward(images) * {scale}\n"
    silent.write("src/own.py", text.format(scale=1))
    silent.config(silent.changed(model={"class": "own.Own"}))
    assert manyfit.train("runs/a", callbacks=[]).summary["other_code"] == []
    edited(silent, "own", text.format(scale=-1))
    result = manyfit.train("runs/a", ["train.epochs=3"], allow_change=["code"], callbacks=[])
    assert result.best_step <= 8
    assert result.summary["other_code"] == ["own"]
    assert "are evaluated with different code than they were trained with: see own" in caplog.text
    assert "the best weights were trained before own changed" in print_summary(result)
    sys.modules.pop("own", None)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "    saves = 1\n    def state_dict(self, *args, **kwargs):\n        Odd.saves += 1\n"
            "        return super().state_dict(*args, **kwargs)\n"
            "    def forward(self, images):\n        return super().forward(images) * (1 + self.saves * self.training)\n",
            "differs",
        ),
        (
            "    seen = 0\n    def forward(self, images):\n        Odd.seen += self.training\n"
            "        return super().forward(images) * (2 if self.training and Odd.seen > 8 else 1)\n",
            "differs",
        ),
    ],
    ids=["counts saves", "changes in the second epoch"],
)
def test_check_resume_finds_what_cadences_and_later_kills_show(silent, cli, body, says):
    silent.write("src/odd.py", f"from models import MLP\nclass Odd(MLP):\n{body}")
    silent.config(silent.changed(model={"class": "odd.Odd"}, data={"class": "points.Blobs", "rows": 128}))
    found = cli("check", "--resume", "runs/a")
    assert found.code == 1
    assert says in found.out


def test_a_loss_that_is_no_number_is_not_taken_for_a_coupled_one(silent):
    objective = build(manyfit.load_config(silent.changed(train__loss="silent.separable"))).learner.objective
    output, target = torch.full((4, 10), torch.nan), torch.arange(4)
    assert objective._compute_loss(output, target).shape == (4,)
    assert objective.is_coupled is None
    assert objective._compute_loss(torch.randn(4, 10), target).shape == (4,)
    assert objective.is_coupled is False


def test_an_unused_input_that_is_not_there_is_said(silent, caplog):
    train(silent, data={"class": "silent.Keyed", "keys": "images", "unused": ["bonos"]})
    assert "data.unused names bonos, which the data does not provide" in caplog.text


def test_a_source_of_ones_own_may_hold_another_one():
    class Own:
        source = "a name"

    own = Own()
    assert inner(own) is own
    assert inner(Limited(Limited(ArraySource(np.zeros((4, 1))), 3), 2)).given_ids is None


def test_a_model_with_outputs_by_name_is_exported(silent):
    silent.write(
        "src/heads.py",
        "from torch import nn\nfrom models import MLP\nclass Heads(MLP):\n    def forward(self, images):\n"
        "        output = super().forward(images)\n        return {'logits': output, 'twice': output * 2}, None\n",
    )
    built = build(manyfit.load_config(silent.changed(model={"class": "heads.Heads"}, **NO_LOSS)))
    output = built.learner.module.cpu()(torch.zeros(2, 64))
    compare_outputs(output, output, "itself")
    with pytest.raises(RunFailed, match="differ from those of the original"):
        compare_outputs(output, ({**output[0], "twice": output[0]["twice"] + 1}, None), "another")
    with pytest.raises(RunFailed, match="another has 1 outputs, but the original has 2"):
        compare_outputs(output, output[0]["logits"], "another")
