"""The learning rate finder: what it suggests, and that it leaves no trace."""

import json

import numpy as np
import pytest
import torch

import manyfit
from manyfit.config import load_config
from manyfit.core.errors import UsageError
from manyfit.learn.rate_sweep import RatePoint, choose_rate, keep_state, sweep_rates
from manyfit.run.build.builder import build
from manyfit.run.find_lr import find_lr

RATES = [1e-4 * 10 ** (i / 10) for i in range(40)]


def flat(learner):
    (state,) = learner.state()
    return {name: tensor.clone() for name, tensor in state.tensors.items()}, json.dumps(
        state.values, default=str
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train__optimizer": {"class": "sgd", "lr": 0.1, "momentum": 0.9}, "train__scheduler": "one_cycle"},
        {"train__scheduler": {"class": "plateau", "patience": 0}, "train__ema": 0.9},
        {"train__groups": [{"match": "bias$", "options": {"lr": 0.5}}], "train__scheduler": "cosine", "model__dropout": 0.3},
        {"train__precision": "bf16", "train__accumulate": 2},
    ],
    ids=["plain", "one cycle", "plateau, averaged", "groups", "bf16"],
)  # fmt: skip
def test_the_learner_is_left_bit_for_bit(project, changes):
    """Weights, optimizers, schedules, kept values, random states and position; then training goes on as if nothing was."""
    config = load_config(project.changed(**changes))
    plain, swept = build(config), build(config)
    batches = [iter(each.train.batches(each.order, 0)) for each in (plain, swept)]
    for built, source in zip((plain, swept), batches, strict=True):
        built.learner.train(source, 3)
    before, random = flat(swept.learner), torch.get_rng_state()
    points = sweep_rates(swept.learner, iter(swept.train.batches(swept.order, 0)), RATES)
    assert len(points) > 10 and points[0].rate == RATES[0]
    after = flat(swept.learner)
    assert before[1] == after[1]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert torch.equal(random, torch.get_rng_state())
    for built, source in zip((plain, swept), batches, strict=True):
        built.learner.train(source, 3)
    one, two = flat(plain.learner), flat(swept.learner)
    assert all(torch.equal(one[0][name], two[0][name]) for name in one[0])


def test_a_failure_restores_it_too(project):
    built = build(load_config(project.changed()))
    before = flat(built.learner)
    with pytest.raises(ZeroDivisionError), keep_state(built.learner):  # noqa: PT012
        built.learner.train(iter(built.train.batches(built.order, 0)), 2)
        raise ZeroDivisionError
    after = flat(built.learner)
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])


def test_the_suggested_rate_trains_well(project):
    """Far better than a tenth of the lowest rate, and not divergent."""
    tree = project.changed(train__optimizer={"class": "sgd", "lr": 1e-5}, train__epochs=3)
    found = find_lr(tree, low=1e-5, high=100.0, steps=80, seeds=3)
    assert 1e-3 < found.rate < 3
    assert len(found.sweeps) == 3
    losses = {}
    for name, rate in (("found", found.rate), ("low", 1e-5)):
        losses[name] = manyfit.train(
            tree, [f"train.optimizer.lr={rate}"], folder=f"runs/{name}", callbacks=[]
        ).metrics["val_loss"]
    assert losses["found"] < 0.7 * losses["low"]
    by_metric = find_lr(tree, low=1e-4, high=10.0, steps=40, choose="val_accuracy", higher=True)
    assert 1e-3 < by_metric.rate < 10
    assert find_lr(tree, low=1e-5, high=100.0, steps=80, choose="minimum").rate > 1e-4


def test_the_command_changes_nothing_but_writes_what_is_asked(project, cli):
    manyfit.train("runs/a", callbacks=[])
    before = {path: path.read_bytes() for path in sorted(project.run.rglob("*")) if path.is_file()}
    answer = cli(
        "find-lr",
        "runs/a",
        "--steps",
        "40",
        "--low",
        "1e-4",
        "--high",
        "10",
        "--csv",
        "lr.csv",
        "-o",
        "lr.png",
        "--apply",
    )
    assert answer.code == 0, answer.err
    assert {path: path.read_bytes() for path in sorted(project.run.rglob("*")) if path.is_file()} == before
    assert (project.root / "lr.png").read_bytes().startswith(b"\x89PNG")
    assert (project.root / "lr.csv").read_text().startswith("seed,rate,loss,smoothed\n3,0.0001,")
    config = load_config(project.root / "runs/a-lr")
    rate = config.run.train.optimizer.params["lr"]
    assert rate != 0.01 and config.run.model.params["hidden"] == 8
    assert f"train.optimizer.lr: {rate:.3g}" in answer.out


def test_one_of_several_optimizers(forms):
    tree = forms.changed(
        model={"class": "forms.Pair"},
        train__optimizer={"encoder": {"class": "adam", "lr": 0.01}, "decoder": {"class": "sgd", "lr": 0.1}},
    )
    found = find_lr(tree, optimizer="decoder", low=1e-4, high=10.0, steps=40)
    assert found.key == "train.optimizer.decoder.lr"
    with pytest.raises(UsageError, match="several optimizers; choose one of encoder, decoder"):
        find_lr(tree, steps=20)
    with pytest.raises(UsageError, match="did you mean 'decoder'"):
        find_lr(tree, optimizer="decoder_", steps=20)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"low": 1.0, "high": 0.1}, "0 < low < high"), ({"steps": 3}, "at least 10 steps"),
     ({"choose": "val_acuracy", "steps": 20}, "no metric 'val_acuracy' is measured; there are .*val_accuracy"),
     ({"choose": "lowest", "steps": 20}, "choose is steepest, minimum or a metric")],
)  # fmt: skip
def test_mistakes(project, options, words):
    with pytest.raises(UsageError, match=words):
        find_lr(project.changed(), **options)


def test_choices():
    rates = [10 ** (i / 10 - 4) for i in range(50)]
    losses = [1 / (1 + np.exp(3 * (np.log10(rate) + 2))) + max(0, np.log10(rate)) * 9 for rate in rates]
    points = [
        RatePoint(rate, float(loss), {"val_loss": float(loss)})
        for rate, loss in zip(rates, losses, strict=True)
    ]
    assert 3e-3 < choose_rate(points, "steepest") < 5e-2
    assert choose_rate(points, "val_loss") == pytest.approx(rates[int(np.argmin(losses))])
    with pytest.raises(UsageError, match="never falls"):
        choose_rate([RatePoint(rate, float(i), {}) for i, rate in enumerate(rates)], "steepest")


def test_what_is_applied_is_what_was_swept(project, cli):
    project.config(project.changed(train__optimizer="adamw", train__epochs=1))
    assert cli("find-lr", "runs/a", "--steps", "30", "--low", "1e-4", "--high", "10", "--apply").code == 0
    assert load_config(project.root / "runs/a-lr").run.train.optimizer.params["lr"] > 1e-4
    project.config(project.changed(train__groups=[{"match": "bias$", "options": {"lr": 0.001}}]), "g")
    assert (
        cli("find-lr", "runs/g/config.yaml", "--steps", "30", "--low", "1e-4", "--high", "10", "--apply").code
        == 0
    )
    train = load_config(project.root / "runs/g-lr").run.train
    assert train.groups[0].options["lr"] == pytest.approx(0.1 * train.optimizer.params["lr"])
    project.config(project.changed(train__scheduler={"class": "one_cycle", "max_lr": 0.5}), "s")
    answer = cli("find-lr", "runs/s", "--steps", "30", "--low", "1e-4", "--high", "10", "--apply")
    assert answer.code == 2 and "max_lr" in answer.err and not (project.root / "runs/s-lr").exists()
    for words, text in ((["model.hidden=4", "--apply"], "write the overrides"), (["-o", "x.bmp"], "one of .png"),
                        (["--optimizer", "nope"], "only one optimizer")):  # fmt: skip
        answer = cli("find-lr", "runs/g", "--steps", "12", *words)
        assert answer.code == 2 and text in answer.err


def test_an_even_number_of_seeds_has_a_median_in_the_middle(project):
    found = find_lr(project.changed(), low=1e-4, high=10.0, steps=40, seeds=2, choose="minimum")
    rates = sorted(choose_rate(points, "minimum") for points in found.sweeps.values())
    assert found.rate == pytest.approx((rates[0] * rates[1]) ** 0.5)
    with pytest.raises(UsageError, match="needs the folder of a run"):
        find_lr(project.changed(), checkpoint="best")


def test_an_optimizer_of_the_model_is_swept_but_not_written(project, cli):
    project.write(
        "src/own.py",
        """
        import torch
        from models import MLP

        class Own(MLP):
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1e-4)
        """,
    )
    project.config(project.changed(model={"class": "own.Own"}, train__optimizer=None))
    assert cli("find-lr", "runs/a", "--steps", "30", "--low", "1e-3", "--high", "10").code == 0
    answer = cli("find-lr", "runs/a", "--steps", "30", "--apply")
    assert answer.code == 2 and "set in your code" in answer.err
    assert not (project.root / "runs/a-lr").exists()
