"""The first run, end to end."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tests.examples import quick
from tests.run.cut import same

import manyfit
from manyfit.core.errors import ComponentFailed, RunConflict, RunFailed, UsageError
from manyfit.store.folder import RunFolder


def rows(folder):
    """The log without its times."""
    return [(e.step, e.epoch, dict(e.values)) for e in RunFolder(folder).events()]


def test_the_run_folder_is_whole(project, cli):
    answer = cli("train", "runs/a")
    assert answer.code == 0
    assert "a finished" in answer.out
    found = {str(path.relative_to(project.run)) for path in project.run.rglob("*") if path.is_file()}
    assert {"config.yaml", "config.resolved.yaml", "provenance.json", "metrics.jsonl", "run.log", "reports/test.csv",
            "reports/summary.json", "checkpoints/step-000000008/manifest.json",
            "checkpoints/step-000000008/state.safetensors"} <= found  # fmt: skip
    assert [e.step for e in RunFolder(project.run).events()] == [4, 8]


def test_every_test_row_is_there_once_by_its_id(project):
    result = manyfit.train("runs/a", callbacks=[])
    with (project.run / "reports/test.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == [f"test-{i}" for i in range(64)]
    assert list(table[0]) == ["id", "target", "prediction", "confidence", "loss", "accuracy"]
    assert float(np.mean([float(row["loss"]) for row in table])) == pytest.approx(
        result.test["loss"], abs=0, rel=1e-15
    )
    for row in table:
        assert float(row["accuracy"]) == float(row["target"] == row["prediction"])
        assert 0 < float(row["confidence"]) <= 1


def test_predictions_are_those_of_the_model(project):
    result = manyfit.train("runs/a", callbacks=[])
    model = result.load_model()
    source = manyfit.load_config("runs/a").run.data.build().source("test")
    with (project.run / "reports/test.csv").open() as file:
        predicted = [int(row["prediction"]) for row in csv.DictReader(file)]
    assert model(torch.from_numpy(source.inputs)).argmax(1).tolist() == predicted
    assert not model.training


def test_provenance(project):
    subprocess.run(
        "git init -q . && git add -A && git -c user.name=x -c user.email=x@example.com commit -qm x",
        shell=True,
        check=True,
    )
    project.write("src/models.py", (project.src / "models.py").read_text() + "# changed\n")
    manyfit.train("runs/a", ["project_name=${oc.env:HOME}"], callbacks=[])
    (session,) = json.loads((project.run / "provenance.json").read_text())["sessions"]
    assert "+# changed" in session["code"]["diff"]
    assert len(session["code"]["commit"]) == 40
    assert torch.__version__.startswith(session["versions"]["torch"])
    assert set(session["data"]) == {"train", "validation", "test"}
    assert list(session["environment"]) == ["HOME"]
    assert session["threads"] == torch.get_num_threads()


def test_the_same_twice_in_another_process_and_from_python(project, cli):
    """Bit-identical metrics and weights."""
    for name in ("b", "c", "d"):
        project.config(project.changed(model__dropout=0.3), run=name)
    cli("train", "runs/b")
    done = quick.run("manyfit train runs/c", project.root)
    assert "c finished" in done.stdout
    torch.rand(3), random.random(), np.random.rand()
    manyfit.train(project.changed(model__dropout=0.3), folder="runs/e", callbacks=[])
    manyfit.train("runs/d", callbacks=[])
    first = rows(project.root / "runs/b")
    assert len(first) == 2
    for name in ("c", "d", "e"):
        assert rows(project.root / "runs" / name) == first
    weights = [
        (project.root / f"runs/{name}/checkpoints/step-000000008/state.safetensors").read_bytes()
        for name in "bcde"
    ]
    assert len(set(weights)) == 1
    other = manyfit.train(project.changed(model__dropout=0.3, seed=4), folder="runs/f", callbacks=[])
    assert rows(other.folder) != first, "another seed is another run"


def test_global_random_states_are_given_back(project):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    manyfit.train("runs/a", ["train.threads=1"], callbacks=[])
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


def test_again_says_finished_and_more_epochs_continue(project, cli):
    cli("train", "runs/a")
    before = rows(project.run)
    log = (project.run / "metrics.jsonl").read_bytes()
    again = cli("train", "runs/a")
    assert again.code == 0
    assert "is already finished" in again.out
    assert (project.run / "metrics.jsonl").read_bytes() == log
    more = cli("train", "runs/a", "-p", "train.epochs", 4)
    assert "from step 8" in more.err
    assert rows(project.run)[:2] == before
    assert [step for step, _, _ in rows(project.run)] == [4, 8, 12, 16]
    sessions = json.loads((project.run / "provenance.json").read_text())["sessions"]
    assert [session["from_step"] for session in sessions] == [0, 8]


def test_continuing_is_the_same_as_never_having_stopped(project):
    project.config(
        project.changed(model__dropout=0.5, train__scheduler={"class": "step", "step_size": 3}), run="b"
    )
    project.config(
        project.changed(model__dropout=0.5, train__scheduler={"class": "step", "step_size": 3}), run="c"
    )
    manyfit.train("runs/b", ["train.epochs=5"], callbacks=[])
    for epochs in (1, 3, 5):
        manyfit.train("runs/c", [f"train.epochs={epochs}"], callbacks=[])
    assert rows(project.root / "runs/c") == rows(project.root / "runs/b")
    weights = [
        (project.root / f"runs/{name}/checkpoints/step-000000020/state.safetensors").read_bytes()
        for name in "bc"
    ]
    assert weights[0] == weights[1]


def test_the_best_checkpoint_counts(project):
    result = manyfit.train(
        "runs/a",
        ["train.optimizer.lr=30", "train.epochs=6", "train.optimizer.class=sgd", "train.guard.nan=false"],
        callbacks=[],
    )
    losses = {e.step: e.values["val_loss"] for e in result.history}
    best = min(losses, key=lambda step: (losses[step], step))
    assert result.best_step == best
    assert result.metrics["val_loss"] == losses[best]
    assert {best, 24} <= {c.step for c in RunFolder(project.run).checkpoints()}


def test_the_best_can_be_the_highest(project):
    result = manyfit.train(
        "runs/a", {"train.epochs": 5, "export": {"metric": "val_accuracy", "mode": "max"}}, callbacks=[]
    )
    assert result.metrics["val_accuracy"] == max(e.values["val_accuracy"] for e in result.history)


@pytest.mark.parametrize(
    "change", ["model.hidden=9", "seed=4", "train.optimizer.class=sgd", "data.batch_size=8"]
)
def test_another_config_does_not_continue_a_run(project, cli, change):
    cli("train", "runs/a")
    log = (project.run / "metrics.jsonl").read_bytes()
    answer = cli("train", "runs/a", change, "train.epochs=3")
    assert answer.code == 2
    assert f"{change.partition('=')[0]}: " in answer.err
    assert (project.run / "metrics.jsonl").read_bytes() == log


@pytest.mark.parametrize(
    "change", ["project_name=x", "train.threads=1", "train.metrics=[]", "export.metric=train_loss"]
)
def test_neutral_changes_may_continue(project, change):
    manyfit.train("runs/a", callbacks=[])
    assert manyfit.train("runs/a", [change, "train.epochs=3"], callbacks=[]).step == 12


def test_changed_data_does_not_continue_a_run(project):
    manyfit.train("runs/a", callbacks=[])
    text = (project.src / "points.py").read_text()
    (project.src / "points.py").write_text(text.replace("0.5 * state", "0.6 * state"))
    sys.modules.pop("points")
    with pytest.raises(RunConflict, match=r"data .* has changed"):
        manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])


def test_a_schedule_cannot_be_trained_past_its_end(project):
    tree = project.changed(train__scheduler="one_cycle", train__optimizer={"class": "sgd", "lr": 0.1})
    tree["train"]["scheduler"] = {"class": "one_cycle", "max_lr": 0.1}
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    assert result.history[-1].values["lr"] < 1e-4
    with pytest.raises(RunConflict, match="ends after 2 epochs"):
        manyfit.train(tree, ["train.epochs=3"], folder="runs/b", callbacks=[])


@pytest.mark.parametrize(
    "scheduler",
    [{"class": "plateau", "patience": 0, "threshold": 10.0}, {"class": "lambda", "lr_lambda": "models.decay"}, "cosine",
     {"class": "sequential", "schedulers": [{"class": "constant"}, {"class": "exponential", "gamma": 0.5}], "milestones": [1]}],
    ids=["plateau", "lambda", "cosine", "sequential"],
)  # fmt: skip
@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedules_are_stepped_and_resumed(project, scheduler, every):
    horizon = {"class": "cosine", "T_max": 16} if scheduler == "cosine" else scheduler
    tree = project.changed(train__scheduler=horizon, train__scheduler_every=every, train__epochs=4)
    whole = manyfit.train(tree, folder="runs/b", callbacks=[])
    rates = [e.values["lr"] for e in whole.history]
    assert len(set(rates)) > 1
    manyfit.train(tree, ["train.epochs=2"], folder="runs/c", callbacks=[])
    manyfit.train(tree, folder="runs/c", callbacks=[])
    assert rows(project.root / "runs/c") == rows(project.root / "runs/b")


@pytest.mark.parametrize(
    "optimizer",
    [{"class": "lbfgs", "lr": 0.01}, {"class": "sgd", "lr": 0.1, "momentum": 0.9}, {"class": "adafactor"}],
)
def test_other_optimizers(project, optimizer):
    result = manyfit.train(project.changed(train__optimizer=optimizer), folder="runs/b", callbacks=[])
    assert result.history[-1].values["train_loss"] < result.history[0].values["train_loss"]


@pytest.mark.parametrize("loss", ["models.halved", {"class": "torch.nn.functional.cross_entropy", "label_smoothing": 0.1},
                                  {"class": "cross_entropy", "label_smoothing": 0.1}])  # fmt: skip
def test_other_losses(project, loss):
    result = manyfit.train(project.changed(train__loss=loss), folder="runs/b", callbacks=[])
    assert 0 < result.metrics["val_loss"] < 3


def test_a_yaml_file_elsewhere_becomes_a_run(project, cli):
    project.write("small.yaml", "extend: runs/a/config.yaml\nmodel: {hidden: 4}\n")
    assert cli("train", "small.yaml").code == 0
    assert manyfit.load_config("runs/small").model.hidden == 4
    assert "is already finished" in cli("train", "runs/small").out, "the folder stands on its own"


def test_a_dict_needs_a_folder(project):
    with pytest.raises(UsageError, match="folder="):
        manyfit.train(project.changed())


def test_the_users_error_is_one_message_and_the_traceback_is_kept(project, cli):
    project.write(
        "src/models.py",
        (project.src / "models.py").read_text().replace("return self.layers(images)", "return 1 / 0"),
    )
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "Traceback" not in answer.err
    assert "ZeroDivisionError" in answer.err
    assert "models.py" in answer.err
    assert "Traceback" in (project.run / "run.log").read_text()
    assert RunFolder(project.run).state() == "new", "nothing was trained"


def test_a_constructor_that_raises_names_its_place_in_the_config(project):
    with pytest.raises(ComponentFailed, match=r"config\.yaml:\d+: model: building models\.MLP failed"):
        manyfit.train("runs/a", ["model.hidden=-5"], callbacks=[])


def test_a_failed_start_leaves_no_trace_that_blocks_the_next(project):
    with pytest.raises(ComponentFailed):
        manyfit.train("runs/a", ["model.hidden=-5"], callbacks=[])
    assert manyfit.train("runs/a", callbacks=[]).step == 8


def test_a_model_that_returns_something_else(project):
    project.write(
        "src/models.py",
        (project.src / "models.py").read_text().replace("return self.layers(images)", "return 3"),
    )
    with pytest.raises(RunFailed, match="must return a tensor"):
        manyfit.train("runs/a", callbacks=[])


def test_two_owners(project, cli):
    from manyfit.store.lock import hold_lock

    with hold_lock(project.run):
        answer = cli("train", "runs/a")
    assert answer.code == 2
    assert "in use by another process" in answer.err


def test_a_damaged_checkpoint_is_not_trained_from(project, cli):
    cli("train", "runs/a")
    (file,) = project.run.glob("checkpoints/*/state.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    answer = cli("train", "runs/a", "train.epochs=3")
    assert answer.code == 2
    assert "damaged" in answer.err


def test_secrets_never_reach_a_file(project, cli, monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", 'hunter2 "quoted" /päss')
    project.write(
        "src/secret.py",
        """
        from models import *

        class Leaky(MLP):
            def __init__(self, token: Annotated[str, Kind.NEUTRAL]):
                super().__init__()
                self.token = token

            def forward(self, images):
                if self.training:
                    raise ValueError(self.token)
                return super().forward(images)
        """,
    )
    project.config(project.changed(model={"class": "secret.Leaky", "token": "${secret:MANYFIT_TEST_TOKEN}"}))
    subprocess.run(
        "git init -q . && git -c user.name=x -c user.email=x@example.com commit -q --allow-empty -m x",
        shell=True,
        check=True,
    )
    project.write("notes.txt", 'hunter2 "quoted" /päss')
    subprocess.run("git add -A", shell=True, check=True)
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "ValueError" in answer.err
    assert "hunter2" not in answer.err + answer.out
    for path in project.run.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
    assert "${secret:MANYFIT_TEST_TOKEN}" in (project.run / "provenance.json").read_text()


def test_a_secret_in_a_field_of_the_run_itself(project, cli, monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "hunter2-hunter2")
    subprocess.run(
        "git init -q . && git add -A && git -c user.name=x -c user.email=x@example.com commit -qm x",
        shell=True,
        check=True,
    )
    project.write("src/models.py", (project.src / "models.py").read_text() + "# hunter2-hunter2\n")
    words = ["project_name=p-${secret:MANYFIT_TEST_TOKEN}", "-l", "debug"]
    for epochs in (1, 2):
        answer = cli("train", "runs/a", *words, f"train.epochs={epochs}")
        assert answer.code == 0
        assert "hunter2" not in answer.out + answer.err
    assert "hunter2" not in cli("show", "runs/a", "--json").out + cli("config", "show", "runs/a", *words).out
    for path in project.run.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert "# ${secret:MANYFIT_TEST_TOKEN}" in (project.run / "provenance.json").read_text()
    assert manyfit.load_config("runs/a", words[:1]).project_name.reveal() == "p-hunter2-hunter2"


@pytest.mark.parametrize("change", ["train.metrics=[models.nan_everywhere]"])
def test_a_run_that_measures_nan_still_finishes(project, cli, change):
    answer = cli("train", "runs/a", change)
    assert answer.code == 0
    assert RunFolder(project.run).state() == "finished"
    assert "nan" in answer.out
    assert "is already finished" in cli("train", "runs/a", change).out


def test_a_config_that_a_person_wrote_is_never_overwritten(project, cli):
    project.write("a.yaml", "extend: runs/a/config.yaml\nmodel: {hidden: 4}\n")
    before = project.file.read_bytes()
    answer = cli("train", "a.yaml")
    assert answer.code == 2
    assert "is a different config" in answer.err
    assert project.file.read_bytes() == before
    assert cli("train", "a.yaml", "-l", "error").code == 2


def test_metrics_by_name(project):
    tree = project.changed(train__metrics={"top2": {"class": "top_k_accuracy", "k": 2}, "top3": {"class": "top_k_accuracy", "k": 3}},
                           export={"metric": "val_top2", "mode": "max"})  # fmt: skip
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    assert {"val_top2", "val_top3"} <= set(result.metrics)
    assert {"top2", "top3"} <= set(result.test)


def test_a_metric_is_called_what_the_config_calls_it(project):
    tree = project.changed(train__metrics=["models:nan_everywhere"])
    assert "val_nan_everywhere" in manyfit.train(tree, folder="runs/b", callbacks=[]).metrics
    project.config(project.changed(train__metrics=["accuracy"]))
    assert "val_accuracy" in manyfit.train("runs/a", callbacks=[]).metrics


def test_a_metric_that_fails_is_found_before_the_first_step(project, cli):
    answer = cli("train", "runs/a", "train.metrics=[{class: top_k_accuracy, k: 50}]")
    assert answer.code == 1
    assert "the metric 'top_k_accuracy' failed on output (16, 10)" in answer.err
    assert "epoch 1" not in answer.err


@pytest.mark.parametrize(("missing", "says"), [("validation", "no validation rows"), ("test", None)])
def test_data_without_a_split(project, cli, missing, says):
    text = (project.src / "points.py").read_text()
    project.write(
        "src/points.py",
        text.replace(
            "        offset =", f"        if split == {missing!r}:\n            return None\n        offset ="
        ),
    )
    answer = cli("train", "runs/a")
    assert answer.code == 0
    asked = cli("train", "runs/a", "export.metric=val_loss", "train.epochs=3")
    assert asked.code == (2 if says else 0)
    assert (says or "") in asked.err


def test_a_schedule_that_waits_for_validation_needs_some(project, cli):
    text = (project.src / "points.py").read_text()
    project.write(
        "src/points.py",
        text.replace(
            "        offset =", "        if split == 'validation':\n            return None\n        offset ="
        ),
    )
    answer = cli("train", "runs/a", "train.scheduler=plateau")
    assert answer.code == 2
    assert "no validation rows" in answer.err


def test_an_unfinished_run_shows_its_best_epoch_and_not_its_last(project, cli):
    import json

    cli("train", "runs/a", "train.optimizer={class: sgd, lr: 30}", "train.epochs=6", "train.guard.nan=false")
    (project.run / "reports/summary.json").unlink()
    shown = json.loads(cli("show", "runs/a", "--json").out)
    assert shown["state"] == "unfinished"
    assert shown["metrics"]["val_loss"] == min(e.values["val_loss"] for e in RunFolder(project.run).events())
    assert shown["step"] == 24


def test_a_mistake_in_a_metric_changes_nothing_of_a_run(project, cli):
    cli("train", "runs/a")
    before = {
        path: path.read_bytes()
        for path in project.run.rglob("*")
        if path.is_file() and path.name not in ("run.log", ".lock")
    }
    assert (
        cli("train", "runs/a", "train.metrics=[{class: top_k_accuracy, k: 50}]", "train.epochs=3").code == 1
    )
    assert all(path.read_bytes() == data for path, data in before.items())


def test_losses_that_sum(project):
    mean = manyfit.train(project.changed(), folder="runs/b", callbacks=[])
    summed = manyfit.train(project.changed(train__loss={"class": "cross_entropy", "reduction": "sum"},
                                           train__optimizer={"class": "sgd", "lr": 1e-9}), folder="runs/c", callbacks=[])  # fmt: skip
    assert summed.history[0].values["train_loss"] == pytest.approx(
        summed.history[0].values["val_loss"], rel=0.2
    )
    assert 0 < mean.history[0].values["train_loss"] < 5


def test_models_that_draw_from_other_generators_resume_too(project):
    project.write(
        "src/noisy.py",
        """
        import random
        import numpy as np
        from models import MLP

        class Noisy(MLP):
            def forward(self, images):
                return super().forward(images) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())
        """,
    )
    tree = project.changed(model={"class": "noisy.Noisy", "hidden": 8}, train__epochs=4)
    manyfit.train(tree, folder="runs/b", callbacks=[])
    manyfit.train(tree, ["train.epochs=2"], folder="runs/c", callbacks=[])
    manyfit.train(tree, folder="runs/c", callbacks=[])
    assert [r[2]["train_loss"] for r in rows(project.root / "runs/b")] == [
        r[2]["train_loss"] for r in rows(project.root / "runs/c")
    ]


def test_a_model_is_loaded_without_the_secrets_of_others(project, monkeypatch):
    project.write(
        "src/private.py",
        """
        from dataclasses import dataclass
        from typing import Annotated
        from manyfit import Kind

        @dataclass
        class Private:
            token: Annotated[str, Kind.NEUTRAL]
        """,
    )
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "hunter2-hunter2")
    project.config(
        {
            **project.changed(),
            "private": {"class": "private.Private", "token": "${secret:MANYFIT_TEST_TOKEN}"},
        }
    )
    manyfit.train("runs/a", callbacks=[])
    monkeypatch.delenv("MANYFIT_TEST_TOKEN")
    assert manyfit.load_model("runs/a") is not None


def test_a_second_process_that_finishes_first_is_noticed(project, monkeypatch):
    """What lies in the folder is read after the lock was taken, not before."""
    from contextlib import contextmanager

    from manyfit.run.loop import journal as module

    real = module.hold_lock

    @contextmanager
    def late(folder):
        monkeypatch.setattr(module, "hold_lock", real)
        manyfit.train("runs/a", ["seed=99"], callbacks=[])
        with real(folder):
            yield

    monkeypatch.setattr(module, "hold_lock", late)
    with pytest.raises(RunConflict, match="seed: 99 → 3"):
        manyfit.train("runs/a", callbacks=[])
    assert len(rows(project.run)) == 2


def test_the_tensorboard_files_of_a_run(project):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    manyfit.train("runs/a", callbacks=[])
    result = manyfit.train("runs/a", ["train.epochs=4"], callbacks=[])
    reader = EventAccumulator(str(project.run / "tensorboard"))
    reader.Reload()
    found = [(e.step, e.wall_time) for e in reader.Scalars("val_loss")]
    assert found == [(e.step, e.time) for e in result.history]


def test_a_run_is_named_by_its_folder(project, cli, monkeypatch):
    monkeypatch.chdir(project.run)
    assert cli("train", ".").out.startswith("a finished")


def kill_and_resume(project, kills, seed):
    """Killed at random moments, the same command ends with the same weights and the same log."""
    chance = random.Random(seed)
    tree = project.changed(
        train__epochs=60,
        model__dropout=0.2,
        train__scheduler={"class": "step", "step_size": 30},
        train__every={"checkpoint": "1ep"},
    )
    project.config(tree, run="b")
    project.config(tree, run="c")
    manyfit.train("runs/b", callbacks=[])
    killed = 0
    for _ in range(kills):
        process = quick.start(["train", "runs/c"], project.root)
        for line in process.stderr:
            if line.startswith("epoch") and chance.random() < 0.15:
                time.sleep(chance.random() * 0.02)
                process.kill()
                break
        process.stderr.close()
        killed += process.wait() != 0
    manyfit.train("runs/c", callbacks=[])
    assert killed
    assert rows(project.root / "runs/c") == rows(project.root / "runs/b")
    weights = [
        (project.root / f"runs/{name}/checkpoints/step-000000240/state.safetensors").read_bytes()
        for name in "bc"
    ]
    assert weights[0] == weights[1]


@pytest.mark.soak
def test_kill_and_resume(project):
    kill_and_resume(project, kills=1, seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_kill_and_resume_many_times(project, seed):
    kill_and_resume(project, kills=6, seed=seed)


@pytest.mark.parametrize(
    "changes",
    [
        {"train__every": {"log": "5ba"}},
        {"train__every": {"validate": "3ep"}, "train__optimizer": {"class": "sgd", "lr": 3.0}, "train__guard": {"nan": False}},
        {"train__every": {"validate": "3ep"}, "train__stop": {"patience": "3ep"}, "train__optimizer": {"class": "sgd", "lr": 1.0}},
    ],
    ids=["log", "best", "stop"],
)  # fmt: skip
def test_a_longer_run_is_the_same_as_one_that_was_that_long_from_the_start(project, changes):
    tree = project.changed(**changes)
    manyfit.train(tree, ["train.epochs=10"], folder="runs/b", callbacks=[])
    for epochs in (4, 5, 10):
        manyfit.train(tree, [f"train.epochs={epochs}"], folder="runs/c", callbacks=[])
    assert same(project, "b", "c") == ""
    left, right = (RunFolder(project.root / f"runs/{name}").summary()["best_step"] for name in "bc")
    assert left == right
