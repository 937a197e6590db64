"""Killed at any instant, a run goes on and ends as if nothing had happened: bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import Project
from tests.examples import quick

import manyfit
from manyfit.core.errors import FolderError
from manyfit.run.resume_proof import Kill, attempt_training, difference, kill_and_resume
from manyfit.store.checkpoint import Keep, checkpoints, newest
from manyfit.store.folder import RunFolder

ROWS = '''
import random

import numpy as np
import torch


class Rows:
    """Rows that are augmented by all three generators."""

    def __init__(self, split: str, rows: int = 40, noise: float = 0.0) -> None:
        self.noise = noise
        state = np.random.RandomState(["train", "validation", "test"].index(split))
        self.target = np.arange(rows) % 10
        centres = np.random.RandomState(9).normal(size=(10, 64))
        self.inputs = (centres[self.target] + 0.5 * state.normal(size=(rows, 64))).astype(np.float32)

    def __len__(self):
        return len(self.target)

    def __getitem__(self, row):
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        return self.inputs[row] * np.float32(1 + self.noise * drawn), int(self.target[row])
'''

FEATURES = {
    "accumulation": {"train.accumulate": 3, "train.clip_norm": 0.5},
    "autocast": {"train.precision": "fp16", "train.clip_value": 0.05},
    "schedule": {"train.scheduler": {"class": "one_cycle", "max_lr": 0.05}},
    "augmentation": {"model.dropout": 0.3, "data.train.noise": 0.2},
    "ema": {"train.ema": 0.9, "train.groups": [{"match": "bias", "options": {"weight_decay": 0.0}}]},
}
ALWAYS = {
    "train.epochs": 3,
    "train.every": {"log": "0.5ep", "validate": "4ba", "checkpoint": "3ba"},
    "train.threads": 1,
}
PLACES = ("step", "validation", "write", "epoch", "twice")


def kills(where: str, chance: random.Random) -> list[Kill]:
    if where == "twice":
        return [Kill("step", chance.randint(4, 6)), Kill("step", chance.randint(1, 2))]
    most = {"step": 14, "validation": 9, "write": 40, "epoch": 2}[where]
    return [Kill(where, chance.randint(1, most))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A project, and a run of each kind that nobody has killed."""
    project = Project(tmp_path_factory.mktemp("crash"))
    project.write("src/rows.py", ROWS)
    data = {split: {"class": "rows.Rows", "split": split} for split in ("train", "validation", "test")}
    tree = project.changed(data={"class": "manyfit.data.Splits", "batch_size": 8, **data})
    project.config(tree)
    whole: dict[str, RunFolder] = {}

    def reference(feature: str) -> RunFolder:
        if feature not in whole:
            folder = project.root / "runs" / f"whole-{feature}"
            assert kill_and_resume(project.run, overrides(feature), folder, []) == 0
            whole[feature] = RunFolder(folder)
        return whole[feature]

    return project, reference


def changes(feature: str, workers: int = 0) -> list[dict[str, object]]:
    return [{**ALWAYS, **FEATURES[feature], "data.workers": workers}]


def overrides(feature: str, workers: int = 0) -> list[str]:
    import json

    return [f"{key}={json.dumps(value)}" for key, value in changes(feature, workers)[0].items()]


def cell(place, where: str, workers: int, feature: str, seed: int) -> None:
    project, reference = place
    folder = project.root / "runs" / f"{where}-{workers}-{feature}-{seed}"
    points = kills(where, random.Random(f"{where} {workers} {feature} {seed}"))
    hits = kill_and_resume(project.run, overrides(feature, workers), folder, points)
    assert hits == len(points), f"{points} did not all hit"
    assert difference(reference(feature), RunFolder(folder)) == ""


MATRIX = list(itertools.product(PLACES, (0, 2), FEATURES))
CHOSEN = [MATRIX[i] for i in range(0, len(MATRIX), 11)]


@pytest.mark.parametrize(("where", "workers", "feature"), CHOSEN)
def test_killed_and_resumed(place, where, workers, feature):
    cell(place, where, workers, feature, seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("where", "workers", "feature"), MATRIX)
def test_killed_and_resumed_everywhere(place, where, workers, feature, seed):
    cell(place, where, workers, feature, seed)


def settled(folder: Path, metric: str = "val_loss") -> tuple[int, int]:
    """The last and the best checkpoint of a folder, both whole."""
    found = checkpoints(folder / "checkpoints")
    last = newest(folder / "checkpoints")
    assert last is not None
    best = Keep(metric, "min").best(found)
    if best is not None:
        best.load()
    return last.checkpoint.step, best.step if best is not None else -1


def every_operation(place, counts) -> None:
    """Kill at durable operations while checkpoints are written: a valid `last` and `best` exist afterwards."""
    project, reference = place
    seen = 0
    for count in counts:
        folder = project.root / "runs" / f"operation-{count}"
        if attempt_training(project.run, overrides("ema"), folder, Kill("write", count)) != -signal.SIGKILL:
            break
        before = (0, -1)
        if list((folder / "checkpoints").glob("step-*")):
            before = settled(folder)
            seen += 1
        assert attempt_training(project.run, overrides("ema"), folder, None) == 0
        assert settled(folder)[0] >= before[0]
        assert difference(reference("ema"), RunFolder(folder)) == ""
        shutil.rmtree(folder)
    assert seen


def test_kill_at_some_disk_operations(place):
    every_operation(place, range(9, 60, 16))


@pytest.mark.soak
def test_kill_at_every_disk_operation(place):
    every_operation(place, range(1, 500))


@pytest.fixture
def trained(place, tmp_path):
    """A run with several checkpoints, that may be broken."""
    project, reference = place
    folder = tmp_path / "runs" / "a"
    shutil.copytree(reference("schedule").path, folder)
    shutil.copytree(project.src, tmp_path / "src")
    return RunFolder(folder)


def damage(run: RunFolder, file: str, at: int | None) -> int:
    """Flip a byte of a file of the newest checkpoint, or remove the file; return the step before it."""
    *_, previous, last = run.checkpoints()
    path = last.path / file
    if at is None:
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= 0x41
        path.write_bytes(bytes(data))
    return previous.step


def passed_over(run: RunFolder, file: str, at: int | None, caplog) -> None:
    before = damage(run, file, at)
    found = newest(run.checkpoint_folder)
    assert found.checkpoint.step == before
    assert found.wrong
    manyfit.train(run.path, callbacks=[])
    assert f"resuming from step {before}" in caplog.text
    assert run.checkpoints()[-1].step == 15


@pytest.mark.parametrize("file", ["manifest.json", "state.safetensors"])
@pytest.mark.parametrize("at", [None, 0, 1000, -1])
def test_a_damaged_checkpoint_is_passed_over(trained, file, at, caplog):
    passed_over(trained, file, at, caplog)


@pytest.mark.soak
@pytest.mark.parametrize("file", ["manifest.json", "state.safetensors"])
def test_any_byte_flipped_is_found(trained, file):
    *_, previous, last = trained.checkpoints()
    path = last.path / file
    data = path.read_bytes()
    for at in range(0, len(data), 1 if file == "manifest.json" else 17):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        assert newest(trained.checkpoint_folder).checkpoint.step == previous.step, f"byte {at} of {file}"


def test_when_all_are_damaged_nothing_is_trained_over(trained):
    for found in trained.checkpoints():
        (found.path / "state.safetensors").write_bytes(b"")
    with pytest.raises(FolderError, match=r"no checkpoint in .* can be read"):
        manyfit.train(trained.path, callbacks=[])
    assert len(trained.checkpoints()) > 1


def full_disk(place, tmp_path: Path, limits) -> None:
    """No file can grow beyond a limit: a clear error, and what was there stays readable."""
    project, reference = place
    failed = 0
    for limit in limits:
        folder = tmp_path / f"limit-{limit}"
        shutil.copytree(reference("schedule").path, folder)
        events = (folder / "metrics.jsonl").read_bytes()
        words = [sys.executable, "-m", "manyfit", "train", str(project.run), *overrides("schedule")]
        code = (
            "import resource, sys\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
            "from manyfit.run.train import train\nfrom manyfit.core.errors import ManyfitError\n"
            "try:\n    train(sys.argv[1], sys.argv[2:], folder=%r, callbacks=[], allow_change=['train.horizon'])\n"
            "except (ManyfitError, OSError) as error:\n    sys.exit(f'{type(error).__name__}: {error}')\n"
        ) % str(folder)
        done = subprocess.run(
            [sys.executable, "-c", code, str(project.run), *words[5:], "train.epochs=4"],
            capture_output=True, text=True, env=os.environ, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode:
            failed += 1
            assert "File too large" in done.stderr or "could not be written" in done.stderr, done.stderr
            assert settled(folder)[0] >= 15
            assert (folder / "metrics.jsonl").read_bytes()[: len(events)] == events
        else:
            assert settled(folder)[0] == 20
    assert failed


def test_a_full_disk(place, tmp_path):
    full_disk(place, tmp_path, [5_000])


@pytest.mark.soak
def test_a_full_disk_at_every_few_bytes(place, tmp_path):
    full_disk(place, tmp_path, range(64, 40_000, 997))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak),
    ],
)
def test_a_signal_writes_a_checkpoint_and_ends_the_run(place, number, code):
    project, _ = place
    name = f"signal-{code}"
    tree = project.changed(train__epochs=4000, train__every={"log": "40ep", "validate": "40ep"})
    project.config(tree, run=name)
    process = quick.start(["train", f"runs/{name}"], project.root)
    for line in process.stderr:
        if line.startswith("epoch"):
            break
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait() == code
    assert f"ended by {signal.Signals(number).name} at step" in rest
    run = RunFolder(project.root / "runs" / name)
    assert run.state() == "unfinished"
    last = run.checkpoints()[-1]
    assert f"at step {last.step}" in rest
    assert last.note.position == {"epoch": last.step // 4, "batch": last.step % 4}


def test_two_commands_on_one_folder(place):
    project, _ = place
    tree = project.changed(train__epochs=150)
    project.config(tree, run="two")
    both = [quick.start(["train", "runs/two"], project.root) for _ in range(2)]
    said = [process.stderr.read() for process in both]
    assert sorted(process.wait() for process in both) == [0, 2]
    assert sum("is in use by another process" in text for text in said) == 1
    assert len(RunFolder(project.root / "runs/two").events()) == 150


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_from_outside_at_random_instants(place, times):
    """Whatever the process was doing; a restart at once finds the folder free, also with workers."""
    project, reference = place
    chance = random.Random(5)
    words = ["train", "runs/a", *overrides("augmentation", workers=2)]
    run = project.root / "runs" / "a"
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    killed = 0
    for _ in range(times):
        process = quick.start(words, project.root)
        for line in process.stderr:
            if line.startswith("training"):
                time.sleep(chance.random() * 0.5)
                break
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    manyfit.train(run, overrides("augmentation"), callbacks=[])
    assert killed
    left, right = reference("augmentation"), RunFolder(run)
    shutil.copy(f"{left.path}.trace", f"{run}.trace")
    assert difference(left, right) == ""
