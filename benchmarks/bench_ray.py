"""The executor on Ray against Ray itself: a trivial unit, a hop of 50 MB, a grid of 16 configs, and 2,000 trials.

One local cluster with two CPUs serves all of it. Everything that a study writes (ledger, log, checkpoints, the best model)
is written.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_DEDUP_LOGS": "0"}
os.environ.setdefault("EPOCHS", "10")

import bench_sweep
import numpy as np
import psutil
import torch
from timing import compare, seconds, where

from manyfit.config.study.study import load_study
from manyfit.core.state import State
from manyfit.executors import Job, Outcome, Trial, Unit
from manyfit.store.packed_state import PackedState
from manyfit.study.executors.ray_cluster import Cluster, Need, Share
from manyfit.study.executors.ray_executor import RayExecutor
from manyfit.study.executors.ray_study import ray_executor
from manyfit.study.sweep import Wish, execute

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TRIALS = int(os.environ.get("TRIALS", "2000"))
UNITS, SIZE = 200, 50_000_000


def trivial(unit, watch, tell):
    """Work that does nothing."""
    for trial in unit.trials:
        yield Outcome(trial.id, 1, 1.0, 1, True)


def receive(unit, watch, tell):
    """Work that opens a state and reads all of it."""
    for trial in unit.trials:
        state = unit.luggage[trial.id].unpack()
        yield Outcome(trial.id, int(sum(tensor[::1024].sum() for tensor in state.tensors.values()) > -1))


def wait_for(executor, name):
    while not any(outcome.trial == name for outcome in executor.wait()):
        pass


def bench_units(cluster) -> bool:
    """The time of a trivial unit against that of a call of a bare actor."""
    ray = cluster.ray

    @ray.remote(num_cpus=1)
    class Bare:
        def echo(self, value):
            return value

    bare = Bare.remote()
    ray.get(bare.echo.remote(0))
    executor = RayExecutor(trivial, Cluster("local"), Share(1, 1, Need(1.0)))

    def units():
        for i in range(UNITS):
            executor.submit(Unit((Trial(f"t{i}", "", {}, 0),)))
            wait_for(executor, f"t{i}")

    def calls():
        for i in range(UNITS):
            ray.get(bare.echo.remote(i))

    good = compare("a trivial unit / a bare actor call", units, calls, ROUNDS, at_most=4.0)
    took = min(seconds(units) for _ in range(2)) / UNITS
    print(f"    {took * 1000:.1f} ms for a unit (at most 20)")
    executor.close()
    ray.kill(bare)
    return good and took <= 0.020


def bench_hop(cluster) -> bool:
    """A unit with a state of 50 MB against putting an array of that size into the object store and getting it."""
    ray = cluster.ray
    array = np.random.default_rng(0).random(SIZE // 8)
    state = PackedState.pack(State({"w": torch.from_numpy(array)}, {}))

    @ray.remote(num_cpus=1)
    class Reader:
        def read(self, found):
            return float(found[::128].sum())

    reader = Reader.remote()
    executor = RayExecutor(receive, Cluster("local"), Share(1, 1, Need(1.0)))

    def hop():
        executor.submit(Unit((Trial("t", "", {}, 0),), luggage={"t": state}))
        wait_for(executor, "t")

    def put_and_get():
        ray.get(reader.read.remote(ray.put(array)))

    good = compare("a hop of 50 MB / put and get", hop, put_and_get, ROUNDS * 2, at_most=2.0)
    executor.close()
    ray.kill(reader)
    return good


class RayStudy(bench_sweep.Study):
    """The grid on Ray, whose workers are ready before the clock starts."""

    def run(self):
        folder = self.root / "studies/s"
        for entry in folder.iterdir():
            if entry.name != "study.yaml":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        study = load_study(folder, ["execute.on=ray"])
        yield
        found = execute(study, Wish(quiet=True))
        yield
        assert len(found.ranked) == 16, found.failures


def bench_grid() -> bool:
    """A grid of 16 configs against Ray Tune, on the same cluster."""
    study = RayStudy()
    found = compare(
        "Ray Tune / the study", bench_sweep.ray_tune, study.run, max(2, ROUNDS // 2), at_least=2.0
    )
    shutil.rmtree(study.root, ignore_errors=True)
    return found


def bench_many() -> bool:
    """Many trials of one step: memory, open files and CPU time of the driver."""
    root = Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
    code = bench_sweep.CODE.replace("digits.data / 16", "digits.data[:32] / 16").replace(
        "digits.target)", "digits.target[:32])"
    )
    config = "\n".join(
        line for line in bench_sweep.CONFIG.splitlines() if "every:" not in line and "epochs:" not in line
    ).replace("train:", "train:\n  epochs: 1")
    count = max(2, TRIALS // 2)
    text = f"""
base: ../../runs/base/config.yaml
objective: {{metric: val_accuracy, mode: max}}
search: {{method: grid}}
space:
  train.optimizer.lr: {[1e-6 * (i + 1) for i in range(count)]}
  train.optimizer.weight_decay: [0.0, 0.01]
execute: {{on: ray, workers: 2}}
"""
    files = {"src/digits.py": code, "runs/base/config.yaml": config, "studies/s/study.yaml": text}
    for name, contents in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(contents)
    study, process, seen = load_study(root / "studies/s"), psutil.Process(), []

    def choose(study, work, watch, trials):
        made = ray_executor(Job(study, work, watch, trials), None, {}, 1, ())
        submit = made.submit

        def counting(unit):
            seen.append(
                (process.memory_info().rss, process.num_fds(), time.process_time(), time.thread_time())
            )
            submit(unit)

        made.submit = counting
        return made

    began = time.perf_counter()
    found = execute(study, Wish(quiet=True), choose)
    took = time.perf_counter() - began
    assert len(found.ranked) == 2 * count, found.failures
    early, late = seen[len(seen) // 4], seen[-1]
    grown, files_ = (late[0] - early[0]) / 1e6, late[1] - early[1]
    whole, own = ((late[i] - early[i]) / (len(seen) - len(seen) // 4) * 1000 for i in (2, 3))
    print(f"{2 * count} trials of one step in {took:.0f} s, from the first quarter to the end:")
    print(f"    memory of the driver: {grown:+.1f} MB (at most 100), open files: {files_:+d} (at most 10)")
    print(f"    CPU time of the driver: {own:.1f} ms for a trial (at most 10)")
    print(f"    CPU time of its process, with the threads that write and those of Ray: {whole:.1f} ms")
    shutil.rmtree(root, ignore_errors=True)
    return grown <= 100 and files_ <= 10 and own <= 10


def main() -> int:
    if not importlib.util.find_spec("ray"):
        print("Ray is not installed")
        return 0
    gc.disable()
    print(f"{where()}, torch {torch.__version__}")
    cluster = Cluster("local", 2)
    print(f"Ray {cluster.ray.__version__}, a local cluster with two CPUs")
    good = [bench_units(cluster), bench_hop(cluster)]
    if importlib.util.find_spec("ray.tune"):
        good.append(bench_grid())
    gc.enable()
    good.append(bench_many())
    cluster.close()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
