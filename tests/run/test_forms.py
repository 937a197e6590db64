"""Every form that a model, a batch, an optimiser or a data set may have, trained, cut short and resumed."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import ConfigError, RunConflict, RunFailed, UsageError
from manyfit.data import ArraySource, DatasetSource, IterableSource, Limited, Order, Splits, once
from manyfit.run.resume_proof import difference
from manyfit.store.folder import RunFolder
from manyfit.testing import SourceContract

FORMS = '''
import random
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from models import MLP


class WithLoss(MLP):
    """Returns (outputs, loss), one loss for the batch."""

    def forward(self, images, target=None):
        output = super().forward(images)
        return {"logits": output}, None if target is None else F.cross_entropy(output, target)


class WithRowLoss(MLP):
    """Returns (output, losses), one for each row."""

    def forward(self, images, target):
        output = super().forward(images)
        return output, F.cross_entropy(output, target, reduction="none")


class UpdatesItself(MLP):
    """Has its own optimiser."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__(hidden)
        self.own = torch.optim.Adam(self.parameters(), lr=0.01)

    def forward(self, images, target=None):
        output = super().forward(images)
        if self.training:
            self.own.zero_grad()
            F.cross_entropy(output, target).backward()
            self.own.step()
        return output, None


class Pair(nn.Module):
    """Two networks with an optimiser each, and a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.decoder = nn.Linear(8, 10)

    def forward(self, images):
        return self.decoder(self.encoder(images))

    def train_step(self, batch, optimizers):
        loss = F.cross_entropy(self(batch.inputs), batch.target)
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return loss


class ByName(MLP):
    def forward(self, left, right):
        return super().forward(left - right)


class Tied(nn.Module):
    """Two names for the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.last(self.second(self.first(images.flatten(1)).relu()).relu())


class Strided(nn.Module):
    """Weights that do not lie in order."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4 * 2 * 6, 10)
        self.convolution.to(memory_format=torch.channels_last)
        self.register_buffer("turned", torch.ones(4, 3).t())

    def forward(self, images):
        return self.last(self.convolution(images.reshape(-1, 2, 4, 8)).relu().flatten(1))


class Noisy(MLP):
    """Draws from every generator, in training and when it predicts."""

    def forward(self, images):
        return super().forward(images) * (1 + 0.1 * (random.random() + np.random.rand() + torch.rand(()).item()))


class Wrong(MLP):
    def forward(self, images):
        return [1, 2, 3]


def worst_class(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax() != target).float()


def by_hand(output, target) -> float:
    return float(output.argmax().item() == int(target))


def not_a_number(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target) * float("nan")
'''

SETS = '''
import random
import numpy as np
import torch
from manyfit.data import ArraySource, Batch, DatasetSource, IterableSource


def rows(split, count=64):
    state = np.random.RandomState(["train", "validation", "test"].index(split))
    target = np.arange(count) % 10
    centres = np.random.RandomState(9).normal(size=(10, 64))
    return (centres[target] + 0.5 * state.normal(size=(count, 64))).astype(np.float32), target


class Base:
    def __init__(self, batch_size: int = 16) -> None:
        self.batch_size = batch_size


class Named(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource({"left": inputs, "right": np.zeros_like(inputs), "extra": inputs}, target)


class Weighted(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource(inputs, target, weight=(target < 5).astype(np.float32))


class Unbalanced(Base):
    def source(self, split):
        inputs, target = rows(split)
        return ArraySource(inputs, np.where(target < 8, 0, target))


class Rows:
    def __init__(self, split, noise=0.0):
        self.inputs, self.target = rows(split)
        self.noise = noise

    def __len__(self):
        return len(self.target)

    def __getitem__(self, row):
        return self.inputs[row] * np.float32(1 + self.noise * random.random()), int(self.target[row])


class Plain(Base):
    """Returns a dataset, and no source."""

    def source(self, split):
        return Rows(split, noise=0.1)


class Generated(Base):
    """A generator function: it can only be read from the beginning."""

    def source(self, split):
        inputs, target = rows(split)

        def generate():
            for x, y in zip(inputs, target):
                yield x * np.float32(1 + 0.1 * random.random()), int(y)

        return IterableSource(generate, count=len(target))


class Drawing(ArraySource):
    """A source that draws from the global generators."""

    def batches(self, order, start=0):
        for batch in super().batches(order, start):
            noise = 1 + 0.1 * (random.random() + np.random.rand() + torch.rand(()).item())
            yield Batch(batch.inputs * np.float32(noise), batch.target, batch.index)


class Drawn(Base):
    def source(self, split):
        return Drawing(*rows(split))


class Nothing(Base):
    def source(self, split):
        return 3
'''


@pytest.fixture
def forms(project):
    project.write("src/forms.py", FORMS)
    project.write("src/sets.py", SETS)
    return project


def falls(result):
    losses = [e.values["train_loss"] for e in result.history if "train_loss" in e.values]
    return losses[-1] < losses[0]


OWN = {"train__loss": None}


@pytest.mark.parametrize(
    "changes",
    [
        {**OWN, "model": {"class": "forms.WithLoss", "hidden": 8}},
        {**OWN, "model": {"class": "forms.WithRowLoss", "hidden": 8}},
        {"model": {"class": "forms.Pair"}, "train__optimizer": {"encoder": {"class": "adam", "lr": 0.01}, "decoder": {"class": "sgd", "lr": 0.1}},
         "train__scheduler": {"decoder": {"class": "step", "step_size": 3}}},
        {"model": {"class": "forms.ByName", "hidden": 8}, "data": {"class": "sets.Named", "unused": ["extra"]}},
        {"data": {"class": "sets.Weighted"}},
        {"data": {"class": "sets.Plain"}},
        {"data": {"class": "sets.Generated"}},
        {"train__groups": [{"match": "bias$", "options": {"weight_decay": 0.0}}, {"match": r"layers\.1", "options": {"lr": 0.1}}]},
        {"train__freeze": [{"up_to": "layers.1", "epochs": 1}]},
        {"train__freeze": ["layers.1.bias"], "train__ema": 0.8},
        {"train__precision": "bf16", "train__accumulate": 4},
        {"train__precision": "fp16", "train__clip_norm": 0.1},
        {"train__class_weights": "balanced", "data": {"class": "sets.Unbalanced"}},
        {"train__metrics": ["accuracy", {"class": "torchmetrics.F1Score", "task": "multiclass", "num_classes": 10, "average": "macro"}]},
        {"train__every": {"log": "3ba", "validate": "0.5ep", "checkpoint": "5ba"}, "model__dropout": 0.3},
        {"train__optimizer": {"class": "sgd", "lr": 0.1, "momentum": 0.9, "fused": True}, "train__scheduler": {"class": "plateau", "patience": 0}},
    ],
    ids=["own loss", "own row losses", "two optimizers", "by name", "weights", "dataset", "generator", "groups", "thaws", "frozen, averaged",
         "bf16", "fp16", "class weights", "torchmetrics", "cadence", "plateau"],
)  # fmt: skip
def test_a_form_trains_and_resumes(forms, changes):
    if "torchmetrics" in str(changes):
        pytest.importorskip("torchmetrics")
    assert falls(resumes(forms, forms.changed(**{"train__epochs": 4, **changes})))


@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.soak) for step in (4, 8, 14))])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"class": "forms.Noisy"}},
        {"data": {"class": "sets.Drawn"}},
        {"model": {"class": "forms.Noisy"}, "train__every": {"validate": "0.5ep", "checkpoint": "3ba"}},
    ],
    ids=["model", "source", "in the middle"],
)
def test_whoever_draws_at_random_resumes_exactly(forms, changes, step):
    """Between epochs, in the middle of one, and where a run is evaluated again."""
    result = resumes(forms, forms.changed(**{"train__epochs": 4, **changes}), step)
    before = (result.folder / "reports/test.csv").read_bytes()
    np.random.seed(1)
    manyfit.evaluate(result.folder, "test")
    assert (result.folder / "reports/test.csv").read_bytes() == before


@pytest.mark.parametrize("model", ["forms.Tied", "forms.Strided"])
@pytest.mark.parametrize("every", ["2ba", "auto"])
def test_weights_that_share_memory_or_are_strided(forms, model, every):
    tree = forms.changed(model={"class": model}, train__epochs=4, train__every={"checkpoint": every})
    assert falls(resumes(forms, tree))


def test_a_model_that_updates_itself(forms):
    tree = forms.changed(
        train__epochs=4, train__loss=None, train__optimizer=None, model={"class": "forms.UpdatesItself"}
    )
    result = resumes(forms, tree)
    assert "train_loss" not in result.history[-1].values
    assert result.history[-1].values["val_accuracy"] > 0.5
    state = RunFolder(result.folder).checkpoints()[-1].load()
    assert any(name.startswith("own_optimizers/own") for name in state.tensors)


def test_two_optimizers_need_all_parameters(forms):
    tree = forms.changed(
        model={"class": "forms.Pair"},
        train__optimizer={"encoder": {"class": "adam"}, "other": {"class": "adam"}},
    )
    with pytest.raises(UsageError, match="2 parameters belong to no optimizer"):
        manyfit.train(tree, folder="runs/b", callbacks=[])
    tree["train"]["groups"] = [{"match": "decoder", "optimizer": "other"}]
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 8
    tree["train"]["groups"] = [{"match": "decoder", "optimizer": "othr"}]
    with pytest.raises(ConfigError, match="did you mean: other"):
        manyfit.load_config(tree)


def test_parts_of_a_batch_add_up_to_it(project):
    weights = []
    for parts in (1, 4):
        tree = project.changed(train__accumulate=parts, train__optimizer={"class": "sgd", "lr": 0.1})
        weights.append(manyfit.train(tree, folder=f"runs/{parts}", callbacks=[]).load_model().state_dict())
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])


def test_weights_of_rows_are_used(forms):
    """Rows of weight 0 teach nothing: their classes are never predicted well."""
    result = manyfit.train(
        forms.changed(data={"class": "sets.Weighted"}, train__epochs=10), folder="runs/b", callbacks=[]
    )
    with (result.folder / "reports/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = {
        low: np.mean([float(r["accuracy"]) for r in rows if (int(r["target"]) < 5) == low])
        for low in (True, False)
    }
    assert right[True] > 0.9
    assert right[False] < 0.5


def test_what_is_frozen_does_not_move(project):
    tree = project.changed(train__freeze=[{"up_to": "layers.1"}], train__epochs=2)
    first = manyfit.train(tree, ["train.epochs=1"], folder="runs/b", callbacks=[])
    before = RunFolder(first.folder).checkpoints()[-1].load().tensors
    manyfit.train(tree, folder="runs/b", callbacks=[])
    after = RunFolder(first.folder).checkpoints()[-1].load().tensors
    assert torch.equal(before["model/layers.1.weight"], after["model/layers.1.weight"])
    assert not torch.equal(before["model/layers.4.weight"], after["model/layers.4.weight"])
    for wrong, says in (
        ({"up_to": "layers.9"}, "there is no module"),
        ({"match": "nothing"}, "'nothing' matches no parameter"),
    ):
        with pytest.raises(UsageError, match=says):
            manyfit.train(project.changed(train__freeze=[wrong]), folder="runs/c", callbacks=[])


def test_the_average_is_what_is_evaluated_and_exported(project):
    tree = project.changed(train__ema=0.5)
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    state = RunFolder(result.folder).checkpoints()[-1].load().tensors
    model = result.load_model().state_dict()
    for name, tensor in model.items():
        assert torch.equal(tensor, state[f"average/module.{name}"])
        assert not torch.equal(tensor, state[f"model/{name}"])


def test_warm_start_by_a_pattern(project):
    first = manyfit.train("runs/a", ["train.epochs=4"], callbacks=[])
    source = first.load_model().state_dict()
    for place in (
        "runs/a",
        "runs/a/exported",
        "runs/a/exported/model.safetensors",
        "runs/a/checkpoints/step-000000016",
    ):
        tree = project.changed(
            train__warm_start={"path": place, "match": r"^layers\.1"},
            train__optimizer={"class": "sgd", "lr": 1e-12},
        )
        found = (
            manyfit.train(tree, folder=f"runs/{place.replace('/', '-')}", callbacks=[])
            .load_model()
            .state_dict()
        )
        assert torch.allclose(found["layers.1.weight"], source["layers.1.weight"])
        assert not torch.allclose(found["layers.4.weight"], source["layers.4.weight"])
    for wrong, says in (
        ({"path": "runs/a", "match": "head"}, "no weight in"),
        ({"path": "runs/zzz"}, "holds no weights"),
    ):
        with pytest.raises(UsageError, match=says):
            manyfit.train(project.changed(train__warm_start=wrong), folder="runs/w", callbacks=[])
    tree = project.changed(model__hidden=9, train__warm_start={"path": "runs/a"})
    with pytest.raises(UsageError, match="shapes do not fit"):
        manyfit.train(tree, folder="runs/w", callbacks=[])


def test_class_weights_need_a_loss_that_takes_them(project):
    with pytest.raises(UsageError, match="does not accept class weights"):
        manyfit.train(
            project.changed(train__class_weights="balanced", train__loss="mse"), folder="runs/b", callbacks=[]
        )


def test_functions_of_one_row(forms, caplog):
    parquet = pytest.importorskip("pyarrow.parquet")
    tree = forms.changed(train__metrics=["accuracy"])
    tree["evaluate"] = {
        "functions": {"wrong": "forms.worst_class", "right": "forms.by_hand"},
        "parquet": True,
        "worst": 3,
    }
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    with (result.folder / "reports/validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (
        [1 - float(r["wrong"]) for r in rows]
        == [float(r["right"]) for r in rows]
        == [float(r["accuracy"]) for r in rows]
    )
    assert "'right' is called row by row" in caplog.text
    assert "'wrong' is called row by row" not in caplog.text
    table = parquet.read_table(result.folder / "reports/test.parquet")
    assert table.column_names == [
        "id",
        "target",
        "prediction",
        "confidence",
        "loss",
        "accuracy",
        "wrong",
        "right",
    ]
    assert table.num_rows == 64
    worst = result.summary["splits"]["test"]["worst"]
    assert len(worst) == 3
    assert worst[0]["loss"] >= worst[1]["loss"] >= worst[2]["loss"]
    assert result.summary["splits"]["test"]["columns"]["loss"]["count"] == 64


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(forms, workers):
    splits = {
        split: {"class": "sets.Rows", "split": split, "noise": 0.2}
        for split in ("train", "validation", "test")
    }
    runs = []
    for count in (0, workers):
        tree = forms.changed(
            data={"class": "manyfit.data.Splits", "batch_size": 16, "workers": count, **splits}
        )
        runs.append(RunFolder(manyfit.train(tree, folder=f"runs/w{count}", callbacks=[]).folder))
        (forms.root / f"runs/w{count}.trace").write_text("[0, []]\n")
    assert difference(*runs) == ""
    with (runs[1].reports / "test.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(i) for i in range(64)]


def test_an_iterable_that_is_shorter_than_it_says(project):
    source = IterableSource(lambda: iter([(np.zeros(2), 0)] * 5), count=7)
    with pytest.raises(UsageError, match="ended after 5"):
        list(once(source, 2))
    with pytest.raises(UsageError, match="only once"):
        IterableSource(iter([1, 2]))
    assert len(IterableSource(lambda: iter([(np.zeros(2), 0)] * 5))) == 5


def test_an_iterable_says_that_it_is_read_from_the_beginning(caplog):
    source = IterableSource([(np.full(2, i), i) for i in range(8)])
    (batch,) = [next(iter(source.batches(Order(2, seed=1), 3)))]
    assert batch.index.tolist() == [6, 7]
    assert "dropping 3 batches" in caplog.text


class Squares:
    def __len__(self):
        return 7

    def __getitem__(self, row):
        return {"x": np.float32(row), "target": row**2, "weight": 1.0}


class TestDataset(SourceContract):
    def make(self):
        return DatasetSource(Squares(), ids=list("abcdefg"))


class TestDatasetWithWorkers(SourceContract):
    def make(self):
        return DatasetSource(Squares(), workers=1)


class TestLimited(SourceContract):
    def make(self):
        return Limited(ArraySource(np.arange(20), np.arange(20)), 7)


def test_what_is_not_data(forms):
    with pytest.raises(UsageError, match="must return a source"):
        manyfit.train(forms.changed(data={"class": "sets.Nothing"}), folder="runs/b", callbacks=[])
    with pytest.raises(UsageError, match="'int' is neither a source"):
        Splits(train=3).source("train")
    with pytest.raises(RunFailed, match="must return a tensor, or"):
        manyfit.train(forms.changed(model={"class": "forms.Wrong"}), folder="runs/b", callbacks=[])


def test_a_run_stops_early_and_goes_on_when_one_is_more_patient(project):
    tree = project.changed(train__epochs=30, train__optimizer={"class": "sgd", "lr": 1e-9})
    tree["train"]["stop"] = {"metric": "val_loss", "patience": "2ep", "min_delta": 0.5}
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    assert result.step == 12
    assert "has not been better" in result.summary["stopped"]
    assert RunFolder(result.folder).state() == "finished"
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).trained_steps == 0
    tree["train"]["stop"]["patience"] = "4ep"
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 20
    tree["train"]["stop"] = {"metric": "val_accuracy", "mode": "max", "reach": 0.0}
    assert "has reached" in manyfit.train(tree, folder="runs/c", callbacks=[]).summary["stopped"]


def test_a_loss_that_is_not_a_number_fails_the_run(forms, cli):
    forms.config(forms.changed(train__loss="forms.not_a_number"))
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "train_loss is nan at step 4" in answer.err
    run = RunFolder(forms.run)
    assert run.state() == "failed"
    assert run.failure()["kind"] == "not a number"
    assert "failed" in cli("list").out
    assert "not a number" in cli("show", "runs/a").out
    forms.config(forms.changed())
    assert cli("train", "runs/a").code == 0, "no checkpoint: the run may be started with another loss"
    assert run.state() == "finished"


def test_a_run_that_diverges(project):
    tree = project.changed(train__epochs=20, train__optimizer={"class": "sgd", "lr": 50.0})
    tree["train"]["guard"] = {"divergence": 2.0}
    with pytest.raises(RunFailed, match="more than 2 times the lowest"):
        manyfit.train(tree, folder="runs/b", callbacks=[])
    assert RunFolder(project.root / "runs/b").failure()["kind"] == "diverged"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train__every": {"validate": "5s"}}, "measured at time intervals"),
        ({"train__every": {"validate": "0ep"}}, "more than 0"),
        ({"train__every": {"validate": "5 ep"}}, "train.every.validate"),
        ({"train__every": {"log": "5m"}}, "train.every.log"),
        ({"train__stop": {"metric": "val_loss"}}, "this never stops a run"),
        ({"train__stop": {"metric": "val_los", "patience": "1ep"}}, "did you mean: val_loss"),
        ({"train__stop": {"metric": "val_loss", "patience": "9s"}}, "patience cannot be in seconds"),
        ({"train__groups": [{"match": "("}]}, "invalid regular expression"),
        ({"train__freeze": [{"epochs": 2}]}, "either match or up_to"),
        ({"train__precision": "fp8"}, "one of"),
        ({"train__ema": 1.5}, "train.ema"),
        ({"train__accumulate": 0}, "train.accumulate"),
        ({"train__scheduler": {"a": {"class": "step", "step_size": 1}}}, "no optimizer of this name"),
    ],
)  # fmt: skip
def test_mistakes(project, cli, changes, says):
    project.config(project.changed(**changes))
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert says in answer.err


def test_time_may_decide_if_the_run_says_so(project):
    tree = project.changed(
        train__every={"validate": "0.001s", "log": "0.001s", "checkpoint": "0.001s"},
        train__time_dependent=True,
    )
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 8


def test_modes(project, cli):
    before = sorted(project.run.iterdir())
    for words in (["--fast-dev-run"], ["--debug"]):
        answer = cli("train", "runs/a", *words)
        assert answer.code == 0
        assert "nothing was stored" in answer.out
        assert sorted(project.run.iterdir()) == before
    assert "1 epoch, 1 step\n" in cli("train", "runs/a", "--fast-dev-run").out
    answer = cli(
        "train",
        "runs/a",
        "--limit-train-batches",
        2,
        "--limit-validation-batches",
        1,
        "--limit-test-batches",
        1,
        "--json",
    )
    assert json.loads(answer.out)["step"] == 4
    run = RunFolder(project.run)
    assert run.summary()["splits"]["validation"]["count"] == 16
    assert cli("train", "runs/a").code == 2, "a limited run is another run"
    project.config(project.changed(train__epochs=40), run="o")
    answer = cli("train", "runs/o", "--overfit-batches", 1)
    last = RunFolder(project.root / "runs/o").events()[-1].values
    assert last["val_accuracy"] > 0.9


def test_changes_that_are_named_may_go_on(project, cli):
    cli("train", "runs/a")
    refused = cli("train", "runs/a", "model.dropout=0.5", "train.epochs=3")
    assert refused.code == 2
    assert "--allow-change model.dropout" in refused.err
    answer = cli("train", "runs/a", "model.dropout=0.5", "train.epochs=3", "--allow-change", "model.dropout")
    assert answer.code == 0
    assert cli("train", "runs/a", "model.dropout=0.5", "train.epochs=4").code == 0, (
        "it is the run's own value now"
    )
    sessions = json.loads((project.run / "provenance.json").read_text())["sessions"]
    assert sessions[1]["allowed_changes"] == ["model.dropout"]


def test_changed_code_is_noticed_and_comments_are_not(project):
    import sys

    manyfit.train("runs/a", callbacks=[])
    file = project.src / "models.py"
    text = file.read_text()

    def train(epochs, **options):
        sys.modules.pop("models")
        return manyfit.train("runs/a", [f"train.epochs={epochs}"], callbacks=[], **options)

    file.write_text(text.replace("class MLP", "# a comment\nclass MLP") + "\n\n# another\n")
    assert train(3).step == 12
    file.write_text(text.replace("nn.ReLU()", "nn.Tanh()"))
    with pytest.raises(RunConflict, match=r"code .* has changed since it was trained: models") as caught:
        train(4)
    assert "--allow-change code.models" in str(caught.value)
    assert train(4, allow_change=["code.models"]).step == 16
    assert train(5).step == 20


def test_a_schedule_is_trained_past_its_end_if_that_is_asked_for(project):
    tree = project.changed(train__scheduler={"class": "one_cycle", "max_lr": 0.1})
    manyfit.train(tree, folder="runs/b", callbacks=[])
    with pytest.raises(RunConflict, match=r"--allow-change train\.horizon"):
        manyfit.train(tree, ["train.epochs=4"], folder="runs/b", callbacks=[])
    result = manyfit.train(
        tree, ["train.epochs=4"], folder="runs/b", callbacks=[], allow_change=["train.horizon"]
    )
    rates = [e.values["lr"] for e in result.history]
    assert rates[1] == rates[2] == rates[3] or rates[2] == rates[3] < rates[1]


def test_what_is_kept_on_disk(project):
    tree = project.changed(train__epochs=8, train__every={"checkpoint": "1ep"})
    tree["export"] = {"metric": "val_loss", "keep": 3, "top": 2}
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    kept = {c.step for c in RunFolder(result.folder).checkpoints()}
    ranked = sorted(result.history, key=lambda e: (e.values["val_loss"], e.step))
    assert {24, 28, 32} <= kept
    assert {e.step for e in ranked[:2]} <= kept
    assert len(kept) <= 5


def test_by_default_only_the_end_of_a_short_run_is_written(project, monkeypatch):
    from manyfit.store import checkpoint

    written = []
    real = checkpoint.save_checkpoint
    monkeypatch.setattr(
        checkpoint,
        "save_checkpoint",
        lambda folder, state, note, *rest: (written.append(note.step), real(folder, state, note, *rest))[1],
    )
    result = manyfit.train("runs/a", ["train.epochs=10"], callbacks=[])
    assert written[-1] == 40
    assert set(written) <= {40, result.best_step}
