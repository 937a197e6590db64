"""ETL on a Ray cluster prepares the same rows as on this machine, and nodes keep what they made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from tests.study.cluster.conftest import BIN, wait_for
from tests.study.test_traveling import assert_same, keep

from manyfit.cli import main
from manyfit.data.prepared import digest_layout, find_layout_folder, list_parts, open_split
from manyfit.study.executors.node_files import list_made, part_key
from manyfit.study.executors.shipment import list_shards

SPEC = """
import os
import time

import helper
import numpy as np

from manyfit.spec import ETLSpec


class Rows(ETLSpec):
    def set_features(self):
        self.features, self.is_feature_download = ["file"], [True]

    def initialize_worker(self):
        self.noise = np.random.RandomState

    def read_misc(self, misc_path):
        with open(misc_path + "shift.txt") as file:
            self.shift = float(file.read())

    def row_prep(self, row, mode, object_dir):
        time.sleep(float(os.environ.get("PACE", "0")))
        if row.file == "bad.txt":
            raise ValueError("on purpose")
        with open(object_dir + row.file) as file:
            label = int(file.read())
        return helper.shift(self.noise(label).normal(size=8), self.shift), label % 3
"""
HELPER = """
import numpy as np


def shift(x, by):
    return (x + by).astype(np.float32)
"""
MODEL = """
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def tables(lab):
    """Two tables whose rows name files."""
    lab.project.write("src/specs.py", SPEC)
    lab.project.write("src/helper.py", HELPER)
    lab.project.write("src/nets.py", MODEL)
    lab.project.write("shift.txt", "0.5")
    for mode, first, count in (("train", 0, 300), ("val", 1000, 80)):
        rows = range(first, first + count)
        lab.project.write(f"{mode}.csv", "id,file\n" + "".join(f"{i},{i}.txt\n" for i in rows))
        for i in rows:
            lab.project.write(f"objects/{i}.txt", str(i))
    return lab


def words(etl_dir, *more):
    tables = [
        word
        for mode in ("train", "val")
        for word in (f"--{mode}-main", f"{mode}.csv", f"--{mode}-dir", "objects")
    ]
    return [
        "data",
        "etl",
        "specs.Rows",
        *tables,
        "--misc",
        "shift.txt",
        "--shards",
        "4",
        "--etl-dir",
        etl_dir,
        *more,
    ]


def run(command, lab, **environment):
    found = subprocess.run(
        [BIN / "manyfit", *command], cwd=lab.root, env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=200,
    )  # fmt: skip
    return found.stdout + found.stderr, found.returncode


@pytest.mark.soak
def test_nodes_prepare_the_same_rows_and_train_on_them(nodes, tables, islands):
    """The nodes see nothing of the project: object files are sent to them, and rows stay there."""
    lab, homes = tables, islands(2)
    shown, code = run(words("local"), lab)
    assert code == 0, shown
    started = nodes.start(words("etl", "--on", "ray"), lab.root)
    shown = started.communicate(timeout=200)[0]
    assert started.returncode == 0, shown
    assert "train: 300 rows in = 300 rows out + 0 failed, in 4 shards" in shown
    made = find_layout_folder(lab.root / "etl")
    splits = ("train", "val")
    assert digest_layout(made, splits) == digest_layout(find_layout_folder(lab.root / "local"), splits)
    kept = [list_made(next((home / "tmp").glob("manyfit-*"))) for home in homes]
    assert all(kept), "each node prepares shards of its own"
    assert kept[0] | kept[1] == {part_key(part) for part in list_parts(made).values()}
    lab.project.config({
        "seed": 3, "data": {"class": "manyfit.spec.EtlData", "etl_dir": "etl", "batch_size": 16},
        "model": {"class": "nets.Net"},
        "train": {"epochs": 2, "loss": "cross_entropy", "optimizer": {"class": "adamw", "lr": 0.01}},
    })  # fmt: skip
    common = {"search__seeds": 1, "space": {"model.hidden": [4, 8, 16]}, "execute__hop": True}
    lab.write(**common)
    lab.sweep()
    inline = keep(lab, "inline")
    lab.write(**common, execute__on="ray")
    shown = nodes.start(["sweep", "studies/s", "--dry-run"], lab.root).communicate(timeout=200)[0]
    own = sum(any(2 * len(keys & node) > len(keys) for keys in list_shards(made)) for node in kept)
    assert f"nodes with shards that ETL has made there: {own}" in " ".join(shown.split())
    started = nodes.start(["sweep", "studies/s"], lab.root)
    shown = started.communicate(timeout=200)[0]
    assert started.returncode == 0, shown
    assert_same(keep(lab, "ray"), inline)
    part = made / next(name for name in list_parts(made) if name.startswith("train"))
    for home in homes:
        shutil.rmtree(next((home / "tmp").glob("manyfit-*")))
    part.unlink()
    started = nodes.start(["sweep", "studies/s"], lab.root)
    shown = started.communicate(timeout=200)[0]
    assert started.returncode == 1, shown
    assert "could not be fetched: the driver cannot send it" in shown
    assert part.name in shown


@pytest.mark.soak
def test_a_node_is_lost_and_the_command_is_killed(nodes, tables):
    lab = tables
    first, second = nodes.add(), nodes.add()
    wait_for(lambda: nodes.cpus() == 2)
    command = words("etl", "--on", "ray")
    parts = lambda: len(list((lab.root / "etl").rglob("*.arrow")))  # noqa: E731
    try:
        started = nodes.start(command, lab.root)
        wait_for(lambda: parts() > 0 or started.poll() is not None)
        nodes.kill(first)
        started.send_signal(signal.SIGKILL)
        started.wait()
        started = nodes.start(command, lab.root)
        shown = started.communicate(timeout=200)[0]
        assert started.returncode == 0, shown
        assert "train: 300 rows in = 300 rows out + 0 failed" in shown
    finally:
        nodes.kill(second)
    wait_for(lambda: nodes.cpus() == 0)


@pytest.fixture
def cli(tables, monkeypatch):
    """Call commands in this process, and forget the modules of the project."""
    monkeypatch.chdir(tables.root)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def call(command):
        with pytest.raises(SystemExit) as ended:
            main(command)
        return ended.value.code

    yield call
    for name in {"specs", "helper"} - known:
        sys.modules.pop(name, None)


def test_a_local_cluster(ray_here, tables, cli, capsys):
    """All rows, and rows that fail, with their place in the user's code."""
    assert cli(words("etl", "--on", "ray")) == 0
    folder = find_layout_folder(tables.root / "etl")
    source = open_split(folder, "train")
    assert sorted(source.ids(np.arange(300)), key=int) == [str(i) for i in range(300)]
    tables.project.write("val.csv", "id,file\n1,1000.txt\n2,bad.txt\n")
    assert cli(words("etl", "--on", "ray")) == 1
    shown = capsys.readouterr().err
    assert "the row '2' of val failed: ValueError: on purpose" in shown
    assert f"{tables.root}/src/specs.py:24" in shown
    assert cli(words("etl", "--on", "ray", "--on-error", "skip")) == 0
    assert "2 rows in = 1 rows out + 1 failed" in capsys.readouterr().out


def test_a_worker_that_cannot_be_prepared_says_why(ray_here, tables, cli, capsys):
    tables.project.write(
        "src/specs.py", SPEC.replace("self.noise = np.random.RandomState", "raise KeyError('no')")
    )
    assert cli(words("etl", "--on", "ray")) == 1
    shown = capsys.readouterr().err
    assert "Rows.initialize_worker failed: KeyError: 'no'" in shown
    assert f"at {tables.root}/src/specs.py:" in shown
    assert cli(words("etl", "--address", "x:1")) == 2
