"""Lightning modules as models: their steps, optimizers, schedules, hooks and logged values."""

import inspect
import re

import pytest
from tests.lazy import needs
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import ConfigError, UsageError

pytestmark = needs("lightning")

MODULES = '''
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassF1Score
from torchmetrics.functional.classification import multiclass_f1_score


class Gan(LightningModule):
    """Two optimizers, stepped by hand."""

    def __init__(self, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.maker = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 64))
        self.critic = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        maker, critic = self.optimizers()
        real, _ = batch
        ones, zeros = torch.ones(len(real), 1, device=self.device), torch.zeros(len(real), 1, device=self.device)
        fake = self.maker(torch.randn(len(real), 8, device=self.device))
        loss = F.binary_cross_entropy_with_logits
        critic_loss = loss(self.critic(real), ones) + loss(self.critic(fake.detach()), zeros)
        critic.zero_grad()
        self.manual_backward(critic_loss)
        critic.step()
        with maker.toggle_model():
            maker_loss = loss(self.critic(fake), ones)
            maker.zero_grad()
            self.manual_backward(maker_loss)
            maker.step()
        self.log_dict({"maker_loss": maker_loss, "critic_loss": critic_loss}, prog_bar=True)

    def configure_optimizers(self):
        rate = self.hparams.lr
        return torch.optim.Adam(self.maker.parameters(), lr=rate), torch.optim.Adam(self.critic.parameters(), lr=rate)


class Classifier(LightningModule):
    """A scheduler that monitors a metric, metrics of a whole split, and hooks that count."""

    def __init__(self, form: str = "dict"):
        super().__init__()
        self.form, self.seen, self.epochs, self.clipped = form, 0, [], 0
        self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen += 1
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        self.log("train_seen", float(self.seen))
        return {"loss": loss}

    def on_train_epoch_end(self):
        self.epochs.append(self.current_epoch)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def on_validation_epoch_end(self):
        self.log("val_epochs", float(len(self.epochs)))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_error", (self(x).argmax(1) != y).float().mean())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clipped += 1
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        step = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        return {
            "one": optimizer,
            "list": [optimizer],
            "pair": ([optimizer], [step]),
            "dict": {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}},
            "dicts": [{"optimizer": optimizer, "lr_scheduler": {"scheduler": step, "interval": "step", "frequency": 2}}],
            "missing": {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_los"}},
            "unmonitored": {"optimizer": optimizer, "lr_scheduler": plateau},
            "odd": {"optimizer": optimizer, "lr_scheduler": {"scheduler": step, "intervall": "step"}},
            "nothing": [],
            "closure": torch.optim.LBFGS(self.parameters()),
        }[self.form]


class Hooked(Classifier):
    """Logs after its epochs, and returns what it measures."""

    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx)["loss"], "train_last": self.trainer.is_last_batch * torch.ones(())}

    def on_train_epoch_end(self):
        self.log("train_epoch_seen", float(self.seen))
        self.log("val_watched", self.trainer.callback_metrics["val_loss"] * 2)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return {"val_loss": F.cross_entropy(self(x), y), "val_rows": torch.tensor(float(len(y)))}


class Part(LightningModule):
    """A part of another module, which logs, too."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 10)

    def forward(self, x):
        scores = self.net(x)
        if self.training:
            self.log("part_rows", float(len(x)))
        return scores


class Measured(LightningModule):
    """Metrics of torchmetrics in training and validation, and what is known in the hooks."""

    def __init__(self):
        super().__init__()
        self.part = Part()
        self.one, self.two, self.three, self.val = (MulticlassF1Score(10, average="macro") for _ in range(4))
        self.seen, self.last = [], 0

    def forward(self, x):
        return self.part(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.one(scores, y)
        self.log("train_one", self.one, on_epoch=True, prog_bar=True)
        self.two.update(scores, y)
        self.log("train_two", self.two)
        self.three(scores, y)
        self.seen.append((scores.detach(), y))
        if self.logger is not None:
            self.logger.log_metrics({"guarded": 1.0})
        return F.cross_entropy(scores, y)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.last = self.global_step

    def on_train_epoch_end(self):
        self.log("train_three", self.three)
        scores, target = (torch.cat(parts) for parts in zip(*self.seen))
        self.seen = []
        self.log("train_truth", multiclass_f1_score(scores, target, 10, average="macro"))
        self.log("train_last", float(self.last))
        self.print("an epoch is over")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.val.update(scores, y)
        self.log("val_f1", self.val)
        self.log("val_loss", F.cross_entropy(scores, y))

    def on_validation_epoch_end(self):
        self.log("known_loss", self.trainer.callback_metrics["val_loss"])
        self.log("known_f1", self.trainer.callback_metrics["val_f1"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Loads(Classifier):
    def train_dataloader(self):
        return []


class Saves(Classifier):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = 1
'''


@pytest.fixture
def lit(project):
    project.write("src/lit.py", MODULES)
    return project


def tree(lit, name, epochs=3, **params):
    return {
        "seed": 3, "data": {"class": "points.Blobs", "batch_size": 16}, "model": {"class": f"lit.{name}", **params},
        "train": {"epochs": epochs, "clip_norm": 0.5} if name != "Gan" else {"epochs": epochs},
    }  # fmt: skip


def test_two_optimizers_by_hand(lit):
    given = {**tree(lit, "Gan"), "export": {"metric": "train_maker_loss"}}
    row = resumes(lit, given).history[-1].values
    assert {"train_maker_loss", "train_critic_loss", "lr_optimizer_0", "lr_optimizer_1"} <= set(row)
    assert manyfit.load_model("runs/whole").maker[0].weight.shape == (16, 8)


def test_a_scheduler_that_monitors_a_metric(lit):
    result = resumes(lit, tree(lit, "Classifier", 4))
    rates = [event.values["lr"] for event in result.history]
    assert rates[-1] < rates[0]
    assert result.history[-1].values["val_loss"] < result.history[0].values["val_loss"]
    assert result.history[-1].values["train_seen"] == 14.5
    assert [event.values["val_epochs"] for event in result.history] == [0, 1, 2, 3]
    assert 0 <= result.test["error"] <= 1


@pytest.mark.parametrize(
    ("form", "rates"),
    [("one", [0.01] * 2), ("list", [0.01] * 2), ("pair", [0.01, 0.005]), ("dicts", [0.005, 0.00125])],
)
def test_every_form_of_configure_optimizers(lit, form, rates):
    result = manyfit.train(tree(lit, "Classifier", 2, form=form), folder="runs/b", callbacks=[])
    assert [event.values["lr"] for event in result.history] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("Loads", {}, "overrides train_dataloader, which is not supported: set data"),
        ("Saves", {}, "overrides on_save_checkpoint, which is not supported"),
        ("Classifier", {"form": "missing"}, "did you mean 'val_loss'"),
        ("Classifier", {"form": "unmonitored"}, "needs a monitor"),
        ("Classifier", {"form": "odd"}, "did you mean 'interval'"),
        ("Classifier", {"form": "nothing"}, "no optimizer"),
        ("Classifier", {"form": "closure"}, "LBFGS needs the loss several times"),
    ],
)
def test_what_is_not_supported_is_an_error_that_names_it(lit, name, params, says):
    with pytest.raises(UsageError, match=says):
        manyfit.train(tree(lit, name, **params), folder="runs/b", callbacks=[])


def test_what_is_logged_after_an_epoch_is_in_its_row(lit):
    given = {**tree(lit, "Hooked", 3, form="one"), "export": {"metric": "val_watched"}}
    rows = [event.values for event in resumes(lit, given).history]
    assert [row["train_epoch_seen"] for row in rows] == [4, 8, 12]
    assert [row["val_watched"] for row in rows] == pytest.approx([2 * row["val_loss"] for row in rows])
    assert all(row["val_rows"] == 16 and row["train_last"] == 0.25 for row in rows)
    assert not any("val_val" in name for row in rows for name in row)


def test_metrics_cover_whole_epochs_and_hooks_know_them(lit, capsys):
    result = resumes(lit, tree(lit, "Measured", 3), 6)
    rows = [event.values for event in result.history]
    for row in rows:
        assert row["train_one"] == row["train_two"] == row["train_three"] == pytest.approx(row["train_truth"])
        assert row["train_part_rows"] == 16
        assert row["train_guarded"] == 1
        assert row["val_known_f1"] == pytest.approx(row["val_f1"])
        assert row["val_known_loss"] == pytest.approx(row["val_loss"])
    assert [row["train_last"] for row in rows] == [4, 8, 12]
    assert capsys.readouterr().out.count("an epoch is over") == 6


def documented(number, **supplied):
    """Return a function from the documentation of `configure_optimizers`, with its ellipses supplied."""
    from lightning.pytorch import LightningModule

    text = inspect.cleandoc(LightningModule.configure_optimizers.__doc__)
    found = re.findall(r"^    def configure_optimizers.*?^        (?:return )?[)}]$", text, re.M | re.S)
    if len(found) <= number:
        pytest.skip("this version of Lightning documents configure_optimizers without examples")
    code = re.sub(r'"frequency": ".*?"', '"frequency": 1', found[number])
    for old, new in supplied.items():
        code = re.sub(rf"{old}\((\w+, )?\.\.\.\)", rf"{old}(\g<1>{new})", code)
    assert "..." not in code
    return code


DOCUMENTED = """
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from lit import Classifier, F


class Documented(Classifier):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("metric_to_track", F.cross_entropy(self(x), y))

{one}


class Two(Documented):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.log("loss", loss)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def on_train_epoch_end(self):
        waiting, other = self.lr_schedulers()
        waiting.step(self.trainer.callback_metrics["metric_to_track"])
        other.step()

{two}
"""


@pytest.mark.parametrize(("name", "rate"), [("Documented", "lr"), ("Two", "lr_optimizer_0")])
def test_what_lightning_documents_of_its_optimizers(lit, name, rate):
    halves = {"ReduceLROnPlateau": "patience=0, threshold=0.9", "LambdaLR": "lambda epoch: 0.5**epoch"}
    one = documented(0, Adam="self.parameters(), lr=0.01", **halves)
    two = documented(
        1, Adam="self.net[0].parameters(), lr=0.01", SGD="self.net[3].parameters(), lr=0.01", **halves
    )
    lit.write("src/documented.py", DOCUMENTED.format(one=one, two=two))
    given = tree(lit, name, 4)
    given |= {"model": {"class": f"documented.{name}"}, "export": {"metric": "val_metric_to_track"}}
    given["train"] = {"epochs": 4}
    rows = [event.values for event in resumes(lit, given).history]
    assert rows[-1][rate] < rows[0][rate]
    assert rows[-1]["val_metric_to_track"] < rows[0]["val_metric_to_track"]
    if name == "Two":
        assert [row["lr_optimizer_1"] for row in rows] == pytest.approx([0.01, 0.005, 0.0025, 0.00125])


def test_a_data_module_is_the_only_problem(lit):
    lit.write(
        "src/rows.py",
        "from lightning.pytorch import LightningDataModule\n\n\nclass Rows(LightningDataModule):\n    pass\n",
    )
    with pytest.raises(ConfigError, match=r"1 problem(.|\n)*is a LightningDataModule; write a function"):
        manyfit.load_config({**tree(lit, "Classifier"), "data": {"class": "rows.Rows"}})


def test_settings_of_the_config_reach_the_module(lit):
    """Clipping goes through its own hook; accumulation through its step."""
    given = tree(lit, "Classifier", form="one")
    given["train"]["accumulate"] = 2
    result = manyfit.train(given, folder="runs/b", callbacks=[])
    assert manyfit.load_model("runs/b").clipped == 0  # plain attributes are not weights
    assert result.step == 12
    with pytest.raises(UsageError, match="does not apply to manual optimization"):
        manyfit.train(
            {**tree(lit, "Gan"), "train": {"epochs": 1, "clip_norm": 1.0}}, folder="runs/c", callbacks=[]
        )
