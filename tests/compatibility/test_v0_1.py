"""What manyfit 0.1.0 wrote, this version goes on with: runs, trials and studies of `v0_1.zip`."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import manyfit
from manyfit.store.checkpoint import checkpoints
from manyfit.store.folder import RunFolder

WRITTEN = Path(__file__).with_name("v0_1.zip")
KINDS = ["finished", "components", "keras", "estimator", "variant"]
EPOCHS = {"components": "epochs", "keras": "epochs"}


@pytest.fixture
def old(tmp_path, monkeypatch):
    with zipfile.ZipFile(WRITTEN) as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def need(kind):
    if kind == "estimator":
        pytest.importorskip("skops", reason="skops is not installed")
    if kind == "keras":
        pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def files(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "config.resolved.yaml", "run.log")
    }


def test_all_is_listed(old, cli):
    answer = cli("list", "--json", "runs")
    assert answer.code == 0
    states = {row["name"]: row["state"] for row in json.loads(answer.out)}
    assert states == {**dict.fromkeys(KINDS, "finished"), "interrupted": "unfinished"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.soak) if k == "keras" else k for k in KINDS]
)
def test_a_finished_run_is_shown_and_not_trained_again(old, cli, kind):
    need(kind)
    folder = old / "runs" / kind
    before = files(folder)
    shown = json.loads(cli("show", "--json", folder).out)
    assert shown["state"] == "finished"
    result = manyfit.train(folder, callbacks=[])
    assert result.trained_steps == 0
    assert files(folder) == before


def test_runs_are_compared(old, cli):
    answer = cli("compare", "--json", "runs/finished", "runs/estimator")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["rows"] == 16


@pytest.mark.parametrize("kind", ["finished", "components", "keras", "variant"])
def test_a_finished_run_is_trained_further(old, kind):
    need(kind)
    folder = old / "runs" / kind
    before = (folder / "metrics.jsonl").read_bytes()
    last = checkpoints(folder / "checkpoints")[-1].step
    manyfit.train(folder, [f"{EPOCHS.get(kind, 'train.epochs')}=3"], callbacks=[])
    assert (folder / "metrics.jsonl").read_bytes().startswith(before)
    assert checkpoints(folder / "checkpoints")[-1].step == last // 2 * 3


def test_an_interrupted_run_ends_as_one_that_was_not(old):
    folder, other = old / "runs" / "interrupted", old / "runs" / "again"
    other.mkdir()
    (other / "config.yaml").write_bytes((folder / "config.yaml").read_bytes())
    before = (folder / "metrics.jsonl").read_bytes()
    last = checkpoints(folder / "checkpoints")[-1]
    on_cpu = ["train.device=cpu"]  # where it was begun: a GPU draws other random numbers
    result = manyfit.train(folder, on_cpu, callbacks=[])
    assert 0 < last.step < result.step == 18
    assert result.trained_steps == 18 - last.step
    assert (folder / "metrics.jsonl").read_bytes()[: last.log_length] == before[: last.log_length]
    manyfit.train(other, on_cpu, callbacks=[])
    ones, others = (
        [json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (folder, other)
    )
    assert [row["step"] for row in ones] == [row["step"] for row in others]
    for one, two in zip(ones, others, strict=True):  # another processor rounds in another way
        assert one.keys() == two.keys()
        assert [one[k] for k in one if k != "time"] == pytest.approx(
            [two[k] for k in two if k != "time"], rel=1e-4
        )
    weights = [load_file(f / "exported" / "model.safetensors") for f in (folder, other)]
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.soak) if k == "keras" else k for k in KINDS]
)
def test_a_run_is_evaluated_and_exported(old, cli, kind):
    need(kind)
    folder = old / "runs" / kind
    split = "validation" if kind == "variant" else "test"
    report = folder / "reports" / f"{split}.csv"
    before = report.read_text().splitlines()
    report.unlink()
    answer = cli("evaluate", folder, "--split", split, "--trust")
    assert answer.code == 0, answer.err
    again = report.read_text().splitlines()
    assert [line.split(",")[0] for line in again] == [line.split(",")[0] for line in before]
    shutil.rmtree(folder / "exported")
    exported = cli("export", folder, "--trust")
    assert exported.code == 0, exported.err
    assert manyfit.load_model(folder / "exported", trust=True) is not None


def test_an_exported_model_says_what_it_said(old):
    model = manyfit.load_model(old / "runs" / "finished" / "exported", trust=True)
    rows = (old / "runs" / "finished" / "reports" / "test.csv").read_text().splitlines()
    sys.path.insert(0, str(old / "src"))
    try:
        from parts import arrays
    finally:
        sys.path.remove(str(old / "src"))
    with torch.no_grad():
        said = model(torch.from_numpy(arrays("test")[0])).argmax(dim=1)
    column = rows[0].split(",").index("prediction")
    assert [int(row.split(",")[column]) for row in rows[1:]] == said.tolist()


def test_a_study_goes_on_and_reopens_nothing(old, cli):
    folder = old / "studies" / "halving"
    before = json.loads(cli("status", "--json", folder).out)
    rows = {row["point"]: row for row in before["leaderboard"]}
    stopped = {number for number, row in rows.items() if row["state"] == "stopped"}
    assert len(stopped) == 3
    trials = {path.name for path in (folder / "trials").iterdir()}
    answer = cli("sweep", folder)
    assert answer.code == 0, answer.err
    after = json.loads(cli("status", "--json", folder).out)
    now = {row["point"]: row for row in after["leaderboard"]}
    assert after["state"] == "finished"
    assert now.keys() == rows.keys()
    assert {path.name for path in (folder / "trials").iterdir()} == trials
    for number in stopped:
        assert {**now[number], "rank": 0} == {**rows[number], "rank": 0}
    again = cli("sweep", folder)
    assert again.code == 0
    assert "paused" not in again.err


def test_the_fixture_holds_what_it_should(old):
    """That it is what 0.1.0 wrote: paths of classes that have moved since, and a ledger of format 1."""
    database = sqlite3.connect(old / "studies" / "halving" / "ledger.db")
    assert database.execute("select value from meta where key='format'").fetchone() == ("1",)
    database.close()
    assert "manyfit.study.stoppers.Halving" in (old / "studies" / "halving" / "study.yaml").read_text()
    assert "manyfit.learn.metrics." in RunFolder(old / "runs" / "finished").resolved.read_text()
    assert np.isfinite(RunFolder(old / "runs" / "keras").summary()["metrics"]["val_loss"])
