"""Every schedule against its formula over the whole training, also after a resume in the middle."""

import json
import math

import pytest
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import ManyfitError

STEPS, RATE = 20, 0.1  # 5 epochs of 4 steps


def cosine(t, total, low=0.0):
    return low + (1 - low) * (1 + math.cos(math.pi * t / total)) / 2


def triangle(t, period):
    return 1 - abs(2 * (t % period) / period - 1)


FORMULAS = {
    "step": ({"class": "step", "step_size": 6}, lambda t: 0.1 ** (t // 6)),
    "multi_step": ({"class": "multi_step", "milestones": [5, 12], "gamma": 0.5}, lambda t: 0.5 ** ((t >= 5) + (t >= 12))),
    "linear": ({"class": "linear", "start_factor": 1.0, "end_factor": 0.1}, lambda t: 1 - 0.9 * t / STEPS),
    "log": ({"class": "log", "end_factor": 0.01}, lambda t: 0.01 ** (t / STEPS)),
    "log by default": ({"class": "log"}, lambda t: 0.001 ** (t / STEPS)),
    "exponential": ({"class": "exponential", "gamma": 0.9}, lambda t: 0.9**t),
    "cosine": ("cosine", lambda t: cosine(t, STEPS)),
    "cosine_restarts": ({"class": "cosine_restarts", "T_0": 4, "T_mult": 2}, lambda t: cosine(t if t < 4 else t - 4 if t < 12 else t - 12, 4 if t < 4 else 8 if t < 12 else 16)),
    "polynomial": ({"class": "polynomial", "power": 2.0}, lambda t: (1 - t / STEPS) ** 2),
    "triangular": ({"class": "triangular", "period": 8}, lambda t: 0.1 + 0.9 * triangle(t, 8)),
    "triangular by default": ({"class": "triangular"}, lambda t: 0.1 + 0.9 * triangle(t, STEPS)),
    "triangular, halving": ({"class": "triangular", "period": 6, "mode": "halving", "low_factor": 0.2}, lambda t: 0.2 + 0.8 * triangle(t, 6) * 0.5 ** (t // 6)),
    "triangular, exponential": ({"class": "triangular", "period": 6, "mode": "exponential", "gamma": 0.9}, lambda t: 0.1 + 0.9 * triangle(t, 6) * 0.9**t),
    "triangular, cosine": ({"class": "triangular", "period": 8, "shape": "cosine"}, lambda t: 0.1 + 0.9 * (1 - math.cos(math.pi * triangle(t, 8))) / 2),
    "cyclic": ({"class": "cyclic", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4, "cycle_momentum": False}, lambda t: 0.1 + 0.9 * triangle(t, 8)),
    "by_epoch": ({"class": "by_epoch", "factors": {5: 0.5, 11: 0.1}}, lambda t: 1.0 if t < 5 else 0.5 if t < 11 else 0.1),
    "warmup": ({"class": "warmup", "steps": 5, "start_factor": 0.2, "then": {"class": "cosine"}}, lambda t: 0.2 + 0.8 * t / 5 if t < 5 else cosine(t - 5, STEPS - 5)),
    "warmup by default": ({"class": "warmup", "share": 0.25}, lambda t: 0.01 + 0.99 * t / 5 if t < 5 else 1.0),
    "warmup and steps": ({"class": "warmup", "steps": 4, "start_factor": 0.5, "then": {"class": "step", "step_size": 5}}, lambda t: 0.5 + 0.5 * t / 4 if t < 4 else 0.1 ** ((t - 4) // 5)),
}  # fmt: skip


def tree_with(project, **train):
    tree = project.changed(train__epochs=5, train__every={"log": "1ba"}, train__metrics=[])
    tree["train"]["optimizer"] = {"class": "sgd", "lr": RATE, "momentum": 0.9}
    return {**tree, "train": {**tree["train"], **train}}


def read_log(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", FORMULAS)
def test_rates_follow_the_formula_also_after_a_resume(project, name):
    given, formula = FORMULAS[name]
    result = resumes(project, tree_with(project, scheduler=given), step=7)
    found = [row["lr"] / RATE for row in read_log(result.folder)]
    assert found == pytest.approx([formula(t) for t in range(STEPS)], rel=1e-9, abs=1e-12)
    assert len(set(found)) > 1 and max(found) > 0


def test_one_cycle_is_that_of_torch(project):
    import torch

    result = resumes(project, tree_with(project, scheduler="one_cycle"), step=7)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    expected = []
    for step in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < STEPS - 1:
            schedule.step()
    assert [row["lr"] for row in read_log(result.folder)] == pytest.approx(expected)


def test_a_schedule_by_epoch_is_stepped_once_an_epoch(project):
    tree = tree_with(project, scheduler={"class": "by_epoch", "factors": {2: 0.1}}, scheduler_every="epoch")
    found = [row["lr"] for row in read_log(manyfit.train(tree, folder="runs/b", callbacks=[]).folder)]
    assert found == pytest.approx([0.1] * 8 + [0.01] * 12)


@pytest.mark.parametrize(
    ("optimizer", "given", "formula"),
    [
        ({"class": "sgd", "lr": 0.1, "momentum": 0.9}, {"class": "linear", "start_factor": 1.0, "end_factor": 0.5}, lambda t: 0.9 * (1 - 0.5 * t / STEPS)),
        ({"class": "adam", "lr": 0.01, "betas": [0.95, 0.99]}, {"class": "triangular", "period": 8}, lambda t: 0.95 * (0.1 + 0.9 * triangle(t, 8))),
        ({"class": "adamw", "lr": 0.01}, {"class": "exponential", "gamma": 0.9}, lambda t: 0.9 * 0.9**t),
    ],
)  # fmt: skip
def test_momentum_has_a_schedule_of_its_own(project, optimizer, given, formula):
    tree = tree_with(project, optimizer=optimizer, scheduler="cosine", momentum_scheduler=given)
    result = resumes(project, tree, step=7)
    rows = read_log(result.folder)
    assert [row["momentum"] for row in rows] == pytest.approx([formula(t) for t in range(STEPS)])
    still = manyfit.train(
        {**tree, "train": {k: v for k, v in tree["train"].items() if k != "momentum_scheduler"}},
        folder="runs/still",
        callbacks=[],
    )
    assert read_log(still.folder)[-1]["train_loss"] != rows[-1]["train_loss"]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"scheduler": {"class": "log", "end_factor": 0.0}}, "end_factor must be positive"),
        ({"scheduler": {"class": "triangular", "period": 1}}, "period must be at least 2"),
        ({"scheduler": {"class": "triangular", "mode": "halfing"}}, "halving"),
        ({"scheduler": {"class": "warmup", "steps": 3, "then": {"class": "plateau"}}}, "cannot follow"),
        ({"momentum_scheduler": "cosine", "optimizer": {"class": "adagrad", "lr": 0.1}}, "no momentum"),
        ({"momentum_scheduler": "plateau"}, "plateau schedule cannot"),
    ],
)
def test_mistakes(project, train, words):
    with pytest.raises(ManyfitError, match=words):
        manyfit.train(tree_with(project, **train), folder="runs/b", callbacks=[])
