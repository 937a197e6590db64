"""The same run on a GPU, where there is one."""

import pytest
import torch

import manyfit

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
