"""Experiments: from files to the best model and to predictions, in a script and in a notebook, also killed."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbclient
import nbformat
import pytest

from manyfit.cli import init
from manyfit.core.errors import ManyfitError
from manyfit.spec import Experiment
from manyfit.spec.study import find_mode

EXAMPLE = Path(__file__).parents[2] / "examples" / "15_specs"


def test_the_template_is_the_example():
    for name in ("digits.py", "README.md"):
        assert (init.TEMPLATES / "spec" / name).read_text() == (EXAMPLE / name).read_text()


@pytest.fixture
def place(tmp_path, cli):
    assert cli("init", tmp_path / "here", "--template", "spec").code == 0
    return tmp_path / "here"


def start(place):
    return subprocess.Popen(
        [sys.executable, "digits.py"], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def check(place, out):
    """The models, the best of them, and a prediction for every row."""
    models = read_csv(place / "output" / "models.csv")
    assert len(models) == 4
    best = max(models, key=lambda row: float(row["val_accuracy"]))
    assert f"'lr': {best['lr']}, 'width': {best['width']}" in out
    assert float(best["val_accuracy"]) > 0.9
    ids = [row["id"] for row in read_csv(place / "output" / "predictions.csv")]
    assert sorted(ids) == sorted(f"digit-{i}" for i in range(1700, 1797))
    history = read_csv(place / "output" / "history.csv")
    assert len(history) == 12
    return models, history


def run(place):
    process = start(place)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "train: 1200 rows in = 1200 rows out + 0 failed, in 3 shards" in err
    return check(place, out)


def kill(place, seed, kills, only_workers=False, whole=None):
    dice = random.Random(seed)
    whole = whole or run
    shutil.copytree(place, place.with_name("whole"))
    expected = whole(place.with_name("whole"))
    for _ in range(kills):
        process = start(place)
        time.sleep(dice.uniform(4, 9))
        if only_workers:
            below = subprocess.run(
                ["pgrep", "-g", str(process.pid)], capture_output=True, text=True, check=False
            )
            others = [int(pid) for pid in below.stdout.split() if int(pid) != process.pid]
            if others:
                os.kill(dice.choice(others), signal.SIGKILL)
            process.communicate(timeout=200)
        else:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    found = run(place)
    assert found[0] == expected[0]
    times = ("time",)
    assert [{k: v for k, v in row.items() if k not in times} for row in found[1]] == expected[1]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_the_script_is_killed_many_times(place, seed):
    kill(place, seed=40 + seed, kills=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_workers_of_the_script_are_killed(place, seed):
    kill(place, seed=60 + seed, kills=1, only_workers=True)


def run_notebook(place):
    """Run the script as a notebook."""
    text = (place / "digits.py").read_text().partition("\n\nif __name__")[0]
    cells = [nbformat.v4.new_code_cell(source) for source in (text, "main()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(place)}})
    client.execute()
    outputs = [
        output.get("text", "") for output in notebook.cells[1].outputs if output.get("name") == "stdout"
    ]
    return check(place, "".join(outputs))


@pytest.mark.soak
def test_a_killed_script_and_a_notebook_have_the_same_results(place):
    kill(place, seed=3, kills=1, whole=run_notebook)


def test_an_experiment_in_a_notebook(place, cli, monkeypatch):
    run_notebook(place)
    monkeypatch.chdir(place)
    assert "finished" in cli("status", "models/study").out
    facts = json.loads(cli("status", "models/study", "--json").out)
    assert facts["trials"] == {"finished": 4}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "train_main is missing"),
        (
            {"train_main": "t.csv", "tran_dir": "x"},
            "there is no parameter 'tran_dir'; did you mean 'train_dir'",
        ),
    ],
)
def test_params_are_checked(params, message):
    with pytest.raises(ManyfitError, match=message):
        Experiment(params)


def test_the_direction_of_a_metric_is_known_or_asked_for():
    assert find_mode("val_accuracy") == find_mode("val_auc") == find_mode("val_f1") == "max"
    assert find_mode("val_loss") == find_mode("val_error_rate") == find_mode("train_mse") == "min"
    with pytest.raises(ManyfitError, match="Say mode='max' or mode='min'"):
        find_mode("val_novelty")
    for name in ("val_brier_score", "val_inaccuracy", "val_fid_score"):
        with pytest.raises(ManyfitError, match="Say mode"):
            find_mode(name)
    assert find_mode("val_mape") == find_mode("val_jaccard_distance") == "min"


def test_etl_from_the_command_line(place, cli, monkeypatch):
    monkeypatch.chdir(place)
    code = (place / "digits.py").read_text()
    exec(compile(code, "digits.py", "exec"), scope := {"__name__": "digits"})
    scope["write_files"](Path("data"))
    words = [
        "--train-main",
        "data/train.csv",
        "--train-dir",
        "data/objects",
        "--misc",
        "data/scale.txt",
        "--src",
        ".",
    ]
    answer = cli("data", "etl", "digits.Images", *words, "--shards", 4, "--fraction", 0.1)
    assert answer.code == 0, answer.err
    assert "train: 120 rows in = 120 rows out + 0 failed, in 4 shards" in answer.out
    assert "reused" in cli("data", "etl", "digits.Images", *words, "--shards", 4, "--fraction", 0.1).out
    tried = cli("data", "etl", "digits.Images", *words, "--dry-run")
    assert tried.out == "train: 1200 rows; x (1, 8, 8) <f4, y () <i8\n"
    code = code.replace('["file", "label"]', '["fil", "label"]')
    (place / "wrong.py").write_text(code)
    wrong = cli("data", "etl", "wrong.Images", *words, "--dry-run")
    assert wrong.code == 2
    assert "data/train.csv has no column 'fil'; did you mean 'file'?" in wrong.err
    assert re.search("has no class 'Images2'", cli("data", "etl", "digits.Images2", *words).err)
    wrong = cli("data", "etl", "digits.Nets", *words)
    assert wrong.code == 2
    assert "derive it from manyfit.spec.ETLSpec" in wrong.err
