"""Runs of five components: trained, resumed, evaluated, exported, searched."""

import csv
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import manyfit
from manyfit import evaluate, export, load_model, predict, sweep, train
from manyfit.core.errors import ConfigError, RunConflict, UsageError
from manyfit.pipeline import Orchestrator
from manyfit.run.resume_proof import Kill, difference, kill_and_resume
from manyfit.store.folder import RunFolder

QUIET = []


def table(file):
    with file.open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("loader", ["Loader", "Endless"])
def test_a_run_has_the_reports_of_the_guide(tiny, loader):
    folder = tiny.write(data_loader_class=f"dataset.{loader}")
    result = train(folder, callbacks=QUIET)
    assert result.step == 20
    validation, test = (table(folder / "reports" / f"{name}_report.csv") for name in ("validation", "eval"))
    assert [row["id"] for row in validation] == [f"v{i}" for i in range(13)]
    assert [row["id"] for row in test] == [f"row-{i}" for i in range(11)]
    assert set(test[0]) == {"id", "error", "right", "top"}
    assert [row["right"] for row in test] == [row["top"] for row in test]
    summary = table(folder / "reports" / "eval_report_summary.csv")
    assert [row[""] for row in summary] == ["count", "mean", "std", "min", "25%", "50%", "75%", "max"]
    mean = np.mean([float(row["error"]) for row in test])
    assert float(summary[1]["error"]) == pytest.approx(mean) == pytest.approx(result.test["error"])
    losses = [-np.log(1 - float(row["error"])) for row in test]
    assert np.mean(losses) == pytest.approx(result.test["loss"], rel=1e-4)


def test_a_finished_run_is_left_alone_and_more_epochs_continue_it(tiny):
    folder = tiny.write()
    train(folder, callbacks=QUIET)
    assert train(folder, callbacks=QUIET).trained_steps == 0
    assert train(folder, ["epochs=3"], callbacks=QUIET).trained_steps == 10
    whole = train(tiny.write("whole"), ["epochs=3"], callbacks=QUIET)
    assert [e.values for e in whole.history] == [e.values for e in RunFolder(folder).events()]
    with pytest.raises(RunConflict, match=r"--allow-change model_builder\.hidden"):
        train(folder, ["model_builder.hidden=9"], callbacks=QUIET)


@pytest.mark.parametrize(
    "kills", [pytest.param([Kill("epoch", 1)], marks=pytest.mark.soak), [Kill("step", 13), Kill("write", 3)]]
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tiny, kills):
    changes = ["train.every.checkpoint=2ba", "augmentor_class=dataset.Noise"]
    source = tiny.write()
    kill_and_resume(source, changes, tiny.root / "runs" / "whole", [])
    assert kill_and_resume(source, changes, tiny.root / "runs" / "killed", kills)
    assert not difference(RunFolder(tiny.root / "runs" / "whole"), RunFolder(tiny.root / "runs" / "killed"))


def test_augmentation_comes_first_and_is_switched(tiny):
    folder = tiny.write(
        augmentor_class="dataset.Noise",
        do_train_augmentation=False,
        do_validation_augmentation=True,
        epochs=1,
    )
    train(folder, callbacks=QUIET)
    from dataset import Noise

    assert set(Noise.calls) == {"validation"}
    Noise.calls.clear()
    train(tiny.write("b", augmentor_class="dataset.Noise", epochs=1), callbacks=QUIET)
    assert set(Noise.calls) == {"train"}


def test_a_module_alone_is_trained_as_the_config_says(tiny):
    how = {"loss": "cross_entropy", "optimizer": {"class": "sgd", "lr": 0.1}, "metrics": ["accuracy"]}
    folder = tiny.write(
        model_builder_class="models.Plain", model_builder={}, train=how,
        export={"metric": "val_accuracy", "mode": "max"},
    )  # fmt: skip
    result = train(folder, callbacks=QUIET)
    assert {"accuracy", "error"} <= set(result.test)
    model = load_model(folder)
    assert isinstance(model, torch.nn.Linear)
    below = {**how, "metrics": {"below": "models.negative"}}
    aim = {"metric": "val_below", "mode": "max"}
    folder = tiny.write("b", model_builder_class="models.Plain", model_builder={}, train=below, export=aim)
    result = train(folder, callbacks=QUIET)
    assert result.metrics["val_below"] == max(e.values["val_below"] for e in result.history) < -1


def test_what_was_trained_can_be_used_later(tiny):
    folder = tiny.write()
    result = train(folder, callbacks=QUIET)
    assert evaluate(folder).values["error"] == pytest.approx(result.test["error"])
    assert len(evaluate(folder, "validation")) == 13
    found = predict(folder)
    rows = table(folder / "reports" / "test.csv")
    assert [str(p) for p in found["prediction"]] == [row["prediction"] for row in rows]
    export(folder, ["safetensors"])
    assert {p.name for p in (folder / "exported").iterdir()} == {"model.json", "model.safetensors"}
    inputs = torch.randn(3, 4)
    assert torch.equal(load_model(folder)(inputs), load_model(folder / "exported")(inputs))
    with pytest.raises(UsageError, match="cannot be exported as keras"):
        export(folder, ["keras"])


@pytest.mark.parametrize(
    "builder",
    ["Builder", *(pytest.param(b, marks=pytest.mark.soak) for b in ("Forest", "Scaled", "KerasBuilder"))],
)
def test_a_received_run_works_in_the_project_that_has_its_code(
    tiny, builder, monkeypatch, tmp_path_factory, project_cli
):
    folder = tiny.write(model_builder_class=f"models.{builder}", model_builder={}, epochs=1)
    train(folder, callbacks=QUIET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.chdir(tiny.root)
    for verb in ("predict", "evaluate", "check"):
        code, said = project_cli(verb, "runs/run")
        assert code == 0, said
    load_model(folder)
    load_model(folder / "exported")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    for verb in ("predict", "evaluate", "export", "check"):
        code, said = project_cli(verb, folder)
        assert code == 2 and "--trust" in said and f"models.{builder}" in said
    with pytest.raises(ConfigError, match=r"trust=True"):
        load_model(folder)


@pytest.mark.soak
@pytest.mark.parametrize("builder", ["Builder", "Forest", "KerasBuilder"])
def test_a_run_that_knows_a_secret_trains_as_any_other(tiny, builder, monkeypatch):
    """Its state is looked at before the first step, also that of a model that has none yet."""
    monkeypatch.setenv("TOKEN", "sUp3rT0kenValue91x")
    track = {"mlflow": "sqlite:///${secret:TOKEN}.db"}
    folder = tiny.write(model_builder_class=f"models.{builder}", model_builder={}, epochs=1, track=track)
    train(folder, callbacks=QUIET)
    train(folder, ["epochs=2"], callbacks=QUIET)
    assert len(predict(folder)) and load_model(folder) and load_model(folder / "exported")
    written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(b"sUp3rT0kenValue91x" in data for data in written)


def test_an_orchestrator_is_train(tiny):
    folder = tiny.write(without=("data_dir",))
    done = Orchestrator(folder, data_dir=tiny.root / "data", overrides=["epochs=1"])
    assert done.run().step == 10
    assert len(done.evaluate("validation")) == 13
    assert manyfit.evaluate(folder).means["error"] == done.evaluate().means["error"]


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_study_over_the_flat_layout(tiny, executor):
    tiny.write()
    study = {
        "base": "runs/run/config.yaml",
        "objective": {"metric": "val_loss", "mode": "min"},
        "space": {"model_builder.hidden": [4, 8], "epochs": [1, 2]},
        "search": {"method": "grid"},
        "execute": {"on": executor, "workers": 2} if executor == "processes" else {"on": executor},
    }
    found = sweep(study, folder=tiny.root / "studies" / "s")
    rows = found.trials
    assert sorted(rows["epochs"].tolist()) == [1, 1, 2, 2]
    assert len(table(tiny.root / "studies" / "s" / "best" / "reports" / "eval_report.csv")) == 11


def test_an_estimator_is_fitted_in_one_step(tiny):
    folder = tiny.write(
        model_builder_class="models.Forest", model_builder={"trees": 7}, epochs=5, seed=3,
    )  # fmt: skip
    result = train(folder, callbacks=QUIET)
    assert result.step == 1 and result.test["top"] > 0.5
    assert train(folder, callbacks=QUIET).trained_steps == 0
    model = load_model(folder / "exported")
    assert len(model.estimators_) == 7
    assert RunFolder(folder).state() == "finished"
    own = train(tiny.write("own", model_builder_class="models.Scaled", model_builder={}), callbacks=QUIET)
    assert "Halved" in repr(load_model(own.folder))
    assert evaluate(folder).values == pytest.approx(result.test)
    again = train(
        tiny.write("again", model_builder_class="models.Forest", model_builder={"trees": 7}, seed=3)
    )
    assert again.test == result.test
    with pytest.raises(UsageError, match=r"train\.clip_norm: does not apply to an estimator"):
        train(
            tiny.write("new", model_builder_class="models.Forest", model_builder={}), ["+train.clip_norm=1.0"]
        )


def test_an_estimator_in_the_layout_of_a_run(project):
    config = {
        "data": {"class": "manyfit.datasets.Digits"},
        "model": {"class": "sklearn.linear_model.LogisticRegression", "max_iter": 30},
        "train": {"epochs": 1, "loss": None, "optimizer": None},
    }
    project.config(config, "lr")
    result = train(project.root / "runs" / "lr", callbacks=QUIET)
    assert result.test["loss"] < 0.5
    summary = json.loads((project.root / "runs" / "lr" / "reports" / "summary.json").read_text())
    assert summary["splits"]["test"]["accuracy"] > 0.9


def test_the_door_opens_with_torch_alone_and_names_the_extra():
    code = """
import sys
for name in ("keras", "tensorflow", "sklearn", "mlflow", "pandas"):
    sys.modules[name] = None
from manyfit.pipeline import *
from manyfit.pipeline.utils import ConfigStruct
try:
    TFKerasTrainer("runs/x")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ExtraMissing") and "manyfit[keras]" in done.stdout


@pytest.mark.soak
def test_mlflow_is_on_by_itself_and_catches_up(tiny, monkeypatch, caplog):
    mlflow = pytest.importorskip("mlflow")
    folder = tiny.write(without=("track",), project_name="guide", epochs=1)
    monkeypatch.setattr("manyfit.run.callbacks.tracking.PATIENCE", 3.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nothing listens there
    train(folder, callbacks=QUIET)
    assert "MLflow is not up to date" in caplog.text
    store = f"sqlite:///{tiny.root / 'later.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    from manyfit.run.callbacks.tracking import sync_trackers

    assert sync_trackers(folder)["mlflow"] == 1
    client = mlflow.MlflowClient(store)
    (experiment,) = client.search_experiments(filter_string="name = 'guide'")
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"run", "run-evaluation"}
    assert found["run"].data.params["model_builder.hidden"] == "8"
    assert found["run"].data.params["data_loader_class"] == "dataset.Loader"
    assert "val_loss" in found["run"].data.metrics
    assert {"test_error", "validation_error"} <= set(found["run-evaluation"].data.metrics)


SBATCH = """#!/bin/bash
echo "$@" >> {log}
echo "Submitted batch job 42"
"""


def test_submit_writes_and_sends_a_job(tiny, monkeypatch, project_cli):
    folder = tiny.write(submit={"time": "00:10:00", "setup": ["export ANSWER=42"], "options": ["--nice"]})
    code, said = project_cli("submit", folder, "--cpus", 3, "--print", "epochs=1")
    assert code == 0 and not (folder / "submit.sh").exists()
    for words in (
        "--time=00:10:00",
        "--cpus-per-task=3",
        "--nice",
        "export ANSWER=42",
        "epochs=1",
        "USR1@120",
    ):
        assert words in said
    bare = tiny.write("bare", without=("data_dir",))
    assert project_cli("submit", bare, "--print")[0] == 2
    code, said = project_cli("submit", bare, "--print", "--data-dir", tiny.root / "data", "submit.cpus=5")
    assert code == 0 and "data_dir=" in said and "--cpus-per-task=5" in said
    code, said = project_cli("submit", folder)
    assert code == 0 and "sbatch was not found" in said
    subprocess.run(["bash", "-n", folder / "submit.sh"], check=True)
    tools, log = tiny.root / "bin", tiny.root / "log"
    tools.mkdir()
    (tools / "sbatch").write_text(SBATCH.format(log=log))
    (tools / "squeue").write_text("#!/bin/bash\necho 1\necho 2\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{__import__('os').environ['PATH']}")
    code, said = project_cli("submit", folder, "--max-queued", 2)
    assert code == 2 and "2 jobs are queued already" in said and not log.exists()
    code, said = project_cli("submit", folder, "--max-queued", 3)
    assert code == 0 and "submitted as job 42" in said and str(folder / "submit.sh") in log.read_text()


def test_an_array_of_jobs_trains_a_study(tiny, monkeypatch, project_cli):
    tiny.write()
    place = tiny.root / "studies" / "s"
    place.mkdir(parents=True)
    (place / "study.yaml").write_text(
        "base: ../../runs/run/config.yaml\nobjective: {metric: val_loss, mode: min}\n"
        "search: {method: grid, seeds: 2}\nspace: {model_builder.hidden: [4, 8]}\n"
    )
    tools = tiny.root / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text(SBATCH.format(log=tiny.root / "log"))
    (tools / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{__import__('os').environ['PATH']}")
    code, said = project_cli("submit", place, "--tasks", 3, "--at-once", 2)
    assert code == 0, said
    assert "--array=0-2%2" in (place / "submit.sh").read_text()
    assert "--dependency=afterany:42" in (tiny.root / "log").read_text()
    for task in range(3):
        code, said = project_cli("study", "share", place, task, 3)
        assert code == 0, said
    trials = sorted(place.glob("trials/*/metrics.jsonl"))
    before = [file.stat().st_mtime_ns for file in trials]
    assert len(trials) == 4
    code, said = project_cli("sweep", place)
    assert code == 0 and "4 finished" in said
    assert [file.stat().st_mtime_ns for file in trials] == before
    assert project_cli("study", "share", place, 3, 3)[0] == 2


def test_the_points_of_a_random_search_are_known_in_advance(tiny, project_cli):
    tiny.write()
    place = tiny.root / "studies/r"
    place.mkdir(parents=True)
    (place / "study.yaml").write_text(
        "base: ../../runs/run/config.yaml\nobjective: {metric: val_loss, mode: min}\n"
        "search: {method: random, trials: 3}\nspace: {model_builder.hidden: {int: [2, 99]}}\n"
    )
    for task in range(2):
        code, said = project_cli("study", "share", place, task, 2)
        assert code == 0, said
    trials = {file: file.stat().st_mtime_ns for file in place.glob("trials/*/metrics.jsonl")}
    assert len(trials) == 3
    code, said = project_cli("sweep", place)
    assert code == 0 and "3 finished" in said
    assert {file: file.stat().st_mtime_ns for file in place.glob("trials/*/metrics.jsonl")} == trials


def test_a_job_passes_the_warning_on_and_queues_itself_again(tiny):
    from manyfit.config.schema.run import Submit
    from manyfit.study.submit import script

    folder = tiny.write()
    tools = tiny.root / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/bash\necho "$@" > {tiny.root}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    waits = ["bash", "-c", "trap 'exit 138' USR1; echo ready; while true; do sleep 0.05; done"]
    (folder / "submit.sh").write_text(script(folder, waits, Submit(), 1))
    job = subprocess.Popen(
        ["bash", folder / "submit.sh"], stdout=subprocess.PIPE, text=True,
        env={"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 138
    assert (tiny.root / "requeued").read_text() == "requeue 7\n"
