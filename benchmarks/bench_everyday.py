"""Everyday tools against what they are made of: tables, HDF5, predictions, streaming metrics and lists of runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from models import LeNet
from timing import compare, seconds, where

import manyfit
from manyfit.data import Hdf5, Order, Table
from manyfit.inference import Inferrer
from manyfit.metrics import F1, Auroc

ROUNDS = int(os.environ.get("ROUNDS", "5"))
ROWS = int(os.environ.get("ROWS", "1000000"))
RUNS = int(os.environ.get("RUNS", "2000"))


def bench_table(folder: Path) -> bool:
    """A table of 1 million rows and 20 columns, ready to train on, compared with pandas reading the file."""
    import pandas

    state, file = np.random.RandomState(0), folder / "table.csv"
    frame = pandas.DataFrame({f"c{i}": state.normal(size=ROWS).round(5) for i in range(18)})
    frame["kind"], frame["y"] = state.choice(list("abcdef"), ROWS), state.randint(0, 3, ROWS)
    frame.to_csv(file, index=False)

    def ours() -> None:
        table = Table(file, "y")
        for split in ("train", "validation", "test"):
            assert len(table.source(split))  # type: ignore[arg-type]

    return compare("Table ready / pandas.read_csv", ours, lambda: pandas.read_csv(file), ROUNDS, at_most=1.5)


def bench_hdf5(folder: Path) -> bool:
    """An epoch of an HDF5 file, shuffled, compared with h5py reading the same batches."""
    import h5py

    file, rows = folder / "data.h5", 20_000
    with h5py.File(file, "w") as opened:
        opened["x"] = np.random.RandomState(0).normal(size=(rows, 256)).astype(np.float32)
        opened["y"] = np.arange(rows) % 10
    source = Hdf5(file, "x", "y", validation=0.0, test=0.0).source("train")
    assert source is not None
    order = Order(64, seed=1, epochs=1)
    plan = [np.sort(source.rows[index]) for index in order.walk(len(source))]

    def bare() -> None:
        with h5py.File(file, "r") as opened:
            x, y = opened["x"], opened["y"]
            for rows in plan:
                x[rows], y[rows]

    def ours() -> None:
        for _ in source.batches(order):
            pass

    return compare("h5py / Hdf5", bare, ours, ROUNDS, at_least=0.8)


def bench_predict(folder: Path) -> bool:
    """Predictions of 20,000 images to a Parquet file, compared with a bare batched forward pass."""
    os.chdir(folder)
    shutil.copy(Path(__file__).with_name("models.py"), folder / "src" / "lenet.py")
    (folder / "src" / "images.py").write_text(
        "import numpy as np\nfrom manyfit.data import ArraySource\n\nclass Images:\n    batch_size = 256\n\n"
        "    def source(self, split):\n        state = np.random.RandomState(len(split))\n"
        "        x = state.normal(size=(2048, 1, 28, 28)).astype(np.float32)\n"
        "        return ArraySource(x, state.randint(0, 10, 2048))\n"
    )
    tree = {
        "data": {"class": "images.Images"},
        "model": {"class": "lenet.LeNet"},
        "train": {
            "epochs": 1,
            "loss": "cross_entropy",
            "optimizer": {"class": "sgd", "lr": 0.01},
            "limit": {"train": 1},
            "device": "cpu",
        },
    }
    manyfit.train(tree, folder="runs/lenet", callbacks=[])
    images = np.random.RandomState(0).normal(size=(20_000, 1, 28, 28)).astype(np.float32)
    with Inferrer("runs/lenet", batch_size=256) as infer:
        model = manyfit.load_model("runs/lenet", trust=True)

        def bare() -> None:
            with torch.no_grad():
                for begin in range(0, len(images), 256):
                    model(torch.from_numpy(images[begin : begin + 256])).softmax(1).max(1)

        def ours() -> None:
            infer.predict_to(folder / "out.parquet", images)

        return compare("bare forward / predict to Parquet", bare, ours, ROUNDS, at_least=0.8)


def bench_metrics() -> bool:
    """F1 and AUROC over the outputs of an epoch, as a share of a LeNet training epoch of the same rows."""
    model, rows, batch = LeNet(), 8192, 64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(rows, 1, 28, 28), torch.randint(10, (rows,))
    scores = torch.randn(rows, 10)

    def epoch() -> None:
        for begin in range(0, rows, batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                model(x[begin : begin + batch]), y[begin : begin + batch]
            ).backward()
            optimizer.step()

    def metrics() -> None:
        found = [F1(), Auroc()]
        for begin in range(0, rows, batch):
            for each in found:
                each.update(scores[begin : begin + batch], y[begin : begin + batch])
        for each in found:
            each.compute()

    return compare("f1 and auroc / LeNet epoch", metrics, epoch, ROUNDS, at_most=0.03)


def bench_list(folder: Path) -> bool:
    """A list of 2,000 runs with a filter; the first time reads every folder, later ones the cache."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for i in range(RUNS):
        shutil.copytree(
            folder / "runs" / "lenet",
            folder / "many" / f"r{i}",
            ignore=shutil.ignore_patterns("exported", "tensorboard", "*.csv"),
        )

    def ours() -> None:
        assert not len(manyfit.runs(folder / "many").where("train.optimizer.lr<1e-3").sort("val_loss"))

    first = seconds(ours)
    later = [seconds(ours) for _ in range(ROUNDS)]
    good = min(later) <= 2.0
    print(f"list of {RUNS} runs with a filter: first {first:.2f} s, then {min(later):.2f} s, spread {min(later):.2f}–{max(later):.2f} s (at most 2.0)" + ("" if good else "  TOO SLOW"))  # fmt: skip
    return good


def main() -> None:
    where()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "src").mkdir()
        good = [
            bench_table(folder),
            bench_hdf5(folder),
            bench_metrics(),
            bench_predict(folder),
            bench_list(folder),
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
