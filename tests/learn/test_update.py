"""Optimizers, their options and their state, and frozen parameters."""

from tests.run.cut import resumes, same

import manyfit
from manyfit.store.folder import RunFolder


def test_a_changed_option_of_the_optimizer_counts(project):
    manyfit.train("runs/a", callbacks=[])
    words = ["train.epochs=3", "train.optimizer.lr=0.5", "train.optimizer.weight_decay=0.3"]
    allowed = ["train.optimizer.lr", "train.optimizer.weight_decay"]
    result = manyfit.train("runs/a", words, callbacks=[], allow_change=allowed)
    assert result.history[-1].values["lr"] == 0.5


def test_optimizers_in_a_list_are_kept(project):
    project.write(
        "src/own.py",
        """
        import torch
        from torch.nn import functional as F
        from models import MLP

        class Own(MLP):
            def __init__(self) -> None:
                super().__init__(8)
                self.several = [torch.optim.Adam(self.parameters(), lr=0.01)]

            def forward(self, images, target=None):
                output = super().forward(images)
                if self.training:
                    self.several[0].zero_grad()
                    F.cross_entropy(output, target).backward()
                    self.several[0].step()
                return output, None
        """,
    )
    tree = project.changed(model={"class": "own.Own"}, train__loss=None, train__optimizer=None)
    manyfit.train(tree, ["train.epochs=4"], folder="runs/b", callbacks=[])
    manyfit.train(tree, folder="runs/c", callbacks=[])
    manyfit.train(tree, ["train.epochs=4"], folder="runs/c", callbacks=[])
    assert same(project, "b", "c") == ""


def test_frozen_at_first_with_fp16(project):
    project.write(
        "src/two.py",
        """
        from torch import nn

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

            def forward(self, images):
                return self.b(self.a(images))
        """,
    )
    optimizers = {"a": {"class": "adam"}, "b": {"class": "adam"}}
    tree = project.changed(model={"class": "two.Two"}, train__optimizer=optimizers, train__precision="fp16",
                           train__freeze=[{"match": "^a", "epochs": 1}], train__clip_norm=1.0)  # fmt: skip
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 8
    tree["train"]["freeze"] = [{"match": ".", "epochs": 1}]
    assert manyfit.train(tree, folder="runs/c", callbacks=[]).step == 8
    tree["train"]["freeze"] = ["^a", {"match": "^a", "epochs": 1}]
    del tree["train"]["optimizer"]["a"]
    assert manyfit.train(tree, folder="runs/d", callbacks=[]).step == 8


def test_a_model_that_updates_itself(forms):
    tree = forms.changed(
        train__epochs=4, train__loss=None, train__optimizer=None, model={"class": "forms.UpdatesItself"}
    )
    result = resumes(forms, tree)
    assert "train_loss" not in result.history[-1].values
    assert result.history[-1].values["val_accuracy"] > 0.5
    state = RunFolder(result.folder).checkpoints()[-1].load()
    assert any(name.startswith("found/objects/own") for name in state.tensors)
