"""Studies and single runs on a GPU compared with bare loops, Lightning and JAX: 60,000 rows, batches of 32.

A study is validated, logged and checkpointed after each epoch, and writes its ledger. Its speed is that between the
first epoch and the last one; its time is that of the command `manyfit sweep`, from its start to the report. What it is
compared with (`bare_gpu`, or scripts of a folder) only trains.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import manyfit

HERE = Path(__file__).parent
ROWS, BATCH, TRIALS, EPOCHS = 60_000, 32, 64, 20
MODELS = {"mlp": "Mlp", "lenet": "LeNet", "transformer": "Transformer"}
STUDY = """
base: ../../runs/base/config.yaml
objective: {{metric: val_loss, mode: min}}
search: {{method: grid{seeds}}}
space: {{train.optimizer.lr: {rates}}}
execute: {execute}
"""
CONFIG = """
seed: 7
data: {{class: images.Images, batch_size: 32, rows: {rows}}}
model: {{class: images.{model}}}
train: {{epochs: {epochs}, loss: cross_entropy, metrics: [accuracy], optimizer: {{class: adam, lr: 1e-3}}, {train}}}
evaluate: {{batch_size: 1000}}
"""
LEAST: Mapping[str, tuple[float, float, float]] = {
    "64 trials, compiled / stacked by hand, compiled": (0.85, 0.85, 0.85),
    "64 trials, compiled / JAX, 64 models": (1, 1, 1),
    "64 trials, compiled / Lightning": (200, 200, 50),
    "64 trials, captured / stacked by hand, captured": (0.85, 0.85, 0.85),
    "64 seeds / 64 trials, compiled": (0.7, 0.7, 0.7),
    "one run / JAX, one model": (0.9, 0.9, 0.9),
    "one run / loop": (15, 9, 8),
    "whole study / Lightning, one after another": (50, 50, 35),
    "second study / first study": (1.3, 1.3, 1.3),
}
"""What is asked for: of the MLP, of LeNet and of the transformer."""


class Project:
    """A project with one base config and one study."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.root = rows, Path(tempfile.mkdtemp(prefix="manyfit-bench-"))
        (self.root / "src").mkdir()
        shutil.copy(HERE / "images.py", self.root / "src")
        os.environ["XDG_CACHE_HOME"] = str(self.root / "cache")  # nothing is compiled yet
        write_bytecode()

    def write(self, model: str, epochs: int, train: str, trials: int = 1, seeds: bool = False,
              execute: str = "{}") -> Path:  # fmt: skip
        """Write the config and the study, without what they trained before; return the folder of the study."""
        rates = [1e-4 * 100 ** (i / max(1, trials - 1)) for i in range(1 if seeds else trials)]
        config, folder = self.root / "runs/base/config.yaml", self.root / "studies/s"
        for each in (config.parent, folder):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir(parents=True)
        config.write_text(CONFIG.format(rows=self.rows, model=MODELS[model], epochs=epochs, train=train))
        text = STUDY.format(rates=rates, seeds=f", seeds: {trials}" if seeds else "", execute=execute)
        (folder / "study.yaml").write_text(text)
        return folder

    def command(self, model: str, trials: int, epochs: int) -> tuple[list[float], float]:
        """Train a study by the command line; return the seconds of its epochs, and those of the command."""
        folder = self.write(model, epochs, "", trials, execute="{on: auto, fuse: auto}")
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "manyfit", "sweep", "studies/s"],
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        took = time.perf_counter() - began
        assert done.returncode == 0, done.stderr[-3000:]
        lines = done.stderr.splitlines()
        begin = next((i for i, line in enumerate(lines) if line.startswith("planned")), len(lines))
        print(*(f"    {line[:150]}" for line in lines[begin : begin + 6]), sep="\n", flush=True)
        return read_epochs(folder / "trials", trials), took

    def study(self, model: str, trials: int, epochs: int, train: str, seeds: bool = False) -> list[float]:
        """Train a study in this process, as one group; return the seconds of its epochs."""
        folder = self.write(model, epochs, train, trials, seeds, f"{{on: inline, fuse: {trials}}}")
        found = manyfit.sweep(folder, progress=False)
        assert not found.failures, found.failures
        return read_epochs(folder / "trials", trials)

    def run(self, model: str, epochs: int, train: str) -> list[float]:
        """Train one run; return the seconds of its epochs."""
        self.write(model, epochs, train)
        manyfit.train(self.root / "runs/base/config.yaml", callbacks=[])
        return read_epochs(self.root / "runs", 1)


def write_bytecode() -> None:
    """Let Python keep the bytecode of all modules, as it does for an ordinary installation."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "manyfit-bench-bytecode")
    modules = "torch._dynamo, torch._inductor.standalone_compile, manyfit.study.sweep, manyfit.run.train"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)


def read_epochs(folder: Path, trials: int) -> list[float]:
    """Return the seconds of each epoch but the first."""
    logs = list(folder.glob("*/metrics.jsonl"))
    assert len(logs) == trials, len(logs)
    times = [json.loads(line)["time"] for line in logs[0].read_text().splitlines()]
    return [b - a for a, b in itertools.pairwise(times)]


def measure(
    project: Project, name: str, given: argparse.Namespace, save: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Return samples per second, and seconds, by what was measured; save them after each measurement."""
    script = ["bare_gpu.py"] if given.limits is None else ["limits_gpu.py", str(given.limits)]
    done = subprocess.run(
        [sys.executable, str(HERE / script[0]), *script[1:], name, "--models", str(given.trials),
         "--seconds", str(given.seconds)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = {"by hand": json.loads(done.stdout.splitlines()[-1])}
    print(f"{name}: {show(found['by hand'])}", flush=True)
    save(found)

    def note(what: str, epochs: Sequence[float], runs: int, seconds: float | None = None) -> None:
        all_ = [project.rows * runs / each for each in epochs]
        found[what] = {"best": max(all_), "median": statistics.median(all_), "least": min(all_)}
        if seconds is not None:
            found[what] |= {"seconds": seconds, "epochs": len(epochs) + 1, "epoch": statistics.median(epochs)}
        print(f"{name}, {what}: {show(found[what])}", flush=True)
        save(found)

    trials = given.trials
    for what, epochs in (("first study", given.epochs), ("second study", given.second)):
        if not epochs:
            continue
        each, took = project.command(name, trials, epochs)
        note(what, each, trials, took)
    note("one run", project.run(name, 6, "compile: default"), 1)
    if not given.no_captured:
        note("captured", project.study(name, trials, 3, "compile: off"), trials)
    for precision in filter(None, given.precisions.split(",")):
        note(precision, project.study(name, trials, 3, f"compile: default, precision: {precision}"), trials)
    if not given.no_seeds:
        note("seeds", project.study(name, trials, 3, "compile: default", seeds=True), trials)
    return found


def show(values: Mapping[str, float]) -> str:
    """Return values by name as text."""
    return ", ".join(f"{name} {value:,.{0 if value > 999 else 1}f}" for name, value in values.items())


def compare(found: Mapping[str, Any], trials: int, rows: int) -> dict[str, float]:
    """Return the quotients that are asked for."""
    bare = found["by hand"]
    best = {what: values["best"] for what, values in found.items() if what != "by hand"}
    whole = {  # of 20 epochs, also if fewer were trained
        what: found[what]["seconds"] + (EPOCHS - found[what]["epochs"]) * found[what]["epoch"]
        for what in ("first study", "second study")
        if what in found
    }
    quotients = {
        "64 trials, compiled / stacked by hand, compiled": (best["first study"], bare.get("stacked, compiled")),
        "64 trials, compiled / JAX, 64 models": (best["first study"], bare.get("jax")),
        "64 trials, compiled / Lightning": (best["first study"], bare.get("lightning")),
        "64 trials, captured / stacked by hand, captured": (best.get("captured"), bare.get("stacked")),
        "64 seeds / 64 trials, compiled": (best.get("seeds"), best["first study"]),
        "one run / JAX, one model": (best["one run"], bare.get("jax, one")),
        "one run / loop": (best["one run"], bare.get("loop")),
        "whole study / Lightning, one after another": (
            rows * EPOCHS * trials / whole["first study"], bare.get("lightning")
        ),
        "second study / first study": (whole["first study"], whole.get("second study")),
    }  # fmt: skip
    return {name: one / other for name, (one, other) in quotients.items() if one and other}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--models", default=",".join(MODELS))
    arguments.add_argument("--trials", type=int, default=TRIALS)
    arguments.add_argument("--rows", type=int, default=ROWS)
    arguments.add_argument("--epochs", type=int, default=EPOCHS, help="of the first study")
    arguments.add_argument("--second", type=int, default=EPOCHS, help="epochs of the second study; 0: none")
    arguments.add_argument("--seconds", type=float, default=1.5, help="of each loop by hand")
    arguments.add_argument("--no-seeds", action="store_true")
    arguments.add_argument("--no-captured", action="store_true", help="no study without compiled steps")
    arguments.add_argument("--precisions", default="tf32,bf16", help="further studies; empty: none")
    arguments.add_argument("--limits", type=Path, help="a folder with fused_probe.py and jax_probe.py")
    arguments.add_argument("--out", type=Path, help="a JSON file, to which the results are added")
    given = arguments.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else {"models": {}}
    known |= {
        "device": device, "torch": torch.__version__, "python": platform.python_version(),
        "command": f"python benchmarks/bench_gpu.py --models {','.join([*known['models'], given.models])}",
    }  # fmt: skip
    print(f"{device}, torch {torch.__version__}")
    enough = True

    def save(name: str, found: dict[str, Any]) -> None:
        known["models"][name] = found
        if given.out:
            given.out.write_text(json.dumps(known, indent=1) + "\n")

    for name in given.models.split(","):
        found = measure(Project(given.rows), name, given, functools.partial(save, name))
        found["quotients"] = compare(found, given.trials, given.rows)
        for what, quotient in found["quotients"].items():
            least = LEAST[what][list(MODELS).index(name)]
            enough = enough and quotient >= least
            print(
                f"{name}: {what} = {quotient:.2f} (at least {least}){'' if quotient >= least else ' MISSED'}"
            )
        save(name, found)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
