"""Trainers in a config and in Python: what they are given, what they log, and what is said about mistakes."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from tests.run.cut import resumes, same
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import manyfit
from manyfit.core.errors import ConfigError, RunConflict, RunFailed, UsageError
from manyfit.store.folder import RunFolder
from manyfit.trainers import Model, Trainer
from manyfit.trainers.common import LernomaticModel

MINE = '''
import torch
from torch import nn
from torch.nn import functional as F
from manyfit.trainers import Trainer


class Plain(Trainer):
    """Nothing of its own."""


class Docstring(Trainer):
    def __init__(self, model, alpha: float = 0.5, **kwargs) -> None:
        """Init code goes here."""

    def train_step(self, batch):
        loss = self.alpha * F.cross_entropy(self.model(batch[0]), batch[1])
        self.backward(loss)
        self.step()
        return loss


class Popped(Trainer):
    def __init__(self, model, **kwargs):
        self.beta = kwargs.pop("beta", 2.0)

    def on_epoch_end(self, row):
        self.beta += 1


class Two(Trainer):
    def __init__(self, **kwargs):
        self.encoder, self.decoder = nn.Linear(64, 4), nn.Linear(4, 64)

    def train_step(self, batch):
        loss = ((self.decoder(self.encoder(batch[0])) - batch[0]) ** 2).mean()
        self.backward(loss)
        self.step("encoder")
        self.step("decoder")
        return {"reconstruction": loss, "double": 2 * loss}

    def val_step(self, batch):
        output = self.decoder(self.encoder(batch[0]))
        return output, {"loss": ((output - batch[0]) ** 2).mean(1), "norm": output.norm()}

    def test_epoch(self):
        return {"rows": sum(len(x) for x, _ in self.test_loader)}

    def predict_step(self, batch):
        return self.decoder(self.encoder(batch[0]))


class ByHand(Trainer):
    """Steps its optimizer without self.backward and self.step."""

    def train_step(self, batch):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


class Accumulates(ByHand):
    """Gradients of three batches, which a pause must not lose."""

    def train_step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        if self.iteration % 3 == 2:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


class Later(Trainer):
    """Gradients of two batches, through the tools."""

    def train_step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.backward(loss / 2)
        if self.iteration % 2:
            self.step()
        return loss


def finish(trainer, is_due):
    if is_due:
        trainer.step()


class Through(Trainer):
    """Steps its optimizer once in an epoch, in a function outside of the class."""

    def train_step(self, batch):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.backward(loss / 4)
        finish(self, self.iteration % 4 == 3)
        return loss


class Twice(Trainer):
    """Steps its optimizer twice for each batch of its own epoch."""

    def train_epoch(self):
        for x, y in self.train_loader:
            for _ in range(2):
                scores = self.model(x)
                loss = F.cross_entropy(scores, y)
                self.backward(loss)
                self.step()
        self.kind = str(scores.dtype)
        return loss


class All(Trainer):
    """The whole training, with the tools."""

    def __init__(self, model, **kwargs):
        self.kind = ""

    def train(self):
        for x, y in self.train_loader:
            scores = self.model(x)
            self.kind = str(scores.dtype)
            loss = F.cross_entropy(scores, y)
            self.advance(loss)
        return loss

    def advance(self, loss):
        self.backward(loss)
        self.step()


class Bare(Trainer):
    def train(self):
        for x, y in self.train_loader:
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()


class Solver(Trainer):
    def __init__(self, model, **kwargs):
        self.solver = torch.optim.LBFGS(self.model.parameters())

    def train_step(self, batch):
        self.backward(F.cross_entropy(self.model(batch[0]), batch[1]))
        self.step("solver")


class Again(Trainer):
    def train_step(self, batch):
        for _ in range(2):
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.backward(loss)
            self.step()
        return loss


class Late(Trainer):
    def on_train_start(self):
        self.ema = nn.Sequential(nn.Linear(2, 2))


class Ends(Trainer):
    def train_step(self, batch):
        return next(iter([]))


class Copies(Trainer):
    def __init__(self, **kwargs):
        self.first, self.second = nn.Linear(64, 10), nn.Linear(10, 10)

    def train_step(self, batch):
        return F.cross_entropy(self.first(batch[0]), batch[1])


class Idle(Trainer):
    def train_step(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1])


class Half(Trainer):
    def train_epoch(self):
        for number, (x, y) in enumerate(self.train_loader):
            loss = F.cross_entropy(self.model(x), y)
            self.backward(loss)
            self.step()
            if number == 1:
                return loss


class Early(Plain):
    def train(self):
        for epoch in range(self.start_epoch, self.num_epochs):
            self.train_epoch()
            if epoch == 1:
                return


class Misspelt(Plain):
    def on_epoch_endd(self, row):
        pass


class Unread(Trainer):
    def __init__(self, model, gamma: float = 1.0, **kwargs):
        self.delta = 1


class Freezes(Trainer):
    def __init__(self, model, **kwargs):
        self.freeze_to("layers.1")

    def on_epoch_end(self, row):
        if row["epoch"] == 1:
            self.unfreeze()


class Grows(Trainer):
    """Trains a further layer from the second epoch on, with an optimizer of the config or of its own."""

    def __init__(self, model, own: bool = False, **kwargs):
        self.late, self.mine = nn.Linear(10, 10), None
        if own:
            self.mine = torch.optim.Adam(self.model.layers[1].parameters(), lr=0.01)

    def on_epoch_start(self):
        if self._bench.epoch == 1:
            grown = self.mine if self.own else self.optimizers["optimizer"]
            grown.add_param_group({"params": self.late.parameters(), "lr": 0.003})

    def train_step(self, batch):
        loss = F.cross_entropy(self.late(self.model(batch[0])), batch[1])
        loss.backward()
        for each in (self.mine, *self.optimizers.values()):
            if each is not None:
                each.step()
                each.zero_grad()
        return loss


class Extended(Trainer):
    """Goes through everything that it extends."""

    def train_step(self, batch):
        self.log("seen", len(batch[1]))
        return super().train_step(batch)

    def train_epoch(self):
        self.epochs_begun = getattr(self, "epochs_begun", 0) + 1
        super().train_epoch()

    def val_epoch(self):
        return {**super().val_epoch(), "begun": self.epochs_begun if hasattr(self, "epochs_begun") else 0}

    def train(self):
        super().train()

    def on_epoch_end(self, row):
        self.log("doubled", 2 * row["val_loss"])

    def on_train_end(self):
        self.log("too_late", 1.0)


class Whole:
    """An object of any class."""

    def __init__(self, width: int = 4):
        self.net = nn.Linear(64, 10)

    def train(self):
        optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(2):
            for x, y in self.train_loader:
                loss = F.cross_entropy(self.net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.last = loss.item()
'''


@pytest.fixture
def mine(project):
    project.write("src/mine.py", MINE)
    return project


def tree(project, name, **changes):
    params = changes.pop("params", {})
    return {**project.changed(**changes), "trainer": {"class": f"mine.{name}", **params}}


def trained(project, name, folder="runs/b", **changes):
    return manyfit.train(tree(project, name, **changes), folder=folder, callbacks=[])


def test_a_trainer_without_overrides_trains_as_the_model_alone(mine):
    manyfit.train(mine.changed(), folder="runs/alone", callbacks=[])
    trained(mine, "Plain", "runs/trainer")
    left, right = (manyfit.load_model(f"runs/{name}").state_dict() for name in ("alone", "trainer"))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_arguments_are_attributes_even_if_init_has_only_a_docstring(mine):
    first = trained(mine, "Docstring", "runs/half")
    other = trained(mine, "Docstring", "runs/whole", params={"alpha": 1.0})
    ratio = other.history[0].values["train_loss"] / first.history[0].values["train_loss"]
    assert 1.5 < ratio < 2.5


def test_keywords_that_init_reads_are_parameters(mine):
    trained(mine, "Popped", params={"beta": 3.0})
    with pytest.raises(ConfigError, match="did you mean: beta"):
        trained(mine, "Popped", "runs/c", params={"betta": 3.0})


def test_networks_of_its_own_with_optimizers_by_name(mine):
    given = tree(
        mine,
        "Two",
        train__loss=None,
        train__metrics=[],
        train__optimizer={"encoder": "adam", "decoder": "sgd"},
    )
    del given["model"]
    result = manyfit.train(given, folder="runs/b", callbacks=[])
    row = result.history[-1].values
    assert {
        "train_loss",
        "train_reconstruction",
        "train_double",
        "lr_encoder",
        "lr_decoder",
        "val_loss",
        "val_norm",
    } <= set(row)
    assert row["train_double"] == pytest.approx(2 * row["train_reconstruction"])
    assert result.test["rows"] == 64
    loaded = manyfit.load_model("runs/b")
    assert {name for name, _ in loaded.named_children()} == {"encoder", "decoder"}
    report = np.genfromtxt("runs/b/reports/test.csv", delimiter=",", names=True, usecols=("loss",))
    assert len(report) == 64
    assert report["loss"].mean() == pytest.approx(result.test["loss"])


@pytest.mark.parametrize(
    "changes", [{"train__accumulate": 2}, {"train__clip_norm": 0.1}, {"train__precision": "fp16"}], ids=str
)
def test_settings_of_a_step_need_the_tools_that_apply_them(mine, changes):
    (key,) = changes
    with pytest.raises(UsageError, match=f"{key.replace('__', '.')} has no effect"):
        trained(mine, "ByHand", **changes)
    result = trained(mine, "Docstring", "runs/c", **changes)
    assert np.isfinite(result.history[-1].values["train_loss"])


def test_tools_do_what_a_plain_module_does(mine):
    """Accumulation and clipping through self.backward and self.step: the same weights as without a trainer."""
    changes = {"train__accumulate": 3, "train__clip_norm": 0.05}
    manyfit.train(mine.changed(**changes), folder="runs/alone", callbacks=[])
    trained(mine, "Docstring", "runs/trainer", params={"alpha": 1.0}, **changes)
    left, right = (manyfit.load_model(f"runs/{name}").state_dict() for name in ("alone", "trainer"))
    assert all(torch.allclose(left[name], right[name], atol=1e-6) for name in left)


@pytest.mark.parametrize("name", ["Later", "Twice", "All"])
def test_half_precision_wherever_the_tools_are_called(mine, name):
    result = trained(mine, name, train__precision="fp16", train__clip_norm=0.5, train__epochs=3)
    first, last = result.history[0].values["train_loss"], result.history[-1].values["train_loss"]
    assert np.isfinite(last)
    assert name == "All" or last < first
    if name != "Later":
        state = RunFolder(mine.root / "runs/b").checkpoints()[-1].load()
        assert "torch.float16" in json.dumps(state.values, default=str)


@pytest.mark.parametrize("name", ["Later", "Through"])
def test_a_pause_before_the_first_step_of_an_optimizer_does_not_matter(mine, name):
    resumes(mine, tree(mine, name, train__clip_norm=0.5), 3)


def test_gradients_that_are_accumulated_by_hand_survive_a_pause(mine):
    resumes(mine, tree(mine, "Accumulates", train__epochs=3), 7)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("Idle", {}, "did not step any optimizer in the first epoch"),
        ("Misspelt", {}, "did you mean on_epoch_end"),
        ("Unread", {"params": {"gamma": 2.0}}, "nothing reads the parameter 'gamma'"),
        ("Plain", {"params": {"num_epochs": 3}}, "supplied by manyfit"),
        ("Bare", {"train__clip_norm": 1.0}, r"train.clip_norm: Bare has its own train\(\); implement"),
        ("Bare", {"train__precision": "fp16"}, r"train.precision: Bare has its own train\(\); implement"),
        ("Solver", {}, "LBFGS needs the loss several times"),
        ("Again", {"train__accumulate": 2}, "steps its optimizer more than once for a batch"),
        ("Late", {}, "Late.on_train_start creates ema, which a resumed run would not have"),
        ("Half", {"train__every": {"log": "2ba"}}, "train.every.log"),
        ("Docstring", {"export": {"metric": "val_los"}}, "did you mean val_loss"),
        ("Plain", {"params": {"alhpa": 1}}, "unknown key"),
    ],
)
def test_mistakes_are_said(mine, name, changes, says):
    given = {**changes}
    further = {"export": given.pop("export")} if "export" in given else {}
    with pytest.raises((UsageError, ConfigError), match=says):
        manyfit.train({**tree(mine, name, **given), **further}, folder="runs/b", callbacks=[])


def test_an_iterator_that_ends_is_an_error_in_the_code_of_the_user(mine):
    with pytest.raises(RunFailed, match=r"failed with StopIteration(.|\n)*src/mine\.py:\d+ in train_step"):
        trained(mine, "Ends")


def test_only_the_parameters_without_an_optimizer_are_named(mine):
    given = tree(mine, "Copies", train__optimizer={"first": {"class": "sgd", "lr": 0.1}}, train__loss=None)
    del given["model"]
    says = r"2 parameters belong to no optimizer \(second.weight, second.bias\).*requires_grad_\(False\)"
    with pytest.raises(UsageError, match=says):
        manyfit.train(given, folder="runs/b", callbacks=[])


def test_an_epoch_that_reads_half_of_its_batches(mine, caplog):
    with caplog.at_level(logging.WARNING, "manyfit"):
        result = trained(mine, "Half")
    assert "has read 2 of 4 batches" in caplog.text
    assert result.step == 8


def test_a_loop_that_ends_early_ends_the_run(mine):
    result = trained(mine, "Early", train__epochs=5)
    assert result.step == 8
    assert "returned after epoch 2" in result.summary["stopped"]
    assert trained(mine, "Early", train__epochs=5).step == 8


def test_what_is_extended_is_called(mine, caplog):
    row = trained(mine, "Extended").history[-1].values
    assert row["train_seen"] == 16
    assert row["train_doubled"] == pytest.approx(2 * row["val_loss"])
    assert "Extended.on_train_end logs train_too_late, but the log has ended" in caplog.text
    assert row["val_begun"] == 2
    assert "val_loss" in row


def test_frozen_layers_are_trained_once_they_are_not_frozen(mine):
    trained(mine, "Freezes", train__epochs=1)
    first = manyfit.load_model("runs/b").layers[1].weight.clone()
    trained(mine, "Freezes", train__epochs=2)
    state = RunFolder(mine.root / "runs/b").checkpoints()[-1].load()
    assert not torch.equal(first, state.tensors["model/layers.1.weight"])


@pytest.mark.parametrize("own", [False, True])
def test_an_optimizer_may_be_given_further_parameters(mine, own, caplog):
    given = tree(mine, "Grows", params={"own": own}, train__epochs=3)
    rows = [event.values for event in resumes(mine, given).history]
    rate = "lr_mine_1" if own else "lr_1"
    assert [row.get(rate) for row in rows] == [None, 0.003, 0.003]
    assert "not kept" not in caplog.text
    if not own:
        given["train"] = {
            **given["train"],
            "epochs": 4,
            "optimizer": {**given["train"]["optimizer"], "lr": 0.05},
        }
        again = manyfit.train(given, folder="runs/parts", callbacks=[], allow_change=["train.optimizer.lr"])
        assert [again.history[-1].values[name] for name in ("lr", "lr_1")] == [0.05, 0.003]


def test_a_config_value_is_not_overwritten_by_a_checkpoint(mine):
    """The trainer changes beta; the config then sets another one."""
    trained(mine, "Popped", params={"beta": 3.0})
    with pytest.raises(RunConflict, match=r"trainer\.beta"):
        trained(mine, "Popped", params={"beta": 7.0}, train__epochs=3)
    given = tree(mine, "Popped", params={"beta": 7.0}, train__epochs=3)
    manyfit.train(given, folder="runs/b", callbacks=[], allow_change=["trainer.beta"])
    values = RunFolder(mine.root / "runs/b").checkpoints()[-1].load().values
    assert "8.0" in json.dumps(values["found"]) or float.hex(8.0) in json.dumps(values["found"])


def test_an_object_of_any_class_is_one_step(mine, caplog):
    given = tree(mine, "Whole", train__loss=None, train__optimizer=None, train__metrics=[])
    del given["model"]
    with caplog.at_level(logging.WARNING, "manyfit"):
        result = manyfit.train(given, folder="runs/b", callbacks=[])
    assert "one step" in caplog.text
    assert result.step == 1
    assert manyfit.load_model("runs/b").net.weight.shape == (10, 64)
    assert manyfit.train(given, folder="runs/b", callbacks=[]).trained_steps == 0


def test_a_study_over_a_trainer_with_halving(mine, cli):
    mine.config(tree(mine, "Docstring", train__epochs=4))
    mine.write(
        "studies/s/study.yaml",
        "base: ../../runs/a/config.yaml\nobjective: {metric: val_loss, mode: min}\n"
        "search: {method: grid, stop: {class: halving, first: 1, factor: 2}}\n"
        "space: {trainer.alpha: [0.1, 0.5, 1.0, 2.0]}\nexecute: {on: inline}\n",
    )
    answer = cli("sweep", "studies/s")
    assert answer.code == 0, answer.err
    assert "not among the best 1 of 2" in answer.err
    assert answer.out.splitlines()[1].split()[-2:] == ["finished", "2"]


# -- in Python ------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.hidden = hidden
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)


class Wrapped(LernomaticModel):
    def __init__(self, hidden=8):
        self.net = Net(hidden)
        self.import_path = "lernomatic.model.new_network.py"
        self.model_name = "Wrapped"


class Rows(Dataset):
    def __init__(self, count=24, shift=0.0):
        self.count, self.shift = count, shift

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        drawn = np.random.RandomState([row, int(self.shift * 10)])
        return torch.tensor(drawn.normal(size=6) + row % 3, dtype=torch.float32), row % 3


class NewTrainer(Trainer):
    def __init__(self, model, **kwargs) -> None:
        """Init code goes here, (eg: get keyword args)"""


def tensors(rows=24, seed=0):
    state = np.random.RandomState(seed)
    target = np.arange(rows) % 3
    inputs = (state.normal(size=(rows, 6)) + target[:, None]).astype(np.float32)
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(target))


GIVEN = {
    "num_epochs": 2,
    "batch_size": 8,
    "loss_function": "CrossEntropyLoss",
    "learning_rate": 0.01,
    "verbose": False,
    "device": "cpu",
}


def test_without_a_folder_nothing_is_kept_and_a_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    trainer = NewTrainer(Net(), train_dataset=tensors(), val_dataset=tensors(seed=1), **GIVEN)
    before = trainer.model.layers[0].weight.clone()
    with caplog.at_level(logging.WARNING, "manyfit"):
        result = trainer.train()
    assert "nothing is kept" in caplog.text
    assert not list(tmp_path.iterdir())
    assert result.step == 6
    assert len(trainer.loss_history) == len(trainer.val_loss_history) == 2
    assert not torch.equal(before, trainer.model.layers[0].weight)
    trainer.set_num_epochs(4)
    assert trainer.train().step == 12
    assert len(trainer.history) == 4


@pytest.mark.parametrize(
    "data", [lambda seed: tensors(seed=seed), lambda seed: Rows(24, float(seed))], ids=["tensors", "rows"]
)
@pytest.mark.parametrize(
    "model", [Net, Wrapped, lambda: nn.Sequential(nn.Linear(6, 3))], ids=["plain", "wrapped", "sequential"]
)
def test_a_folder_holds_a_config_that_goes_on(tmp_path, monkeypatch, cli, data, model):
    """Interrupted in Python, continued on the command line and in Python: as if trained at once."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    first = model()
    start = {name: tensor.clone() for name, tensor in first.state_dict().items()}

    def make(folder, **changes):
        made = model()
        made.load_state_dict(start)
        return NewTrainer(
            made, train_dataset=data(0), val_dataset=data(1), folder=folder, **{**GIVEN, **changes}
        )

    make("runs/a").train()
    answer = cli("train", "runs/a", "train.epochs=3")
    assert answer.code == 0, answer.err
    trainer = make("runs/a", num_epochs=4)
    trainer.train()
    whole = make("runs/b", num_epochs=4)
    whole.train()
    for project in (tmp_path,):
        assert same(type("Here", (), {"root": project}), "a", "b") == ""
    assert trainer.history == whole.history
    assert len(trainer.history) == 4
    left, right = manyfit.load_model("runs/a"), manyfit.load_model("runs/b")
    assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_other_rows_are_refused_and_do_not_replace_those_of_the_run(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)

    def make(seed):
        return NewTrainer(Net(), train_dataset=tensors(seed=seed), folder="runs/a", **GIVEN)

    make(0).train()
    with pytest.raises(RunConflict, match=r"data\.train"):
        make(1).train()
    answer = cli("train", "runs/a", "train.epochs=3")
    assert answer.code == 0, answer.err


def test_loaders_are_taken_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaders = {
        "train_loader": DataLoader(tensors(), batch_size=8, shuffle=True),
        "val_loader": DataLoader(tensors(seed=1), batch_size=6),
    }
    trainer = Trainer(Net(), **loaders, **{k: v for k, v in GIVEN.items() if k != "batch_size"})
    assert trainer.train().step == 6
    assert len(trainer.train_loader) == 3
    assert [len(target) for _, target in trainer.val_loader] == [6] * 4


def test_stop_at_an_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {**GIVEN, "num_epochs": 50, "learning_rate": 0.05, "stop_when_acc": 0.6}
    trainer = Trainer(Net(), train_dataset=tensors(48), val_dataset=tensors(48, seed=1), **given)
    result = trainer.train()
    assert "val_accuracy has reached" in result.summary["stopped"]
    assert trainer.acc_history[-1] >= 0.6


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lerning_rate": 1}, "did you mean 'learning_rate'"),
        ({"start_epoch": 3, "train_dataset": 1}, "start_epoch"),
        ({}, "nothing to train on"),
        ({"train_loader": [1]}, "must be a torch DataLoader"),
        ({"train_dataset": 1, "train_loader": 1}, "both given"),
    ],
)
def test_mistakes_in_python_are_said(given, says):
    with pytest.raises(UsageError, match=says):
        Trainer(Net(), **given).train()


def test_what_a_config_cannot_hold_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Local(nn.Module):
        pass

    with pytest.raises(UsageError, match="inside a function"):
        Trainer(Local(), train_dataset=tensors(), folder="runs/a").train()
    odd = nn.Linear(6, 3)
    odd.in_features = 7
    with pytest.raises(UsageError, match="cannot be built again"):
        Trainer(odd, train_dataset=tensors(), folder="runs/a").train()
    assert not (tmp_path / "runs/a/checkpoints").exists()


def test_a_model_knows_how_to_rebuild_itself(caplog):
    class Inner(Model):
        def __init__(self, width, *, depth=1):
            self.net = nn.Linear(width, depth)

    made = Inner(3, depth=2)
    assert made.get_arguments() == {"width": 3, "depth": 2}
    assert made(torch.zeros(1, 3)).shape == (1, 2)
    with caplog.at_level(logging.WARNING, "manyfit"):
        assert Wrapped().get_class_path().endswith("test_trainer.Wrapped")
    assert "lead nowhere" in caplog.text
    assert Wrapped().get_import_path() == "lernomatic.model.new_network"


def test_methods_outside_of_training_say_so():
    with pytest.raises(UsageError, match="only during training"):
        Trainer(Net()).train_epoch()
    with pytest.raises(UsageError, match="only during training"):
        Trainer(Net()).backward(torch.zeros(()))


def test_a_plateau_waits_for_any_loss(mine):
    """A training loss, whatever is logged when; and a mistake in its name is said."""
    plan = {
        "train__scheduler": {"class": "plateau", "patience": 0, "threshold": 0.9},
        "train__scheduler_metric": "train_loss",
    }
    rates = []
    for every in ("1ep", "3ep"):
        result = trained(
            mine, "Docstring", f"runs/{every}", train__epochs=3, train__every={"log": every}, **plan
        )
        rates.append(result.history[-1].values["lr"])
    assert rates[0] == rates[1] < 0.01
    with pytest.raises(ConfigError, match="scheduler_metric"):
        manyfit.train(
            mine.changed(**{**plan, "train__scheduler_metric": "val_los"}), folder="runs/c", callbacks=[]
        )


def test_getters_and_setters_of_a_model_may_be_overridden():
    class Both(Model):
        def __init__(self):
            self.net, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

        def get_net_state_dict(self):
            return {"a": self.net.state_dict(), "b": self.head.state_dict()}["a"]

        def set_net_state_dict(self, state):
            self.net.load_state_dict(state)

    left, right = Both(), Both()
    right.load_state_dict(left.state_dict())
    assert torch.equal(left.net.weight, right.net.weight)
    assert not torch.equal(left.head.weight, right.head.weight)


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))],
)
@pytest.mark.parametrize("name", ["Step", "Epoch", "Loop"])
def test_devices(project, name, device):
    """Networks, batches and generators are on the device of the config; it resumes exactly there."""

    project.write(
        "src/placed.py",
        """
        import torch
        from torch import nn
        from manyfit.trainers import Trainer

        class Step(Trainer):
            def __init__(self, **kwargs):
                self.net = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 64))
                self.drawn = torch.Generator(self.device).manual_seed(1)
                self.smooth = torch.zeros(64, device=self.device)

            def train_step(self, batch):
                assert batch[0].device.type == self.device.type
                noise = torch.randn(batch[0].shape, generator=self.drawn, device=self.device)
                output = self.net(batch[0] + noise)
                self.smooth = 0.9 * self.smooth + 0.1 * output.detach().mean(0)
                loss = ((output - batch[0]) ** 2).mean() + self.smooth.norm() * output.mean()
                self.backward(loss)
                self.step()
                return loss

            def val_step(self, batch):
                return ((self.net(batch[0]) - batch[0]) ** 2).mean(1)

        class Epoch(Step):
            def train_epoch(self):
                for batch in self.train_loader:
                    self.train_step(batch)

        class Loop(Step):
            def train(self):
                for _ in range(self.start_epoch, self.num_epochs):
                    self.train_epoch()
                    self.val_epoch()
        """,
    )
    tree = {
        "seed": 3, "data": {"class": "points.Blobs", "batch_size": 16}, "trainer": {"class": f"placed.{name}"},
        "train": {"epochs": 3, "optimizer": "adam", "device": device, "clip_norm": 1.0},
    }  # fmt: skip
    resumes(project, tree, 8)


COMBINED = """
import torch
from torch import nn
from torch.nn import functional as F
from manyfit.trainers import Trainer


class OwnEpoch(Trainer):
    def __init__(self, model, **kwargs):
        self.lengths = []

    def train_epoch(self):
        batches = list(self.train_loader)
        self.lengths.append([len(self.train_loader), len(batches)])
        for x, y in batches:
            self.backward(F.cross_entropy(self.model(x), y))
            self.step()


class Scored(Trainer):
    def val_step(self, batch):
        x, y = batch
        return {"loss": F.cross_entropy(self.model(x), y, reduction="none")}


class Silent(Trainer):
    def __init__(self, **kwargs):
        self.net = nn.Linear(64, 64)

    def train_step(self, batch):
        self.backward((self.net(batch[0]) ** 2).mean())
        self.step()
"""


@pytest.fixture
def combined(project):
    project.write("src/mine.py", COMBINED)
    return project


def test_frozen_parameters_stay_so_in_an_epoch_of_its_own(combined):
    trained(combined, "OwnEpoch", train__epochs=1, train__freeze=[{"up_to": "layers.1", "epochs": 1}])
    first = manyfit.load_model("runs/b").layers[1].weight.clone()
    trained(
        combined, "OwnEpoch", "runs/c", train__epochs=2, train__freeze=[{"up_to": "layers.1", "epochs": 1}]
    )
    state = RunFolder(combined.root / "runs/c").checkpoints()[-1].load()
    trained(combined, "OwnEpoch", "runs/d", train__epochs=1)
    assert not torch.equal(first, manyfit.load_model("runs/d").layers[1].weight)
    assert not torch.equal(first, state.tensors["model/layers.1.weight"])


def test_the_length_of_a_loader_is_the_number_of_its_batches(tmp_path, monkeypatch):
    """Also if the last batch is dropped."""
    monkeypatch.chdir(tmp_path)
    given = {key: value for key, value in GIVEN.items() if key != "batch_size"}
    trainer = Trainer(Net(), train_loader=DataLoader(tensors(22), batch_size=8, drop_last=True), **given)
    assert trainer.train().step == 4
    assert len(trainer.train_loader) == len(list(trainer.train_loader)) == 2


def test_averages_that_nobody_would_evaluate_are_refused(combined):
    with pytest.raises(UsageError, match="evaluates its own networks"):
        trained(combined, "Scored", train__ema=0.9)


def test_new_rows_without_targets_are_predicted_not_scored(combined, tmp_path):
    """Two rows: `x, y = batch` would take them for inputs and targets."""
    trained(combined, "Scored", train__epochs=1)
    np.savez(tmp_path / "new.npz", inputs=np.zeros((2, 64), dtype=np.float32))
    assert len(manyfit.predict("runs/b", data=tmp_path / "new.npz")["prediction"]) == 2
    given = tree(combined, "Silent", train__loss=None, train__metrics=[])
    del given["model"]
    manyfit.train(given, folder="runs/c", callbacks=[])
    with pytest.raises(UsageError, match="has no predictions"):
        manyfit.predict("runs/c", data=tmp_path / "new.npz")
    with pytest.raises(UsageError, match="nothing to export"):
        manyfit.export("runs/c", ["torch"])
