"""The same run on a GPU, where there is one."""

import pytest
import torch
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import UsageError

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_and_its_continuation(project, device):
    tree = project.changed(train__device=device, model__dropout=0.2, train__epochs=4)
    whole = manyfit.train(tree, folder="runs/b", callbacks=[])
    manyfit.train(tree, ["train.epochs=2"], folder="runs/c", callbacks=[])
    continued = manyfit.train(tree, folder="runs/c", callbacks=[])
    left, right = ([event.values for event in result.history] for result in (whole, continued))
    assert left == right
    assert next(continued.load_model().parameters()).device.type == "cpu"


@pytest.mark.parametrize("device", DEVICES)
def test_without_dropout_it_agrees_with_the_cpu(project, device):
    tree = project.changed(train__epochs=3)
    here = manyfit.train(tree, ["train.device=cpu"], folder="runs/b", callbacks=[])
    there = manyfit.train(tree, [f"train.device={device}"], folder="runs/c", callbacks=[])
    for left, right in zip(here.history, there.history, strict=True):
        assert left.values == pytest.approx(right.values, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "changes",
    [
        {"train__precision": "fp16", "train__clip_norm": 0.5, "train__accumulate": 2},
        {"train__precision": "bf16", "train__ema": 0.9},
        {"model__dropout": 0.3, "train__scheduler": {"class": "one_cycle", "max_lr": 0.05}},
        {"train__optimizer": {"class": "adamw", "lr": 0.01, "fused": True}, "train__every": {"checkpoint": "3ba", "log": "2ba"}},
    ],
    ids=["fp16", "bf16", "dropout", "fused"],
)  # fmt: skip
def test_cut_short_and_resumed(project, device, changes):
    resumes(project, project.changed(train__device=device, train__epochs=4, **changes))


@pytest.mark.parametrize("device", DEVICES)
def test_a_class_that_the_model_does_not_have_is_said_and_spoils_nothing(project, device):
    model = {"class": "torch.nn.Linear", "in_features": 64, "out_features": 9}
    with pytest.raises(UsageError, match="the model has 9 outputs, but targets range from 0 to 9: see model"):
        manyfit.train(project.changed(model=model, train__device=device), folder="runs/b", callbacks=[])
    assert manyfit.train(project.changed(train__device=device), folder="runs/c", callbacks=[]).step == 8


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_trained_anywhere_is_evaluated_and_exported(project, device):
    result = manyfit.train("runs/a", [f"train.device={device}", "train.ema=0.9"], callbacks=[])
    before = (result.folder / "reports/test.csv").read_bytes()
    assert len(manyfit.evaluate("runs/a")) == 64
    assert (result.folder / "reports/test.csv").read_bytes() == before
    assert len(manyfit.predict("runs/a")["id"]) == 64
    assert [path.name for path in manyfit.export("runs/a", ["torch"])] == ["model.pt2"]


def test_a_gpu_that_is_not_there(project, cli):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = cli("train", "runs/a", "train.device=cuda")
    assert answer.code == 2
    assert "no GPU" in answer.err


def test_a_device_that_does_not_exist(project, cli):
    answer = cli("train", "runs/a", "train.device=gpu9")
    assert answer.code == 2
    assert "gpu9" in answer.err
