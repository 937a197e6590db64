"""Models with several outputs: losses, metrics and reports by head, and values of one's own in the log."""

import csv
import json

import numpy as np
import pytest
import torch
from tests.run.cut import resumes
from torch.nn import functional as F

import manyfit
from manyfit.core.errors import ConfigError, ManyfitError, UsageError
from manyfit.data import ArraySource, Order
from manyfit.learn.step_log import StepLog, logging_to

HEADS = """
import manyfit
import numpy as np
from torch import nn
from manyfit.data import ArraySource


class Houses:
    def __init__(self, batch_size: int = 16, form: str = "dict", rows: int = 60) -> None:
        self.batch_size, self.form, self.rows = batch_size, form, rows

    def source(self, split: str) -> ArraySource:
        state = np.random.RandomState(["train", "validation", "test"].index(split))
        x = state.normal(size=(self.rows, 4)).astype(np.float32)
        price, kind = x @ np.arange(4, dtype=np.float32), (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)
        named = {"price": price, "kind": kind}
        return ArraySource(x, named if self.form == "dict" else tuple(named.values()))


class Net(nn.Module):
    def __init__(self, form: str = "dict", logs: bool = True) -> None:
        super().__init__()
        self.body, self.form, self.logs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1)), form, logs
        self.price, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.body(x)
        if self.logs:
            manyfit.log("activity", hidden.mean(1))
        found = {"kind": self.kind(hidden), "price": self.price(hidden).squeeze(-1), "hidden": hidden}
        return found if self.form == "dict" else (found["price"], found["kind"])
"""
TRAIN = {
    "epochs": 3,
    "loss": {"price": "mse", "kind": "cross_entropy"},
    "loss_weights": {"price": 0.25},
    "metrics": {"price": ["mae"], "kind": ["accuracy", "f1", "auroc"]},
    "optimizer": {"class": "adam", "lr": 0.01},
}


@pytest.fixture
def houses(project):
    project.write("src/houses.py", HEADS)

    def make(form="dict", **train):
        tree = {
            "seed": 3,
            "data": {"class": "houses.Houses", "form": form},
            "model": {"class": "houses.Net", "form": form},
        }
        return {**tree, "train": {**TRAIN, **train}}

    project.make = make
    return project


def read_log(result):
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_run_with_two_heads_resumes_exactly(houses, form):
    result = resumes(houses, houses.make(form, every={"log": "3ba", "validate": "0.5ep"}))
    last = read_log(result)[-1]
    assert last["val_loss"] == pytest.approx(0.25 * last["val_loss_price"] + last["val_loss_kind"])
    assert {"train_loss_price", "train_activity", "val_activity", "val_kind_f1", "val_kind_auroc"} <= set(
        last
    )
    with (result.folder / "reports/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert {
        "target_price",
        "prediction_price",
        "target_kind",
        "prediction_kind",
        "confidence_kind",
        "loss_kind",
    } <= set(rows[0])
    summary = json.loads((result.folder / "reports/summary.json").read_text())
    assert summary["splits"]["test"]["heads"]["kind"]["accuracy"] == pytest.approx(
        result.test["kind_accuracy"]
    )


def test_losses_of_heads_are_those_of_torch(houses):
    """The first logged step, computed by hand from the initial weights."""
    tree = houses.make(loss_weights={"price": 0.25, "kind": 2.0}, epochs=1, every={"log": "1ba"})
    tree["data"]["batch_size"] = 64
    tree["model"]["logs"] = False
    first = read_log(manyfit.train(tree, folder="runs/h", callbacks=[]))[0]
    assert first["train_loss"] == pytest.approx(
        0.25 * first["train_loss_price"] + 2 * first["train_loss_kind"], rel=1e-6
    )


def test_accumulated_parts_log_the_mean_over_rows(houses):
    plain = houses.make(epochs=1, every={"log": "1ba"})
    plain["model"]["class"] = "houses.Still"
    houses.write(
        "src/houses.py",
        HEADS
        + "\n\nclass Still(Net):\n    def train(self, mode=True):\n        return super().train(False)\n",
    )
    parts = {**plain, "train": {**plain["train"], "accumulate": 3}}
    whole, split = (
        read_log(manyfit.train(tree, folder=f"runs/{i}", callbacks=[]))
        for i, tree in enumerate((plain, parts))
    )
    for name in ("train_activity", "train_loss_price", "train_loss_kind", "train_loss"):
        assert whole[0][name] == pytest.approx(split[0][name], rel=1e-5)


def test_split_metrics_equal_those_of_all_rows(houses):
    torchmetrics = pytest.importorskip("torchmetrics")
    result = manyfit.train(houses.make(), folder="runs/h", callbacks=[])
    model = manyfit.load_model(result.folder)
    source = __import__("houses").Houses().source("test")
    with torch.no_grad():
        scores = model(torch.from_numpy(source.inputs))["kind"]
    known = torch.from_numpy(source.target["kind"])
    for name, metric in (("f1", torchmetrics.F1Score), ("auroc", torchmetrics.AUROC)):
        expected = metric(task="multiclass", num_classes=3, average="macro")(scores.softmax(1), known)
        assert result.test[f"kind_{name}"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": {"price": "mse", "sort": "cross_entropy"}, "metrics": {}, "loss_weights": {}}, "did you mean|names the head 'sort'"),
        ({"loss_weights": {"prise": 0.1}}, "price"),
        ({"metrics": ["mae"]}, "several outputs to measure"),
        ({"metrics": {"kinds": ["accuracy"]}}, "kind"),
        ({"class_weights": [1.0, 2.0]}, "several losses"),
        ({"metrics": {"price": ["mae", "mae"]}}, "same name"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_the_first_step(houses, changes, words):
    with pytest.raises((ConfigError, ManyfitError), match=words):
        manyfit.train(houses.make(**changes), folder="runs/h", callbacks=[])
    assert not (houses.root / "runs/h/metrics.jsonl").exists()


def test_a_model_with_one_output_is_refused(houses):
    houses.write(
        "src/houses.py",
        HEADS.replace('return found if self.form == "dict" else', 'return found["kind"]\n        return'),
    )
    with pytest.raises(ManyfitError, match="a dict or a tuple of outputs"):
        manyfit.train(houses.make(), folder="runs/h", callbacks=[])


def test_logged_values_select_the_best_checkpoint_and_typos_are_found(houses):
    tree = {**houses.make(), "export": {"metric": "val_activity", "mode": "max"}}
    result = manyfit.train(tree, folder="runs/h", callbacks=[])
    log = [row["val_activity"] for row in read_log(result)]
    assert result.metrics["val_activity"] == max(log)
    with pytest.raises(ConfigError, match="val_activity"):
        manyfit.train({**tree, "export": {"metric": "val_activty"}}, folder="runs/i", callbacks=[])


def test_targets_of_a_source_may_be_nested():
    source = ArraySource(np.zeros((5, 2)), {"a": np.arange(5), "b": (np.arange(5), np.ones((5, 3)))})
    (batch,) = source.batches(Order(5, epochs=1))
    assert batch.target["b"][1].shape == (5, 3)
    other = ArraySource(np.zeros((5, 2)), {"a": np.arange(5), "b": (np.arange(5), np.zeros((5, 3)))})
    assert source.fingerprint() != other.fingerprint()


class TestLog:
    def test_values_are_means_over_rows(self):
        target = StepLog()
        with logging_to(target):
            target.rows = 3
            manyfit.log("a", torch.tensor([1.0, 2.0, 3.0], requires_grad=True))
            target.rows = 1
            manyfit.log("a", 6)
        assert float(target.take()["a"]) == pytest.approx(3.0)
        assert not target

    def test_nothing_happens_outside_of_a_run(self):
        target = StepLog()
        with logging_to(target):
            pass
        manyfit.log("a", 1.0)
        assert not target

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [("loss", 1.0, "choose another"), ("accuracy", 1.0, "choose another"), ("a b", 1.0, "letters"),
         ("a", torch.zeros(2, 2), "one number"), ("a", {"x": 1}, "must be a number")],
    )  # fmt: skip
    def test_mistakes_are_explained(self, name, value, words):
        target = StepLog({"accuracy": None})
        target.rows = 3
        with logging_to(target), pytest.raises(UsageError, match=words):
            manyfit.log(name, value)

    def test_data_does_not_log(self):
        with logging_to(StepLog()), pytest.raises(UsageError, match="while data was read"):
            manyfit.log("a", 1.0)

    def test_a_trainer_logs_too(self, project):
        project.write(
            "src/own.py",
            """
            import manyfit
            from manyfit.trainers import Trainer
            from torch.nn import functional as F

            class Own(Trainer):
                def train_step(self, batch):
                    images, target = batch
                    loss = F.cross_entropy(self.model(images), target)
                    manyfit.log("twice", 2 * loss)
                    self.backward(loss)
                    self.step()
                    return loss
            """,
        )
        tree = {**project.changed(train__epochs=3), "trainer": {"class": "own.Own"}}
        tree["train"].pop("loss")
        result = resumes(project, tree)
        for row in read_log(result):
            assert row["train_twice"] == pytest.approx(2 * row["train_loss"])


def test_heads_of_segmentation_and_weights_of_rows():
    """Row weights reach every head."""
    from manyfit.data import Batch
    from manyfit.learn.torch.heads import Head, HeadsObjective

    class Two(torch.nn.Module):
        def forward(self, x):
            return {"a": x.sum(1), "b": x}

    heads = {"a": Head(torch.nn.MSELoss()), "b": Head(torch.nn.CrossEntropyLoss(), 0.5)}
    objective = HeadsObjective(Two(), heads, torch.device("cpu"))
    x, a, b = torch.randn(4, 3), torch.randn(4), torch.tensor([0, 1, 2, 1])
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0])
    batch = Batch(x, {"a": a, "b": b}, np.arange(4), weight)
    _, loss = objective(Two(), batch)
    rows = (x.sum(1) - a) ** 2 + 0.5 * F.cross_entropy(x, b, reduction="none")
    assert float(loss) == pytest.approx(float((rows * weight).mean()), rel=1e-5)
    _, found, _ = objective.rows(Two(), batch)
    assert torch.allclose(found, rows)


def test_a_value_cannot_be_named_like_the_loss_of_a_head(houses):
    houses.write("src/houses.py", HEADS.replace('"activity"', '"loss_price"'))
    with pytest.raises(ManyfitError, match="already has a value named 'loss_price'"):
        manyfit.train(houses.make(), folder="runs/h", callbacks=[])


def test_a_loss_that_couples_rows_has_no_value_per_row(houses):
    houses.write(
        "src/coupled.py",
        "def spread(output, target):\n    return (output - output.mean()).pow(2).sum().sqrt() + (output - target).abs().mean()\n",
    )
    result = manyfit.train(
        houses.make(loss={"price": "coupled.spread", "kind": "cross_entropy"}), folder="runs/h", callbacks=[]
    )
    with (result.folder / "reports/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert "loss" not in rows[0] and "loss_price" not in rows[0] and "price_mae" in rows[0]
    last = read_log(result)[-1]
    assert last["val_loss"] == pytest.approx(0.25 * last["val_loss_price"] + last["val_loss_kind"])


def test_outputs_in_the_wrong_order_are_explained(project):
    project.write(
        "src/swapped.py",
        "from torch import nn\nfrom manyfit.data import ArraySource\nimport numpy as np\n\n\n"
        "class Data:\n    batch_size = 8\n\n    def source(self, split):\n"
        "        x = np.random.RandomState(len(split)).normal(size=(16, 3)).astype('float32')\n"
        "        return ArraySource(x, (x[:, 0], (x[:, 1] > 0).astype('int64')))\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.price, self.kind = nn.Linear(3, 1), nn.Linear(3, 2)\n\n"
        "    def forward(self, x):\n        return self.kind(x), self.price(x).squeeze(1)\n",
    )
    tree = {
        **project.changed(train__metrics=[]),
        "data": {"class": "swapped.Data"},
        "model": {"class": "swapped.Net"},
    }
    tree["train"] = {**tree["train"], "loss": {"price": "mse", "kind": "cross_entropy"}}
    with pytest.raises(
        ManyfitError, match=r"head 'price': .*tuples by position, in the order of train\.loss"
    ):
        manyfit.train(tree, folder="runs/s", callbacks=[])


@pytest.mark.soak
def test_heads_hop_as_they_train_alone(houses):
    houses.config({**houses.make(), "data": {"class": "houses.Houses", "shards": 3}})
    study = {
        "base": "runs/a/config.yaml",
        "objective": {"metric": "val_kind_auroc", "mode": "max"},
        "search": {"method": "grid"},
        "space": {"train.optimizer.lr": [0.001, 0.01]},
    }
    tables = []

    def strip(row):
        return {name: value for name, value in row.items() if name not in ("time", "crc")}

    for name, execute in (
        ("hops", {"on": "processes", "workers": 2, "hop": True}),
        ("plain", {"on": "inline"}),
    ):
        found = manyfit.sweep({**study, "execute": execute}, folder=f"studies/{name}", progress=False)
        logs = [(found.folder / "trials" / id_ / "metrics.jsonl") for id_ in found.frame()["trial"]]
        tables.append([[strip(json.loads(line)) for line in log.read_text().splitlines()] for log in logs])
    assert tables[0] == tables[1]


@pytest.mark.soak
@pytest.mark.parametrize(
    "search", [{"method": "tpe", "trials": 4}, {"method": "grid", "stop": {"class": "halving", "factor": 2}}]
)
def test_folds_in_a_search_that_learns_or_stops(houses, search):
    houses.config(houses.make())
    study = {
        "base": "runs/a/config.yaml",
        "objective": {"metric": "val_loss", "mode": "min"},
        "search": {**search, "folds": 3},
        "space": {"train.optimizer.lr": [0.001, 0.01, 0.03, 0.1]},
    }
    tables = [
        manyfit.sweep({**study, "execute": execute}, folder=f"studies/{name}", progress=False)
        for name, execute in (("a", {"on": "inline"}), ("b", {"on": "processes", "workers": 1}))
    ]
    left, right = ([(p.values, p.state, p.trials) for p in found.points] for found in tables)
    assert left == right
    assert all(len(p.trials) == 3 for p in tables[0].points)
