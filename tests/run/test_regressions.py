"""What somebody has once broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import manyfit
from manyfit.core.errors import ConfigError, FolderError, RunConflict, RunFailed, UsageError
from manyfit.core.state import State
from manyfit.data import ArraySource, DatasetSource, Limited, Order, once
from manyfit.run.evaluation import summary_statistics
from manyfit.run.evaluation.row_report import interpret
from manyfit.run.resume_proof import difference
from manyfit.store.buffers import Buffers
from manyfit.store.checkpoint import (
    FORMAT,
    Keep,
    Note,
    checkpoints,
    newest,
    prune_checkpoints,
    save_checkpoint,
)
from manyfit.store.folder import RunFolder


def same(project, left, right):
    for name in (left, right):
        (project.root / f"runs/{name}.trace").write_text("[0, []]\n")
    return difference(RunFolder(project.root / "runs" / left), RunFolder(project.root / "runs" / right))


def test_buffers_of_several_shapes():
    def state(n):
        return State({"w": torch.zeros(3), "r": torch.zeros(n)}, {})

    buffers = Buffers()
    first, second = buffers.copy(state(2)), buffers.copy(state(4))
    buffers.give_back(first)
    buffers.give_back(second)
    assert buffers.copy(state(4)).tensors["r"].shape == (4,)


def test_checkpoints_between_rows_of_the_log(project):
    tree = project.changed(
        train__epochs=8, train__every={"log": "3ba", "validate": "2ba", "checkpoint": "5ba"}
    )
    for name in "bcd":
        assert manyfit.train(tree, folder=f"runs/{name}", callbacks=[]).step == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"train__every": {"log": "5ba"}},
        {"train__every": {"validate": "3ep"}, "train__optimizer": {"class": "sgd", "lr": 3.0}, "train__guard": {"nan": False}},
        {"train__every": {"validate": "3ep"}, "train__stop": {"patience": "3ep"}, "train__optimizer": {"class": "sgd", "lr": 1.0}},
    ],
    ids=["log", "best", "stop"],
)  # fmt: skip
def test_a_longer_run_is_the_same_as_one_that_was_that_long_from_the_start(project, changes):
    tree = project.changed(**changes)
    manyfit.train(tree, ["train.epochs=10"], folder="runs/b", callbacks=[])
    for epochs in (4, 5, 10):
        manyfit.train(tree, [f"train.epochs={epochs}"], folder="runs/c", callbacks=[])
    assert same(project, "b", "c") == ""
    left, right = (RunFolder(project.root / f"runs/{name}").summary()["best_step"] for name in "bc")
    assert left == right


def note(step, **metrics):
    return Note(step, float(step), metrics, step)


def put(folder, step, **metrics):
    return save_checkpoint(folder, State({"w": torch.full((2,), float(step))}, {}), note(step, **metrics))


def test_what_was_passed_over_neither_counts_nor_is_lost(project, caplog):
    words = ["train.every.checkpoint=1ep", "export.keep=1"]
    manyfit.train("runs/a", ["train.epochs=6", *words], callbacks=[])
    run = RunFolder(project.run)
    last = run.checkpoints()[-1]
    shutil.copytree(last.path, last.path.with_name("step-000000099"))
    (last.path.with_name("step-000000099") / "state.safetensors").write_bytes(b"no")
    (last.path.parent / "NOTES.txt").write_text("mine")
    manyfit.train("runs/a", ["train.epochs=8", *words], callbacks=[])
    assert "resuming from step" in caplog.text
    assert run.checkpoints()[-1].step == 32
    assert (last.path.parent / "damaged-step-000000099").is_dir()
    assert (last.path.parent / "NOTES.txt").read_text() == "mine"


def test_a_newer_format_is_not_damage(tmp_path):
    put(tmp_path, 1, val_loss=1.0)
    path = put(tmp_path, 2, val_loss=0.5).path / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(FolderError, match="use a newer version of manyfit"):
        newest(tmp_path)
    put(tmp_path, 3, val_loss=2.0)
    prune_checkpoints(tmp_path, Keep("val_loss", "min", last=1))
    assert path.exists()


def test_replacing_a_checkpoint_never_leaves_none(tmp_path):
    from manyfit.store import durable

    put(tmp_path, 1, val_loss=1.0)
    seen = []

    def look(operation, path):
        hidden = list(tmp_path.glob(".step-*.old"))
        seen.append(bool(checkpoints(tmp_path)) or any((h / "manifest.json").exists() for h in hidden))

    durable.before = look
    try:
        put(tmp_path, 1, val_loss=1.0)
    finally:
        durable.before = None
    assert seen
    assert all(seen)


def test_a_group_of_processes_is_asked_to_stop(project):
    project.write(
        "src/rows.py",
        """
        import time
        import numpy as np

        class Rows:
            def __init__(self, rows: int = 64) -> None:
                self.rows = rows

            def __len__(self):
                return self.rows

            def __getitem__(self, row):
                time.sleep(0.002)
                return np.full(64, row % 10, np.float32), row % 10
        """,
    )
    tree = project.changed(data={"class": "manyfit.data.Splits", "workers": 2, "batch_size": 8, "train": {"class": "rows.Rows"},
                                 "validation": {"class": "rows.Rows"}}, train__epochs=2000)  # fmt: skip
    project.config(tree, run="group")
    process = subprocess.Popen(
        [sys.executable, "-m", "manyfit", "train", "runs/group"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("epoch 2"):
            break
    os.killpg(process.pid, signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait() == 143, rest
    assert RunFolder(project.root / "runs/group").checkpoints()


def test_a_changed_option_of_the_optimizer_counts(project):
    manyfit.train("runs/a", callbacks=[])
    words = ["train.epochs=3", "train.optimizer.lr=0.5", "train.optimizer.weight_decay=0.3"]
    allowed = ["train.optimizer.lr", "train.optimizer.weight_decay"]
    result = manyfit.train("runs/a", words, callbacks=[], allow_change=allowed)
    assert result.history[-1].values["lr"] == 0.5


def test_an_artifact_brings_no_code(project, tmp_path):
    manyfit.train("runs/a", callbacks=[])
    place = tmp_path / "elsewhere" / "exported"
    shutil.copytree(project.run / "exported", place)
    mark = tmp_path / "mark"
    for folder in (place, place / "src", place.parent):
        folder.mkdir(exist_ok=True)
    (place / "evil_module.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom torch import nn\nclass M(nn.Module): pass\n"
    )
    shutil.copy(place / "evil_module.py", place / "src")
    card = json.loads((place / "model.json").read_text())
    for source in (".", "src", str(place), "../exported", ""):
        card["model"] = {"component": {"class": "evil_module.M"}, "src_code_path": source}
        (place / "model.json").write_text(json.dumps(card))
        with pytest.raises(ConfigError):
            manyfit.load_model(place)
    assert not mark.exists()


def test_optimizers_in_a_list_are_kept(project):
    project.write(
        "src/own.py",
        """
        import torch
        from torch.nn import functional as F
        from models import MLP

        class Own(MLP):
            def __init__(self) -> None:
                super().__init__(8)
                self.several = [torch.optim.Adam(self.parameters(), lr=0.01)]

            def forward(self, images, target=None):
                output = super().forward(images)
                if self.training:
                    self.several[0].zero_grad()
                    F.cross_entropy(output, target).backward()
                    self.several[0].step()
                return output, None
        """,
    )
    tree = project.changed(model={"class": "own.Own"}, train__loss=None, train__optimizer=None)
    manyfit.train(tree, ["train.epochs=4"], folder="runs/b", callbacks=[])
    manyfit.train(tree, folder="runs/c", callbacks=[])
    manyfit.train(tree, ["train.epochs=4"], folder="runs/c", callbacks=[])
    assert same(project, "b", "c") == ""


def test_a_split_that_is_gone(project):
    manyfit.train("runs/a", callbacks=[])
    text = (project.src / "points.py").read_text()
    changed = text.replace(
        "        offset =", "        if split == 'test':\n            return None\n        offset ="
    )
    (project.src / "points.py").write_text(changed)
    sys.modules.pop("points")
    with pytest.raises(RunConflict, match=r"data .* has changed since it was trained: test"):
        manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])
    manyfit.train("runs/a", ["train.epochs=3"], callbacks=[], allow_change=["data", "code"])
    assert not (project.run / "reports/test.csv").exists()


def test_changed_code_is_not_evaluated_as_if_it_had_trained(project, cli):
    manyfit.train("runs/a", callbacks=[])
    before = (project.run / "reports/test.csv").read_bytes()
    file = project.src / "models.py"
    file.write_text(file.read_text().replace("nn.ReLU()", "nn.Tanh()"))
    sys.modules.pop("models")
    for verb in ("evaluate", "export", "predict"):
        answer = cli(verb, "runs/a")
        assert answer.code == 2
        assert "--allow-change code.models" in answer.err
    assert (project.run / "reports/test.csv").read_bytes() == before
    assert cli("evaluate", "runs/a", "--allow-change", "code").code == 0


def test_frozen_at_first_with_fp16(project):
    project.write(
        "src/two.py",
        """
        from torch import nn

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)

            def forward(self, images):
                return self.b(self.a(images))
        """,
    )
    optimizers = {"a": {"class": "adam"}, "b": {"class": "adam"}}
    tree = project.changed(model={"class": "two.Two"}, train__optimizer=optimizers, train__precision="fp16",
                           train__freeze=[{"match": "^a", "epochs": 1}], train__clip_norm=1.0)  # fmt: skip
    assert manyfit.train(tree, folder="runs/b", callbacks=[]).step == 8
    tree["train"]["freeze"] = [{"match": ".", "epochs": 1}]
    assert manyfit.train(tree, folder="runs/c", callbacks=[]).step == 8
    tree["train"]["freeze"] = ["^a", {"match": "^a", "epochs": 1}]
    del tree["train"]["optimizer"]["a"]
    assert manyfit.train(tree, folder="runs/d", callbacks=[]).step == 8


def test_state_that_is_no_tensor_is_exported(project):
    project.write(
        "src/extra.py",
        """
        from models import MLP

        class Extra(MLP):
            seen = 0

            def get_extra_state(self):
                return {"seen": self.seen, "names": ["a", "b"]}

            def set_extra_state(self, state):
                self.seen = state["seen"]

            def forward(self, images):
                self.seen += self.training
                return super().forward(images)
        """,
    )
    result = manyfit.train(project.changed(model={"class": "extra.Extra"}), folder="runs/b", callbacks=[])
    assert result.load_model().seen == manyfit.load_model("runs/b/exported").seen == result.best_step


def test_a_run_that_was_extended_and_killed_is_not_finished(project, cli):
    manyfit.train("runs/a", callbacks=[])
    config = manyfit.load_config("runs/a", ["train.epochs=9"])
    (project.run / "config.resolved.yaml").write_text(config.to_resolved_yaml())
    assert RunFolder(project.run).state() == "unfinished"
    answer = cli("train", "runs/a")
    assert "train.epochs is now 2; it was 9 when the run was last started" in answer.err
    assert RunFolder(project.run).state() == "finished"


def test_limits_within_limits():
    source = Limited(Limited(ArraySource(np.arange(20), np.arange(20)), 12), 5)
    assert len(source) == sum(len(batch) for batch in once(source, 4)) == 5
    outer = Limited(Limited(ArraySource(np.arange(20), np.arange(20)), 5), 12)
    assert len(outer) == sum(len(batch) for batch in once(outer, 4)) == 5


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_many_classes_in_few_bits(dtype):
    target = np.arange(20, dtype=dtype)
    assert summary_statistics.usual(target, target, 20)["accuracy"] == 1.0


def test_what_is_no_class_is_left_out():
    target = np.array([0, 1, 255, -100])
    found = summary_statistics.usual(target, np.array([0, 1, 0, 1]), 2)
    assert found["accuracy"] == 1.0
    assert np.array(found["confusion"]).tolist() == [[1, 0], [0, 1]]
    assert summary_statistics.usual(np.array([70_000]), np.array([70_000]), 100_000) == {"accuracy": 1.0}


def test_one_score_is_not_a_class():
    output = np.array([[-1.0], [2.0]])
    prediction, confidence = interpret(output, np.array([0, 1]))
    assert confidence is None
    assert prediction is output


class Sometimes:
    ids = ("a", "b", "c", "d")

    def __len__(self):
        return 4

    def __getitem__(self, row):
        if row == 2:
            raise KeyError("nothing here")
        return np.zeros(2), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_fails_is_named(workers):
    source = DatasetSource(Sometimes(), workers)
    assert source.ids(np.array([1, 3])) == ["b", "d"]
    with pytest.raises(RunFailed, match="row 2 of the data could not be made into a batch: KeyError"):
        list(source.batches(Order(1, epochs=1)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train__groups": [{"match": "bias", "options": {"learning_rate": 1}}]}, "the optimizer has no such option"),
        ({"train__groups": [{"match": "bias", "options": {"wight_decay": 1}}]}, "did you mean: weight_decay"),
        ({"export": {"metric": "val_accuracy"}}, "higher values of 'val_accuracy' are better"),
        ({"train__stop": {"metric": "val_accuracy", "patience": "2ep"}}, "higher values of 'val_accuracy' are better"),
        ({"train__stop": {"patience": "0ep"}}, "patience must not be zero"),
        ({"train__every": {"log": "3 epochs"}}, "such as 3ep, 0.5ep, 500ba or 90s"),
        ({"train__every": {"log": "9" * 5000 + "ba"}}, "such as 3ep"),
        ({"train__optimizer": {"class": "lbfgs"}, "train__clip_norm": 1.0}, "LBFGS"),
        ({"train__threads": 10**11}, "train.threads"),
    ],
)  # fmt: skip
def test_mistakes(project, cli, changes, says):
    project.config(
        {
            **project.changed(**{k: v for k, v in changes.items() if "__" in k}),
            **{k: v for k, v in changes.items() if "__" not in k},
        }
    )
    answer = cli("config", "check", "runs/a")
    assert answer.code == 2
    assert says in answer.err
    assert "bug in manyfit" not in answer.err


def test_two_losses_are_one_too_many(project):
    project.write(
        "src/own.py",
        """
        from torch.nn import functional as F
        from models import MLP

        class Own(MLP):
            def forward(self, images, target):
                output = super().forward(images)
                return output, F.cross_entropy(output, target)
        """,
    )
    with pytest.raises(RunFailed, match="is set as well"):
        manyfit.train(project.changed(model={"class": "own.Own"}), folder="runs/b", callbacks=[])


@pytest.mark.parametrize("value", [0, -3, 2.5, None])
def test_a_batch_size_that_cannot_be(project, value):
    project.write(
        "src/odd.py",
        f"""
        from points import Blobs

        class Odd(Blobs):
            def __init__(self) -> None:
                super().__init__()
                self.batch_size = {value!r}
        """,
    )
    with pytest.raises(UsageError, match="batch_size"):
        manyfit.train(project.changed(data={"class": "odd.Odd"}), folder="runs/b", callbacks=[])


def test_bad_files_of_new_data(project, cli):
    manyfit.train("runs/a", callbacks=[])
    np.save("empty.npy", np.zeros((0, 64)))
    np.save("number.npy", np.float32(3))
    Path("broken.npz").write_bytes(b"PK\x03\x04 no")
    for name in ("empty.npy", "number.npy", "broken.npz"):
        answer = cli("predict", "runs/a", "--data", name)
        assert answer.code == 2, answer.err
    np.save("double.npy", np.zeros((3, 64)))
    assert cli("predict", "runs/a", "--data", "double.npy").code == 0
    assert cli("predict", "runs/a", "-o", "nowhere/x.csv").code == 2
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("folder", ["afile", "afile/run", "afile/further/run"])
def test_a_file_where_a_folder_is_to_be(project, folder):
    Path("afile").write_text("mine")
    with pytest.raises(UsageError, match="afile is a file"):
        manyfit.train(project.changed(), folder=folder, callbacks=[])
    assert Path("afile").read_text() == "mine"


def test_a_log_that_was_deleted_or_replaced(project):
    manyfit.train("runs/a", callbacks=[])
    size = (project.run / "metrics.jsonl").stat().st_size
    (project.run / "metrics.jsonl").write_bytes(b"[" * size)
    with pytest.raises(FolderError, match="damaged"):
        manyfit.train("runs/a", ["train.epochs=3"], callbacks=[])


def test_slow_steps_are_paused_after_each_of_them():
    """A signal is seen after one step, or half a second, also at the beginning."""
    from manyfit.run.loop.clock import Pace
    from manyfit.run.loop.plan import Plan

    now = [0.0]
    plan = Plan(steps_per_epoch=1000, epochs=1)
    for seconds_a_step, most in ((3.0, 1), (0.001, 500)):
        pace, step = Pace(plan, clock=lambda: now[0]), 0
        assert pace.most == 1
        for _ in range(12):
            boundary = plan.next(step, pace.most)
            pace.begin()
            now[0] += seconds_a_step * (boundary.step - step)
            pace.pause(boundary, boundary.step - step)
            step = boundary.step
            if step >= plan.total:
                break
        assert pace.most <= most
        assert pace.most == 1 or pace.most > 100, "fast steps are not paused all the time"


def test_memory_mapped_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = ArraySource(mapped, np.arange(20))
    batch = next(iter(source.batches(Order(4, seed=1))))
    assert np.array_equal(batch.inputs, np.asarray(mapped)[batch.index])
    assert torch.from_numpy(batch.inputs).shape == (4, 2)
    assert source.fingerprint() == ArraySource(np.array(mapped), np.arange(20)).fingerprint()


@pytest.mark.soak
def test_a_second_interrupt_ends_at_once(project):
    project.write(
        "src/slow.py",
        """
        import time
        from models import MLP

        class Slow(MLP):
            def forward(self, images):
                time.sleep(5.0 * self.training)
                return super().forward(images)
        """,
    )
    project.config(project.changed(model={"class": "slow.Slow"}), run="slow")
    words = [sys.executable, "-m", "manyfit", "train", "runs/slow"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("training"):
            break
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(3) == -signal.SIGINT
    process.stderr.close()
