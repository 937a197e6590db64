"""Where the time of a run goes."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import manyfit
from manyfit.core.errors import Interrupted, RunFailed, UsageError
from manyfit.learn.torch.launching import Launching
from manyfit.learn.torch.timed_places import PLACES as TORCH_PLACES
from manyfit.run.advice import Facts, advise
from manyfit.run.profile import PLACES, profile

SLOW = '''
import time
import numpy as np
from manyfit.data import Source

class Rows:
    """Rows that take a while."""

    def __init__(self, count: int, seconds: float, first: int):
        self.count, self.seconds, self.first = count, seconds, first

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return np.full(64, self.first + i, dtype=np.float32), i % 10

class Slow:
    def __init__(self, batch_size: int = 8, rows: int = 64, train: float = 0.0, validation: float = 0.0):
        self.batch_size, self.rows, self.seconds = batch_size, rows, {"train": train, "validation": validation}

    def source(self, split):
        first = {"train": 0, "validation": self.rows}.get(split)
        return Rows(self.rows, self.seconds[split], first) if first is not None else None
'''


def functions():
    return [vars(place.owner).get(place.name) for place in (*PLACES, *TORCH_PLACES)]


@pytest.fixture
def slow(project):
    """A project whose rows take a while to read."""
    project.write("src/slow.py", SLOW)

    def config(**data):
        return project.changed(data={"class": "slow.Slow", "batch_size": 8, **data})

    return config


def test_a_run_is_left_alone(project):
    manyfit.train("runs/a", callbacks=[])
    before = {path: path.read_bytes() for path in sorted(project.root.rglob("*")) if path.is_file()}
    state, own = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()), functions()
    found = profile("runs/a", seconds=1)
    after = {path: path.read_bytes() for path in sorted(project.root.rglob("*")) if path.is_file()}
    assert {p: b for p, b in after.items() if "__pycache__" not in p.parts} == {
        p: b for p, b in before.items() if "__pycache__" not in p.parts
    }
    assert functions() == own
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert np.random.get_state()[1].tolist() == state[2]
    names = {phase.name for phase in found.phases}
    if "launched steps" in names:
        names |= {"forward and loss", "backward", "optimizer"}
    assert {
        "forward and loss",
        "backward",
        "optimizer",
        "validation",
        "checkpoint",
        "log",
        "waiting for data",
    } <= names
    assert sum(phase.share for phase in found.phases) == pytest.approx(1)
    assert not found.is_extrapolated and found.measured > 0 and found.advice
    assert (found.busy is None) == (not torch.cuda.is_available())


@pytest.mark.parametrize(
    ("data", "words"), [({"train": 0.008}, "waiting for data"), ({"validation": 0.02}, "validation")]
)
def test_what_takes_long_is_found(slow, data, words):
    found = profile(slow(**data), ["train.threads=1"], seconds=2)
    first = found.phases[0]
    assert first.name == words and first.share > 0.5
    assert words in found.advice
    seconds = 64 * max(data.values())
    assert seconds <= first.seconds
    assert found.epoch >= seconds
    if "train" in data:
        assert first.per_step >= 8 * data["train"]


def test_an_epoch_that_is_too_long_is_calculated(slow):
    found = profile(slow(rows=4096, train=0.001), seconds=1)
    assert found.is_extrapolated and found.measured < found.steps_per_epoch == 512
    assert found.epoch >= 4.0
    assert {"validation", "checkpoint"} <= {phase.name for phase in found.phases}


def test_the_command(project, cli):
    answer = cli("profile", "runs/a", "--seconds", "1", "-o", "trace.json", "train.accumulate=2")
    assert answer.code == 0, answer.err
    assert "an epoch of" in answer.out and "trace.json" in answer.out
    events = json.loads((project.root / "trace.json").read_text())["traceEvents"]
    assert any(event["name"] in ("backward", "launched steps") for event in events)
    assert any(str(event["name"]).startswith("aten::") or event.get("cat") == "kernel" for event in events)
    answer = cli("profile", "runs/a", "--seconds", "0.5", "--json")
    found = json.loads(answer.out)
    assert found["phases"][0]["share"] > 0 and found["steps_per_second"] > 0


def test_a_model_that_is_no_module(project):
    """It has phases, but no parts of a step; its trace has the phases alone."""
    pytest.importorskip("skops")
    tree = project.changed(model={"class": "sklearn.naive_bayes.GaussianNB"})
    tree["train"] = {"epochs": 1, "loss": None, "optimizer": None}
    tree["data"] = {"class": "slow.Slow"}
    project.write("src/slow.py", SLOW)
    found = profile(tree, seconds=1, trace=project.root / "t.json")
    assert {"the loop", "checkpoint"} <= {phase.name for phase in found.phases}
    assert "forward and loss" not in {phase.name for phase in found.phases}
    assert json.loads((project.root / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["runs/a", "--seconds", "0"], "seconds must be positive"),
        (["runs/a", "-o", "no/where.json"], "the folder no does not exist"),
        (["runs/a", "-o", "src"], "the trace cannot be written to src: Is a directory"),
        (["runs/b"], "runs/b"),
        (["runs/a", "train.epoch=3"], "epoch"),
    ],
)
def test_mistakes(project, cli, words, text):
    answer = cli("profile", *words)
    assert answer.code == 2 and text in answer.err and "Traceback" not in answer.err


def test_the_output_may_be_a_link(project):
    (project.root / "there.json").write_text("old")
    (project.root / "link.json").symlink_to("there.json")
    profile("runs/a", seconds=0.5, trace=project.root / "link.json")
    assert (project.root / "link.json").is_symlink()
    assert json.loads((project.root / "there.json").read_text())["traceEvents"]


def test_a_full_disk(project):
    with pytest.raises(UsageError, match="cannot be written to /dev/full: No space left"):
        profile("runs/a", seconds=0.5, trace="/dev/full")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("is_launched", [False, True], ids=["alone", "launched"])
def test_a_run_that_ends_at_once(project, monkeypatch, is_launched):
    """Also if it leaves what is launched together."""
    monkeypatch.setattr(Launching, "is_wanted", lambda self, device: is_launched)
    tree = project.changed(train__stop={"metric": "val_loss", "reach": 100.0}, train__epochs=50)
    found = profile(tree, seconds=1)
    assert found.measured > 0 and found.steps_per_second < 1e6 and "val_loss" in found.end
    tree = project.changed(train__optimizer={"class": "sgd", "lr": 1e30}, train__epochs=50)
    with pytest.raises(RunFailed, match="train_loss is nan"):
        profile(tree, seconds=1)


def test_what_is_done_within_an_epoch_is_counted(slow):
    """Although it is not trained to its end: there are 64 validations in it."""
    config = slow(rows=4096, train=1e-4, validation=1e-5)
    found, once = (profile(config, [f"train.every.validate={n}"], seconds=0.5) for n in ("8ba", "1ep"))
    assert found.is_extrapolated
    often, seldom = (
        next(phase.seconds for phase in each.phases if phase.name == "validation") for each in (found, once)
    )
    assert often > 10 * seldom


def test_one_thread_is_tried(project):
    before = torch.get_num_threads()
    for epochs in (10, 400):  # also if all steps are trained before the time is over
        tree = project.changed(train__threads=2, train__epochs=epochs, train__device="cpu")
        found = profile(tree, seconds=1)
        assert found.threads == 2 and found.with_one_thread > 0 and torch.get_num_threads() == before
    assert profile(project.changed(train__threads=1), seconds=0.5).with_one_thread is None


def test_a_signal(project, cli):
    project.write("src/slow.py", """
        import os, signal
        from models import MLP

        class Slow(MLP):
            def forward(self, images):
                if self.training:
                    os.kill(os.getpid(), signal.SIGTERM)
                return super().forward(images)
    """)  # fmt: skip
    tree = project.changed(model={"class": "slow.Slow"})
    with pytest.raises(Interrupted, match=r"^ended by SIGTERM; nothing was changed$"):
        profile(tree, seconds=1)


def test_mistakes_in_python(project):
    with pytest.raises(UsageError, match="positive"):
        profile("runs/a", seconds=float("nan"))


USUAL = Facts({"forward and loss": 0.6, "backward": 0.4}, 0.01, None, 32, 32, "auto", "ArraySource", False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "nothing stands out"),
        ({"shares": {"waiting for data": 0.4}}, "40% of an epoch is spent waiting for data (ArraySource)"),
        ({"shares": {"validation": 0.3}}, "more than 32 rows at once"),
        ({"shares": {"validation": 0.3}, "evaluation_batch_size": 1000}, "less often"),
        ({"shares": {"validation": 0.4, "waiting for data": 0.3}}, "40% of an epoch is validation"),
        ({"shares": {"validation": 0.3, "checkpoint": 0.4}}, "40% of an epoch is checkpoints"),
        ({"shares": {"waiting for data": 0.4}, "workers": 2}, "more than 2 processes"),
        ({"shares": {"validation": 0.4}, "source": "DatasetSource"}, "several processes"),
        ({"faster_with_one_thread": 4.2, "threads": 8}, "4.2 times faster with one thread than with 8"),
        ({"faster_with_one_thread": 1.1, "threads": 8}, "nothing stands out"),
        ({"shares": {"checkpoint": 0.2}}, "train.every.checkpoint"),
        ({"shares": {"log": 0.2}}, "train.every.log"),
        ({"busy": 0.2, "capture": "off"}, "train.capture: auto"),
        ({"busy": 0.2}, "operation by operation"),
        ({"busy": 0.2, "launches": True}, "in one pass"),
        ({"busy": 0.9}, "nothing stands out"),
        ({"shares": {"the loop": 0.4}, "step": 1e-3}, "in one pass"),
    ],
)
def test_advice(changes, text):
    assert text in advise(Facts(**{**vars(USUAL), **changes}))
