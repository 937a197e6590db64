"""What schedulers, links and strange places do to a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import manyfit

ENDS = """
import asyncio, sys
from models import MLP


class Own(BaseException):
    pass


HOW = {"exit": SystemExit(0), "three": SystemExit(3), "own": Own("mine"), "cancel": asyncio.CancelledError("c"),
       "generator": GeneratorExit("g")}


class Ends(MLP):
    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how, self.seen = how, 0

    def forward(self, images):
        self.seen += self.training
        if self.seen == 6:
            raise HOW[self.how]
        return super().forward(images)
"""


@pytest.mark.parametrize(
    "how",
    ["exit", "own", *(pytest.param(h, marks=pytest.mark.soak) for h in ("three", "cancel", "generator"))],
)
def test_code_that_ends_its_process_in_python_has_failed(project, cli, how):
    """A run that was not finished ended with 0, or with a traceback."""
    project.write("src/ends.py", ENDS)
    project.config(project.changed(model={"class": "ends.Ends", "how": how}))
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "the run failed with" in answer.err
    assert "Traceback" not in answer.err
    assert "ends.py" in (project.run / "run.log").read_text()
    assert (project.run / "failure.json").is_file()
    assert "failed" in cli("show", "runs/a").out


def test_one_strange_run_does_not_hide_the_others(project, cli):
    manyfit.train("runs/a", callbacks=[])
    (project.root / "runs/bad/.lock").mkdir(parents=True)
    (project.root / "runs/bad/config.yaml").write_text((project.run / "config.yaml").read_text())
    answer = cli("list")
    assert answer.code == 0
    assert "finished" in answer.out
    answer = cli("train", "runs/bad")
    assert answer.code == 2
    assert "is not a file, but a folder" in answer.err


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("metrics.jsonl", '"time": ', '"time": "x", "then": '),
        ("metrics.jsonl", '"step": ', '"step": -0.0, "then": '),
        ("metrics.jsonl", "{", "[" * 100_000),
        ("reports/test.csv", ".", "zz"),
    ],
)
def test_damaged_logs_and_reports_are_one_message(project, cli, name, old, new):
    manyfit.train("runs/a", callbacks=[])
    manyfit.train("runs/a", folder="runs/b", callbacks=[])
    file = project.run / name
    file.write_text(file.read_text().replace(old, new))
    answers = [cli("show", "runs/a"), cli("track", "sync", "runs/a"), cli("compare", "runs/a", "runs/b")]
    assert all("Traceback" not in answer.err for answer in answers)
    assert 2 in [answer.code for answer in answers]
    assert all(answer.code in (0, 2) for answer in answers), [answer.err for answer in answers]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/{last}/manifest.json", "provenance.json"])
def test_a_file_that_is_too_large_to_be_read(project, cli, name):
    manyfit.train("runs/a", callbacks=[])
    last = max(path.name for path in (project.run / "checkpoints").iterdir())
    os.truncate(project.run / name.format(last=last), 1 << 40)
    for words in (["show", "runs/a"], ["list"]):
        answer = cli(*words)
        assert "Traceback" not in answer.err
        assert answer.code in (0, 2)
    assert cli("list").code == 0


SLOW_TO_START = '''
import os, time
from pathlib import Path
import numpy as np
import torch


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, row):
        return np.full(64, row % 10, dtype=np.float32), row % 10


PARENT, set_num_threads = os.getpid(), torch.set_num_threads


def slow(count):
    """What torch calls in a worker that has its handlers already, but not been told to ignore signals."""
    if os.getpid() != PARENT:
        Path(os.environ["MARK"]).touch()
        time.sleep(1.0)
    set_num_threads(count)


torch.set_num_threads = slow


class Data:
    batch_size = 16
    workers = 2

    def source(self, split):
        return Rows()
'''


@pytest.mark.skipif(sys.platform != "linux", reason="signals to groups are sent by Linux schedulers")
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.soak) for n in (signal.SIGINT, signal.SIGUSR1))],
)
def test_a_signal_to_the_group_while_loader_workers_start(project, tmp_path, number):
    project.write("src/slow_start.py", SLOW_TO_START)
    project.config(project.changed(data={"class": "slow_start.Data"}))
    mark = tmp_path / "forked"
    words, environment = (
        [sys.executable, "-m", "manyfit", "train", "runs/a"],
        {**os.environ, "MARK": str(mark)},
    )
    running = subprocess.Popen(
        words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # the second one is being forked, or has been
    os.killpg(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number, err
    assert "Traceback" not in err
    assert "unexpectedly" not in err


@pytest.mark.parametrize("where", ["above", "inside", "absolute"])
def test_a_run_folder_that_is_a_link_to_elsewhere(project, tmp_path_factory, monkeypatch, where):
    far = tmp_path_factory.mktemp("far") / "run"
    far.mkdir()
    project.run.rename(far / "a")
    project.run.symlink_to(far / "a")
    place = {"above": Path("runs/a"), "inside": Path(), "absolute": project.run}[where]
    if where == "inside":
        monkeypatch.chdir(project.run)
        monkeypatch.setenv("PWD", str(project.run))
    result = manyfit.train(place, callbacks=[])
    assert (far / "a" / "reports" / "summary.json").is_file()
    assert result.load_model() is not None
    assert len(manyfit.predict(place)["id"]) == 64
    manyfit.evaluate(place)
    manyfit.export(place)
    assert manyfit.train(place, ["train.epochs=3"], callbacks=[]).step > result.step


def test_a_project_that_is_reached_through_a_link(project, tmp_path_factory, monkeypatch):
    link = tmp_path_factory.mktemp("far") / "project"
    link.symlink_to(project.root)
    monkeypatch.chdir("/")
    manyfit.train(link / "runs/a", callbacks=[])
    through, direct = manyfit.predict(link / "runs/a"), manyfit.predict(project.run)
    assert list(through["id"]) == list(direct["id"])
    assert list(through["prediction"]) == list(direct["prediction"])


KILLED = """
import os, sys
from manyfit.store import durable
count = [0]
def before(operation, path):
    count[0] += 1
    if count[0] == int(sys.argv[1]):
        os.kill(os.getpid(), 9)
durable.before = before
import manyfit
manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", [5, pytest.param(0, marks=pytest.mark.soak)])
def test_nothing_is_left_behind_by_a_process_that_was_killed(project, point):
    points = [point] if point else range(1, 60)
    for each in points:
        subprocess.run(
            [sys.executable, "-c", KILLED, str(each)], cwd=project.root, check=False, capture_output=True
        )
        manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
        manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
        left = [p for p in project.run.rglob(".*") if p.name != ".lock"]
        assert not left, (each, left)


def test_the_environment_is_given_back(monkeypatch):
    from manyfit.run.loop.process_state import own_process

    monkeypatch.setenv("MANYFIT_CHANGED", "before")
    monkeypatch.setenv("MANYFIT_REMOVED", "before")
    before = dict(os.environ)
    with own_process():
        os.environ["MANYFIT_CHANGED"] = "after"
        os.environ["MANYFIT_ADDED"] = "\udcff"
        del os.environ["MANYFIT_REMOVED"]
    assert dict(os.environ) == before
    assert os.getenvb(b"MANYFIT_ADDED") is None
