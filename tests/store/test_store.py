"""Event log, checkpoints, locks and folders."""

import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core.errors import FolderError, RunConflict, RunFailed
from manyfit.core.state import State
from manyfit.store import durable
from manyfit.store.checkpoint import Keep, checkpoints, newest, prune_checkpoints, save_checkpoint
from manyfit.store.events import Event, EventLog, read_events
from manyfit.store.files import readable
from manyfit.store.folder import RunFolder, run_folders
from manyfit.store.lock import hold_lock, is_owned
from manyfit.store.manifest import Note
from manyfit.store.tensorboard import TensorBoardMirror
from manyfit.store.writer import Writer

number = st.floats(allow_nan=False) | st.just(math.inf)


@given(
    st.dictionaries(st.sampled_from(["val_loss", "train_loss", "lr"]), number),
    st.integers(0),
    st.floats(0, 1e6),
)
def test_an_event_is_read_back_exactly(values, step, epoch):
    event = Event(step, epoch, 1.5, values)
    assert Event.parse(event.line()) == event
    json.loads(event.line(), parse_constant=pytest.fail)


def test_not_a_number_survives(tmp_path):
    with EventLog(tmp_path / "m.jsonl") as log:
        log.append(1, 1.0, {"loss": math.nan})
    assert math.isnan(read_events(tmp_path / "m.jsonl")[0].values["loss"])


def test_what_no_checkpoint_committed_is_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    with EventLog(path) as log:
        log.append(1, 1.0, {"a": 1.0})
        log.sync()
        length = log.length
        log.append(2, 2.0, {"a": 2.0})
    with EventLog(path, length) as log:
        log.append(2, 2.0, {"a": 3.0})
    assert [event.values["a"] for event in read_events(path)] == [1.0, 3.0]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    with EventLog(path) as log:
        log.append(1, 1.0, {"a": 1.0})
    path.write_bytes(path.read_bytes() + b'{"step": 2, "ep')
    assert len(read_events(path)) == 1


def test_a_log_that_is_too_short_or_damaged(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("not json\n")
    with pytest.raises(FolderError, match="damaged"):
        read_events(path)
    with pytest.raises(FolderError, match="shorter"):
        EventLog(path, 100)


def checkpoint(folder, step, **metrics):
    return save_checkpoint(
        folder,
        State({"w": torch.full((2,), float(step))}, {"step": step}),
        Note(step, step / 10, metrics, step),
    )


def test_checkpoints_are_read_back(tmp_path):
    checkpoint(tmp_path, 10, val_loss=1.0)
    checkpoint(tmp_path, 2, val_loss=math.nan)
    found = checkpoints(tmp_path)
    assert [c.step for c in found] == [2, 10]
    assert found[1].load().tensors["w"].tolist() == [10.0, 10.0]
    assert found[1].values == {"step": 10}


def test_last_and_best_follow_from_manifests(tmp_path):
    for step, loss in [(1, 3.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, math.nan)]:
        path = checkpoint(tmp_path, step, val_loss=loss).path
        os.utime(path, (1e9 - step, 1e9 - step))
    found = checkpoints(tmp_path)
    assert Keep("val_loss", "min").best(found).step == 2, "the earlier one of equals"
    assert Keep("val_loss", "max").best(found).step == 1
    assert Keep("nothing", "min").best(found) is None
    prune_checkpoints(tmp_path, Keep("val_loss", "min", last=1, top=2))
    assert [c.step for c in checkpoints(tmp_path)] == [2, 3, 5]
    prune_checkpoints(tmp_path, Keep("val_loss", "min", last=1))
    assert [c.step for c in checkpoints(tmp_path)] == [2, 5]


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_damage_is_found(tmp_path, file):
    saved = checkpoint(tmp_path, 1, val_loss=1.0)
    data = bytearray((saved.path / file).read_bytes())
    data[0] ^= 0xFF
    (saved.path / file).write_bytes(bytes(data))
    with pytest.raises(FolderError, match="damaged"):
        newest(tmp_path)
    checkpoint(tmp_path, 0, val_loss=1.0)
    found = newest(tmp_path)
    assert found.checkpoint.step == 0
    assert "damaged" in next(iter(found.wrong.values()))


def test_a_checkpoint_that_was_not_committed_does_not_count(tmp_path):
    saved = checkpoint(tmp_path, 1)
    saved.path.rename(tmp_path / ".step-000000002.tmp")
    assert checkpoints(tmp_path) == []
    checkpoint(tmp_path, 2)
    assert [c.step for c in checkpoints(tmp_path)] == [2]


@pytest.mark.parametrize("waits", list(itertools.product([False, True], repeat=4)))
def test_what_a_writer_was_given_is_on_disk_as_it_was_then(tmp_path, waits):
    live = torch.zeros(2)
    writer = Writer(tmp_path, Keep("val_loss", "min", last=1, top=1), EventLog(tmp_path / "log"))
    losses = [2.0, 1.0, 3.0, 4.0]
    for step, (wait, loss) in enumerate(zip(waits, losses, strict=True), start=1):
        live.fill_(step)
        note = Note(step, step, {"val_loss": loss}, 10 * step)
        if step == 2:
            writer.hold(State({"w": live}), note)
            continue
        writer.put(State({"w": live}), note, wait)
        if wait:
            assert writer.done() == 10 * step
    writer.flush()
    writer.close()
    found = {c.step: c.load().tensors["w"].tolist() for c in checkpoints(tmp_path)}
    assert found == {2: [2.0, 2.0], 4: [4.0, 4.0]}
    assert writer.done() == 40


@pytest.mark.parametrize("head", ['"step": 1, "epoch": 1, "time": "x"', '"step": -0.0, "epoch": 1, "time": 1',
                                  '"step": 1, "epoch": null, "time": 1', '"step": -1, "epoch": 1, "time": 1'])  # fmt: skip
def test_a_row_without_a_step_or_a_time_is_damage(tmp_path, head):
    (tmp_path / "log").write_text(f'{{{head}, "val_loss": 1.0}}\n')
    with pytest.raises(FolderError, match="damaged"):
        read_events(tmp_path / "log")


@pytest.mark.parametrize("last", [1, 2, 3, 100])
def test_on_a_slow_disk_the_same_checkpoints_are_left(tmp_path, monkeypatch, last):
    real = durable.sync_folder

    def slow(path):
        time.sleep(0.02)
        real(path)

    monkeypatch.setattr(durable, "sync_folder", slow)
    writer = Writer(tmp_path, Keep("val_loss", "min", last=last, top=1), EventLog(tmp_path / "log"))
    for step in range(1, 16):
        note = Note(step, step, {"val_loss": 1.0 if step == 4 else 2.0 + step}, step)
        writer.put(State({"w": torch.zeros(2)}), note)
    writer.flush()
    writer.close()
    assert [c.step for c in checkpoints(tmp_path)] == sorted({4, *range(max(1, 16 - last), 16)})


@pytest.mark.parametrize("wait", [False, True])
def test_the_log_is_on_disk_before_a_checkpoint_counts_on_it(tmp_path, monkeypatch, wait):
    done, real = [], os.fsync

    def fsync(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(durable, "before", lambda operation, path: done.append((operation, path.name)))
    with EventLog(tmp_path / "log") as log:
        writer = Writer(tmp_path / "checkpoints", Keep("val_loss", "min"), log)
        for step in (1, 2):
            log.append(step, step, {"val_loss": 1.0})
            writer.put(State({"w": torch.zeros(2)}), Note(step, step, {}, log.length), wait)
            writer.flush()
            assert done.index("log") < done.index(("rename", f"step-{step:09d}"))
            done.clear()
        writer.close()


def test_a_disk_that_is_full_is_said_by_whoever_waits(tmp_path, monkeypatch):
    writer = Writer(tmp_path, Keep("val_loss", "min"), EventLog(tmp_path / "log"))
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(full))
    with pytest.raises(RunFailed, match="No space left"):
        writer.put(State({"w": torch.zeros(2)}), Note(1, 1, {}, 1), wait=True)
    with pytest.raises(RunFailed, match="No space left"):
        writer.flush()
    assert checkpoints(tmp_path) == []


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
), st.integers(0, 4))  # fmt: skip
def test_readable_json_is_json(found, depth):
    assert json.loads(readable(found, depth)) == found


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    durable.write_file(tmp_path / "a", "old")
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        durable.write_file(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_one_owner(tmp_path):
    assert not is_owned(tmp_path)
    with hold_lock(tmp_path):
        assert is_owned(tmp_path)
        with pytest.raises(RunConflict, match=f"pid {os.getpid()}"), hold_lock(tmp_path):
            pass
    assert not is_owned(tmp_path)


def test_a_lock_makes_no_folder_above_its_own(tmp_path):
    moved = tmp_path / "studies" / "s" / "trials"
    with pytest.raises(FileNotFoundError), hold_lock(moved / "1-0"):
        pass
    with pytest.raises(FileNotFoundError):
        TensorBoardMirror(moved / "1-0" / "tensorboard", [])
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_reads_what_was_committed(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    mirror = TensorBoardMirror(tmp_path, [Event(1, 0.5, 100.0, {"val_loss": 2.0})])
    mirror.write([Event(2, 1.0, 200.0, {"val_loss": 1.0})])
    mirror.close()
    mirror = TensorBoardMirror(
        tmp_path, [Event(1, 0.5, 100.0, {"val_loss": 2.0}), Event(3, 1.5, 300.0, {"val_loss": 0.5})]
    )
    mirror.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [(e.wall_time, e.step, e.value) for e in reader.Scalars("val_loss")] == [
        (100.0, 1, 2.0),
        (300.0, 3, 0.5),
    ]


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(FolderError):
        list(run_folders(tmp_path / "nothing"))
    assert list(run_folders(tmp_path)) == []
    assert RunFolder(tmp_path).state() == "new"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_dead_process_left_is_removed_even_if_nobody_has_asked_for_it(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    left = tmp_path / f".new-{ended.pid}-left"
    left.mkdir()
    with durable.staging(tmp_path):
        assert not left.exists()
    ended.wait()
