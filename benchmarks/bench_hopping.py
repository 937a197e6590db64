"""Hopping over shards: idle time and cost of the scheduler (simulated), real scaling, and the cost of a hop."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from simulated_hops import simulate
from timing import where
from torch import nn

import manyfit
from manyfit.config.tree.reader import dump
from manyfit.core.state import State
from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.run import run_etl
from manyfit.data.etl.spec import ETLSpec
from manyfit.data.etl.tables import read_table
from manyfit.store.packed_state import PackedState
from manyfit.study.executors.messages import receive, send

torch.set_num_threads(1)
SEEDS = int(os.environ.get("SEEDS", "30"))
TRIALS = int(os.environ.get("TRIALS", "10000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SIZE = 12_500_000


def measure_idle() -> bool:
    """Print the share of idle time of each order."""
    good = True
    for order, most in (("cyclic", 0.045), ("free", 0.01)):
        found = [simulate(16, 8, 8, 10, seed=s, execute={"order": order})["idle"] for s in range(SEEDS)]
        mean = statistics.fmean(found)
        good &= mean <= most
        print(
            f"idle, {order} order, 16 models, 8 workers, 8 shards, 10 epochs: mean {mean:.2%} of {SEEDS} seeds "
            f"(at most {most:.1%}), spread {min(found):.2%}–{max(found):.2%}: {'ok' if mean <= most else 'TOO MUCH'}"
        )
    return good


def measure_driver() -> bool:
    """Print the time of the driver for each unit, with 1,024 workers."""
    cases: dict[str, dict[str, Any]] = {
        "all data": {"hop": False},
        "all data, ASHA": {"hop": False, "search": {"stop": "asha"}},
        "hopping": {"search": {"steps": 20_000}},
        "hopping, ASHA": {"search": {"steps": 20_000, "stop": "asha"}},
    }
    good = True
    for name, case in cases.items():
        found = simulate(TRIALS, 1024, 1024, 9, **case)
        is_good = found["seconds"] <= 1e-3
        good &= is_good
        print(
            f"driver, 1,024 workers, {TRIALS:,} trials, {name}: {found['seconds'] * 1e3:.2f} ms a unit over "
            f"{found['units']:.0f} units (at most 1 ms): {'ok' if is_good else 'TOO SLOW'}"
        )
    return good


# -- real scaling -------------------------------------------------------------------------------------

CODE = """
import numpy as np
from torch import nn
from manyfit.data import ArraySource

class Rows:
    def __init__(self, batch_size: int = 64):
        self.batch_size = batch_size

    def source(self, split):
        state = np.random.RandomState(len(split))
        rows = 16384 if split == "train" else 256
        return ArraySource(state.normal(size=(rows, 256)).astype(np.float32), np.arange(rows) % 10)

class Net(nn.Module):
    def __init__(self, hidden: int = 512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                    nn.Linear(hidden, 10))

    def forward(self, x):
        return self.layers(x)
"""
CONFIG = """
data: {class: code.Rows, shards: 2}
model: {class: code.Net}
train: {epochs: 2, threads: 1, loss: cross_entropy, optimizer: {class: adam, lr: 0.001}}
"""
LRS = [0.0001 * (i + 1) for i in range(8)]


def write_study(root: Path, config: str, workers: int) -> Path:
    """Write a study of 8 models that hop; return its folder."""
    (root / "src").mkdir()
    (root / "src" / "code.py").write_text(CODE)
    (root / "runs" / "a").mkdir(parents=True)
    (root / "runs" / "a" / "config.yaml").write_text(config)
    tree = {
        "base": "../../runs/a/config.yaml",
        "objective": {"metric": "val_loss", "mode": "min"},
        "search": {"method": "grid"},
        "space": {"train.optimizer.lr": LRS},
        "execute": {"hop": True, "on": "processes", "workers": workers},
    }
    folder = root / "studies" / "s"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(dump(tree))
    return folder


def train_hopping(workers: int) -> float:
    """Return the seconds between the first and the last unit of a study that hops."""
    with tempfile.TemporaryDirectory() as place:
        folder = write_study(Path(place), CONFIG, workers)
        manyfit.sweep(folder, progress=False)
        with sqlite3.connect(folder / "ledger.db") as ledger:
            query = "select min(started), max(ended) from units where purpose='train' and number > ?"
            (begin, end) = ledger.execute(query, (workers,)).fetchone()  # without the start of the workers
        return float(end - begin)


def bare(numbers: list[int], ready: Any, go: Any) -> None:
    """Train some of the models in a plain loop."""
    torch.set_num_threads(1)
    scope: dict[str, Any] = {}
    exec(CODE, scope)
    source = scope["Rows"]().source("train")
    x, y = torch.from_numpy(source.inputs), torch.from_numpy(source.target)
    ready.release()
    go.acquire()
    for number in numbers:
        model = scope["Net"]()
        optimizer = torch.optim.Adam(model.parameters(), lr=LRS[number])
        for epoch in range(2):
            order = torch.from_numpy(np.random.RandomState(epoch).permutation(len(x)))
            for begin in range(0, len(x), 64):
                rows = order[begin : begin + 64]
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()


def train_bare(workers: int) -> float:
    """Return the seconds of plain loops in processes, each with its share of the models."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Semaphore(0)
    cores = sorted(os.sched_getaffinity(0))
    running = []
    for worker in range(workers):
        process = context.Process(target=bare, args=(list(range(worker, 8, workers)), ready, go))
        process.start()
        assert process.pid is not None
        os.sched_setaffinity(process.pid, {cores[worker % len(cores)]})
        running.append(process)
    for _ in running:
        ready.acquire()
    began = time.perf_counter()
    for _ in running:
        go.release()
    for process in running:
        process.join()
    return time.perf_counter() - began


def measure_scaling() -> bool:
    """Print the speedup from one to two workers, relative to that of bare processes."""
    ratios = []
    for _ in range(ROUNDS):
        ours = train_hopping(1) / train_hopping(2)
        theirs = train_bare(1) / train_bare(2)
        ratios.append(ours / theirs)
        print(f"    speedup with two workers: hopping {ours:.2f}, bare processes {theirs:.2f}")
    best = max(ratios)
    print(
        f"scaling of 8 models over 2 shards on 2 processes, relative to bare processes: best {best:.2f} (at least "
        f"0.9), spread {min(ratios):.2f}–{best:.2f} over {ROUNDS} rounds: {'ok' if best >= 0.9 else 'TOO SLOW'}"
    )
    return best >= 0.9


# -- what is read -------------------------------------------------------------------------------------


class Rows(ETLSpec):
    """Rows of random numbers."""

    def row_prep(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Return the inputs and the class of a row."""
        return np.random.normal(size=256).astype(np.float32), int(row["id"]) % 10


def prepare_rows(root: Path) -> dict[str, int]:
    """Write prepared rows in two shards; return the size of each file of training rows."""
    for split, count in (("train", 16384), ("val", 256)):
        (root / f"{split}.csv").write_text("id\n" + "\n".join(map(str, range(count))) + "\n")
    tables = [read_table(split, str(root / f"{split}.csv")) for split in ("train", "val")]
    folder = run_etl(Rows(), tables, root / "etl", EtlOptions(shards=2, workers=1)).folder
    return {path.name: path.stat().st_size for path in (folder / "train").glob("*.arrow")}


def read_mapped(root: Path, samples: list[tuple[float, int, dict[str, int]]], over: threading.Event) -> None:
    """Sample how much of each file of training rows is in the memory of each process."""
    while not over.wait(0.02):
        for place in Path("/proc").glob("[0-9]*/smaps"):
            found: dict[str, int] = {}
            name = ""
            with contextlib.suppress(OSError):
                for line in place.read_text().splitlines():
                    if ".arrow" in line:
                        name = line.rpartition("/")[2] if f"{root}/etl" in line and "/train/" in line else ""
                    elif name and line.startswith("Rss:"):
                        found[name] = found.get(name, 0) + int(line.split()[1]) * 1024
                        name = ""
            if found:
                samples.append((time.time(), int(place.parent.name), found))


def measure_reads() -> bool:
    """Print which part of the training rows each worker has read."""
    samples: list[tuple[float, int, dict[str, int]]] = []
    over = threading.Event()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        files = prepare_rows(root)
        data = "{class: manyfit.spec.EtlData, etl_dir: etl, batch_size: 64}"
        folder = write_study(root, CONFIG.replace("{class: code.Rows, shards: 2}", data), workers=2)
        watch = threading.Thread(target=read_mapped, args=(root, samples, over))
        watch.start()
        manyfit.sweep(folder, progress=False)
        over.set()
        watch.join()
        query = "select max(ended) from units where purpose='train'"
        with sqlite3.connect(folder / "ledger.db") as ledger:
            (end,) = ledger.execute(query).fetchone()
    last = {pid: found for when, pid, found in samples if when <= end and pid != os.getpid()}
    good = len(last) == 2
    for number, found in enumerate(last.values()):
        by_shard = [
            sum(size for name, size in found.items() if name.startswith(f"{shard:05d}-"))
            / sum(size for name, size in files.items() if name.startswith(f"{shard:05d}-"))
            for shard in range(2)
        ]
        own, other = max(by_shard), min(by_shard)
        is_good = 0.98 <= own <= 1.02 and other <= 0.05
        good &= is_good
        print(
            f"training rows in the memory of worker {number + 1} after 8 models and 2 epochs: {own:.2f} of its shard "
            f"(1), {other:.2f} of the other one (0): {'ok' if is_good else 'WRONG'}"
        )
    return good


# -- the cost of a hop --------------------------------------------------------------------------------


def echo_states(pipe: Any) -> None:
    """Receive states, and copy them into tensors, as a learner does."""
    torch.set_num_threads(1)
    target = {str(i): torch.zeros(SIZE // 100) for i in range(100)}
    while (message := receive(pipe)) is not None:
        if isinstance(message, PackedState):
            for name, tensor in message.unpack().tensors.items():
                target[name].copy_(tensor)
        else:
            memory = shared_memory.SharedMemory(message)
            for i, tensor in enumerate(target.values()):
                offset = i * tensor.numel() * 4
                tensor.copy_(
                    torch.frombuffer(memory.buf, dtype=torch.float32, count=tensor.numel(), offset=offset)
                )
            del tensor
            memory.close()
        send(pipe, "done")


def hop(pipe: Any, state: State) -> float:
    """Return the seconds in which a state reaches another process."""
    began = time.perf_counter()
    send(pipe, PackedState.pack(state))
    receive(pipe)
    return time.perf_counter() - began


def copy_bare(pipe: Any, state: State) -> float:
    """Return the seconds of a bare copy through shared memory."""
    began = time.perf_counter()
    memory = shared_memory.SharedMemory(create=True, size=SIZE * 4)
    offset = 0
    for tensor in state.tensors.values():
        torch.frombuffer(memory.buf, dtype=torch.float32, count=tensor.numel(), offset=offset).copy_(tensor)
        offset += tensor.numel() * 4
    send(pipe, memory.name)
    receive(pipe)
    took = time.perf_counter() - began
    memory.close()
    memory.unlink()
    return took


def measure_hop() -> bool:
    """Print the cost of moving a state of 50 MB, relative to a bare copy."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo_states, args=(theirs,))
    process.start()
    state = State({str(i): torch.randn(SIZE // 100) for i in range(100)})
    times: dict[str, list[float]] = {"hop": [], "bare": []}
    for _ in range(15):
        times["hop"].append(hop(ours, state))
        times["bare"].append(copy_bare(ours, state))
    send(ours, None)
    process.join()
    each = sorted(a / b for a, b in zip(times["hop"], times["bare"], strict=True))
    best = min(times["hop"]) / min(times["bare"])
    print(
        f"a hop of 50 MB / a bare copy through shared memory: ratio of best {best:.2f} (at most 2), median "
        f"{statistics.median(each):.2f}, spread {each[0]:.2f}–{each[-1]:.2f} over 15 rounds: "
        f"{'ok' if best <= 2 else 'TOO SLOW'}"
    )
    return best <= 2


if __name__ == "__main__":
    print(f"hopping ({where()})")
    parts = {
        "idle": measure_idle, "driver": measure_driver, "scaling": measure_scaling, "reads": measure_reads,
        "hop": measure_hop,
    }  # fmt: skip
    chosen = [part for name, part in parts.items() if name in sys.argv[1:] or not sys.argv[1:]]
    results = [part() for part in chosen]
    sys.exit(not all(results))
