"""Trackers hold every row of the log once, with the log's own times, whatever happened on the way."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from pathlib import Path

import pytest

import manyfit
from manyfit.run.build import user_code as code
from manyfit.run.callbacks import tracking
from manyfit.run.callbacks.tracking import sync_trackers
from manyfit.store.folder import RunFolder


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine, MLflow needs longer to create its database than a user should wait at the end of a run."""
    monkeypatch.setattr(tracking, "PATIENCE", 120.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real MLflow server on loopback, with a SQLite store."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    words = [
        sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/store.db",
        "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=1):
                    break
            except OSError:
                assert process.poll() is None, "the server has ended"
                time.sleep(0.2)
        else:
            pytest.fail("the server does not answer")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def history(client, run_id, name):
    return [(m.step, m.timestamp, m.value) for m in client.get_metric_history(run_id, name)]


def found_runs(address, experiment="test"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    number = client.get_experiment_by_name(experiment).experiment_id
    return client, {run.info.run_name: run for run in client.search_runs([number])}


def expected(run, name):
    return [(e.step, int(e.time * 1000), e.values[name]) for e in RunFolder(Path(run)).events()]


@pytest.mark.parametrize("kind", [pytest.param("server", marks=pytest.mark.soak), "file"])
def test_parameters_metrics_and_reports_are_in_one_place(project, request, kind):
    """Also what was evaluated later, and with other epochs."""
    import mlflow

    address = request.getfixturevalue("server") if kind == "server" else "sqlite:///mlflow.db"
    project.config(project.changed(project_name=f"place-{kind}") | {"track": {"mlflow": address}})
    result = manyfit.train("runs/a", callbacks=[])
    uri = address if kind == "server" else f"sqlite:///{project.root}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(f"place-{kind}").experiment_id
    found = {run.info.run_name: run for run in client.search_runs([experiment])}
    run, evaluation = found["a"], found["a-evaluation"]
    assert run.data.params == evaluation.data.params
    assert run.data.params["model.hidden"] == "8"
    assert run.data.metrics["test_loss"] == evaluation.data.metrics["test_loss"] == result.test["loss"]
    assert run.info.end_time >= run.info.start_time
    assert run.info.status == "FINISHED"
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert names == {"config.yaml", "config.resolved.yaml", "reports"}
    reports = {item.path for item in client.list_artifacts(run.info.run_id, "reports")}
    assert {"reports/test.csv", "reports/validation.csv", "reports/summary.json"} <= reports
    assert not (project.root / "mlruns").exists()
    longer = manyfit.train("runs/a", ["train.epochs=4"], callbacks=[])
    run = client.get_run(run.info.run_id)
    assert run.data.tags["manyfit.train.epochs"] == "4"
    assert run.data.metrics["test_loss"] == longer.test["loss"]
    project.write("src/scores.py", "def one(output, target):\n    return output.sum() * 0 + 1\n")
    project.config(
        project.changed(project_name=f"place-{kind}", train__epochs=4)
        | {"track": {"mlflow": address}, "evaluate": {"functions": {"one": "scores.one"}}}
    )
    manyfit.train("runs/a", callbacks=[])
    manyfit.evaluate("runs/a", "test")
    assert client.get_run(run.info.run_id).data.metrics["test_one"] == 1.0


def test_a_run_in_mlflow(project, server):
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    words = [f"track.mlflow={server}", "train.every.checkpoint=1ep"]
    manyfit.train("runs/a", words, callbacks=[])
    manyfit.train("runs/a", [*words, "train.epochs=5"], callbacks=[])
    client, runs = found_runs(server)
    assert set(runs) == {"a", "a-evaluation"}
    run = runs["a"]
    assert sorted(history(client, run.info.run_id, "val_loss")) == expected(project.run, "val_loss")
    assert run.data.params["model.hidden"] == "8"
    assert run.data.params["train.optimizer.lr"] == "0.01"
    assert run.data.params["train.epochs"] == "2", "as it was first started"
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.source.git.commit"] == head
    evaluation = runs["a-evaluation"]
    assert evaluation.data.tags["manyfit.evaluates"] == run.info.run_id
    summary = RunFolder(project.run).summary()
    assert evaluation.data.metrics["test_accuracy"] == pytest.approx(summary["test"]["accuracy"])
    assert {"validation_loss", "test_loss"} <= set(evaluation.data.metrics)


@pytest.mark.soak
@pytest.mark.parametrize("kills", [1, 3])
def test_killed_and_resumed_each_row_is_there_once(project, server, kills):
    tree = project.changed(train__epochs=150 * kills, train__every={"checkpoint": "3ep"})
    tree |= {"project_name": f"killed-{kills}", "track": {"mlflow": server}}
    project.config(tree, run="k")
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "manyfit", "train", "runs/k"], stderr=subprocess.PIPE, text=True
        )
        for line in process.stderr:
            if line.startswith("epoch"):
                time.sleep(1.0)
                break
        process.kill()
        process.wait()
    manyfit.train("runs/k", callbacks=[])
    client, runs = found_runs(server, f"killed-{kills}")
    assert sorted(history(client, runs["k"].info.run_id, "train_loss")) == expected("runs/k", "train_loss")


def test_a_tracker_that_is_down_delays_nothing_and_is_caught_up(project, server, caplog, monkeypatch):
    monkeypatch.setattr(tracking, "PATIENCE", 3.0)
    nowhere = f"http://127.0.0.1:{free_port()}"
    project.config({**project.changed(train__epochs=3), "project_name": "late"}, run="late")
    result = manyfit.train("runs/late", [f"track.mlflow={nowhere}"], callbacks=[])
    assert result.step == 12
    assert "manyfit track sync runs/late" in caplog.text
    assert sync_trackers(project.root / "runs/late", server)["mlflow"] == 3
    assert sync_trackers(project.root / "runs/late", server)["mlflow"] == 0
    client, runs = found_runs(server, "late")
    assert sorted(history(client, runs["late"].info.run_id, "val_loss")) == expected("runs/late", "val_loss")
    assert "late-evaluation" in runs


@pytest.mark.soak
def test_a_run_that_fails_is_not_running_for_ever(project, server):
    tree = {
        **project.changed(train__loss="models.nan_loss"),
        "project_name": "fails",
        "track": {"mlflow": server},
    }
    file = project.src / "models.py"
    text = file.read_text()
    file.write_text(
        text
        + "\n\ndef nan_loss(output: Tensor, target: Tensor) -> Tensor:\n    return nan_everywhere(output, target).mean()\n"
    )
    with pytest.raises(manyfit.ManyfitError, match="nan"):
        manyfit.train(tree, folder="runs/f", callbacks=[])
    assert found_runs(server, "fails")[1]["f"].info.status == "FAILED"
    tree["train"]["loss"] = "cross_entropy"
    manyfit.train(tree, folder="runs/f", callbacks=[])
    client, _ = found_runs(server, "fails")
    number = client.get_experiment_by_name("fails").experiment_id
    states = {
        run.data.params["train.loss.class"]: run.info.status
        for run in client.search_runs([number])
        if run.info.run_name == "f"
    }
    assert states == {"models.nan_loss": "FAILED", "torch.nn.CrossEntropyLoss": "FINISHED"}


@pytest.mark.soak
def test_a_secret_in_the_address_is_not_written(project, server, monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_SERVER", server.removeprefix("http://"))
    project.config(
        {
            **project.changed(),
            "project_name": "secret",
            "track": {"mlflow": "http://${secret:MANYFIT_TEST_SERVER}"},
        },
        run="s",
    )
    manyfit.train("runs/s", callbacks=[])
    _, runs = found_runs(server, "secret")
    hidden = server.removeprefix("http://")
    assert hidden not in str(runs["s"].data.params)
    for path in (project.root / "runs/s").rglob("*"):
        assert not path.is_file() or hidden.encode() not in path.read_bytes(), path


def test_track_sync_rewrites_tensorboard(project, cli):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    manyfit.train("runs/a", callbacks=[])
    for file in (project.run / "tensorboard").iterdir():
        file.unlink()
    answer = cli("track", "sync", "runs/a")
    assert answer.code == 0
    assert "tensorboard  2" in answer.out
    reader = EventAccumulator(str(project.run / "tensorboard"))
    reader.Reload()
    assert [e.step for e in reader.Scalars("val_loss")] == [4, 8]
    assert cli("track", "sync", "runs/nothere").code == 2
    assert not (project.root / "runs/nothere").exists()


def test_an_mlflow_that_cannot_be_imported_costs_no_run(project, caplog, monkeypatch):
    pytest.importorskip("mlflow")

    def broken():
        raise ImportError("cannot import name 'Store' from 'sqlalchemy'")

    monkeypatch.setattr(tracking, "load_client", broken)
    result = manyfit.train(project.changed(), ["track.mlflow=auto"], folder="runs/b", callbacks=[])
    assert result.test
    assert "MLflow cannot be imported: ImportError: cannot import name" in caplog.text


def test_modules_that_a_thread_imports_disturb_nobody():
    """MLflow imports parts of itself while the code of a run is looked at."""
    over = threading.Event()

    class Odd:
        def __del__(self):
            sum(range(50))  # so that threads change while garbage is collected

    def import_some():
        while not over.is_set():
            for i in range(50):
                sys.modules[f"imported_{i}"] = types.ModuleType("imported")
            for i in range(50):
                del sys.modules[f"imported_{i}"]

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.freeze()  # what is there already need not be looked at each time
    gc.set_threshold(20)
    thread = threading.Thread(target=import_some, daemon=True)
    thread.start()
    try:
        for _ in range(60):  # without the copy, it fails within ten
            odd = Odd()
            odd.itself = odd
            assert code._files("/nowhere/") == {}
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
