"""A node that sees neither the project nor its data gets what it needs, or it is said what is missing."""

from __future__ import annotations

import functools
import http.server
import os
import threading

import numpy as np
import pytest
from tests.study.test_hop_matrix import prepare
from tests.study.test_traveling import assert_same, keep

CODE = """
import io

import fsspec
import numpy as np
from torch import nn

from manyfit.data import ArraySource


class Rows:
    def __init__(self, file: str = "", batch_size: int = 16):
        self.batch_size = batch_size
        with fsspec.open(file, "rb") as opened:
            found = np.load(io.BytesIO(opened.read()))
            self.x, self.y = found["x"], found["y"]

    def source(self, split):
        first = {"train": 0, "validation": 60, "test": 80}[split]
        rows = slice(first, first + (60 if split == "train" else 20))
        return ArraySource(self.x[rows], self.y[rows])


class Hidden(Rows):
    def __init__(self, batch_size: int = 16):
        super().__init__("data/rows.npz", batch_size)


class Net(nn.Module):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def island(islands):
    return islands(1)[0]


@pytest.fixture
def data(lab):
    """The same rows as a file, as a URL, outside of the project, and prepared."""
    lab.project.write("src/rows.py", CODE)
    dice = np.random.default_rng(0)
    y = np.arange(100) % 3
    (lab.root / "data").mkdir()
    x = (dice.normal(size=(100, 8)) + y[:, None]).astype(np.float32)
    np.savez(lab.root / "data" / "rows.npz", x=x, y=y)

    def choose(kind, outside):
        if kind == "array":
            return {"class": "rows.Rows", "file": "data/rows.npz"}
        if kind == "hidden":
            return {"class": "rows.Hidden"}
        if kind == "etl":
            prepare(lab.root, 2)
            return {"class": "manyfit.spec.EtlData", "etl_dir": "etl"}
        return {"class": "rows.Rows", "file": outside}

    return choose


def write(lab, data, **execute):
    lab.project.config({
        "seed": 3, "data": {**data, "batch_size": 16}, "model": {"class": "rows.Net"},
        "train": {"epochs": 2, "loss": "cross_entropy", "optimizer": {"class": "adamw", "lr": 0.01}},
    })  # fmt: skip
    lab.write(search__seeds=1, space={"model.hidden": [4, 8]}, execute=execute)


def sweep(nodes, lab, *more):
    started = nodes.start(["sweep", "studies/s", *more], lab.root)
    return started.communicate(timeout=200)[0], started.returncode


@pytest.mark.parametrize(
    "kind",
    [
        "array",
        pytest.param("etl", marks=pytest.mark.soak),
        pytest.param("url", marks=pytest.mark.soak),
    ],
)
def test_data_reaches_a_node_that_sees_nothing(nodes, lab, data, island, kind):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(lab.root / "data"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        given = data(kind, f"http://127.0.0.1:{server.server_port}/rows.npz")
        write(lab, given, on="inline", hop=kind == "etl")
        os.chdir(lab.root)
        lab.sweep()
        inline = keep(lab, "inline")
        write(lab, given, on="ray", hop=kind == "etl")
        shown, code = sweep(nodes, lab, "--dry-run")
        assert code == 0, shown
        wanted = {
            "array": "data.file: data/rows.npz",
            "etl": "data.etl_dir: etl",
            "url": "is read by every node",
        }
        assert wanted[kind] in shown
        output, code = sweep(nodes, lab)
        assert code == 0, output
    finally:
        server.shutdown()
    assert_same(keep(lab, "ray"), inline)


def test_what_a_node_lacks_is_said_before_the_first_step(nodes, lab, data, island, hidden):
    write(lab, data("hidden", ""), on="ray")
    output, code = sweep(nodes, lab)
    assert code == 1, output
    assert "No such file or directory" in output
    assert "data/rows.npz" in output
    assert "src/rows.py" in output
    outside = hidden / "outside.npz"
    outside.write_bytes((lab.root / "data" / "rows.npz").read_bytes())
    lab.clear()
    write(lab, data("path", str(outside)), on="ray")
    lacking = f"data.file: {outside} is not there, and only files of the project are sent"
    shown, code = sweep(nodes, lab, "--dry-run")
    assert lacking in shown, shown
    assert "with 1 worker, if nothing" in shown
    shown, code = sweep(nodes, lab)
    assert code == 2, shown
    assert lacking in shown
    assert not (lab.folder / "trials").exists()
