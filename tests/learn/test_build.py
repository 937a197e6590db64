"""Losses, optimizers, frozen parameters and start weights, built from a config."""

import pytest
import torch

import manyfit
from manyfit.core.errors import ConfigError, UsageError
from manyfit.store.folder import RunFolder


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
