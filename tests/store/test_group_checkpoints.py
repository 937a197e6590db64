"""Checkpoints of several runs, written together: the same ones are kept, and found, as if each run wrote its own."""

import shutil

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from manyfit.core.errors import FolderError, RunFailed
from manyfit.core.state import State
from manyfit.run.session.session import resumable
from manyfit.store import durable
from manyfit.store.checkpoint import Keep, find_damaged, list_committed, newest, read
from manyfit.store.events import EventLog, read_events
from manyfit.store.folder import RunFolder
from manyfit.store.group_folder import create_group, discard_leftovers, refer
from manyfit.store.group_leaving import leave_group
from manyfit.store.group_writer import GroupRun, GroupWriter
from manyfit.store.manifest import Note
from manyfit.store.writer import Writer


class Runs:
    """Runs whose states are written together, as training does it."""

    def __init__(self, root, count=3, keep=None, name="g"):
        self.root = root
        self.keep = keep or Keep("loss", "min", last=2, top=1)
        self.runs = [RunFolder(root / "trials" / str(i)) for i in range(count)]
        self.group = root / "groups" / name
        for run in self.runs:
            run.path.mkdir(parents=True, exist_ok=True)
        self.logs = [
            EventLog(run.metrics, run.metrics.stat().st_size if run.metrics.exists() else 0)
            for run in self.runs
        ]
        notes = [[found.note for found in run.checkpoints()] for run in self.runs]
        self.writer = GroupWriter(self.group, [
            GroupRun(run.checkpoint_folder, self.keep, log, seen)
            for run, log, seen in zip(self.runs, self.logs, notes, strict=True)
        ])  # fmt: skip
        self.parts = self.writer.parts

    def save(self, step, losses, due=True, leaving=()):
        """Save the states of runs at a step; `losses` are by run."""
        tensors = make_tensors(step, len(self.runs))
        for i, loss in losses.items():
            self.logs[i].append(step, float(step), {"loss": loss})
            note = Note(step, float(step), {"loss": loss}, self.logs[i].length)
            state = State({name: tensor[i] for name, tensor in tensors.items()}, {"run": i, "step": step})
            (self.parts[i].put if due else self.parts[i].hold)(state, note)
        self.writer.commit([self.parts[i] for i in leaving])

    def leave(self, *numbers):
        self.writer.leave([self.parts[i] for i in numbers])

    def close(self):
        for part in self.parts:
            part.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def make_tensors(step, count):
    return {
        "w": torch.arange(count * 6, dtype=torch.float64).view(count, 2, 3) + step,
        "half": torch.full((count, 3), step, dtype=torch.bfloat16),
        "flag": torch.tensor([i % 2 == 0 for i in range(count)]),
        "none": torch.zeros(count, 0),
    }


def check_states(run, number, count):
    """Check that each checkpoint of a run has what was saved."""
    for found in run.checkpoints():
        state = found.load()
        assert state.values == {"run": number, "step": found.step}
        wanted = make_tensors(found.step, count)
        assert all(torch.equal(tensor, wanted[name][number]) for name, tensor in state.tensors.items())
        assert state.tensors.keys() == wanted.keys()


def steps(run):
    return [found.step for found in run.checkpoints()]


class Alone:
    """The same runs, each with a writer of its own."""

    def __init__(self, root, count, keep):
        self.runs = [RunFolder(root / str(i)) for i in range(count)]
        for run in self.runs:
            run.path.mkdir(parents=True)
        self.logs = [EventLog(run.metrics) for run in self.runs]
        self.writers = [
            Writer(run.checkpoint_folder, keep, log) for run, log in zip(self.runs, self.logs, strict=True)
        ]

    def save(self, step, losses, due=True):
        tensors = make_tensors(step, len(self.runs))
        for i, loss in losses.items():
            self.logs[i].append(step, float(step), {"loss": loss})
            note = Note(step, float(step), {"loss": loss}, self.logs[i].length)
            state = State({name: tensor[i] for name, tensor in tensors.items()}, {"run": i, "step": step})
            (self.writers[i].put if due else self.writers[i].hold)(state, note)


LOSS = st.sampled_from([0.1, 0.2, 0.3, 0.4, float("nan")])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), last=st.integers(1, 4), top=st.integers(1, 3))
def test_the_same_checkpoints_are_kept_as_alone(tmp_path_factory, data, last, top):
    """Whatever the losses, whichever boundaries are due, and whenever runs leave."""
    root, count, keep = tmp_path_factory.mktemp("group"), 3, Keep("loss", "min", last, top)
    alone = Alone(root / "alone", count, keep)
    with Runs(root, count, keep) as group:
        inside, kept = list(range(count)), {i: [] for i in range(count)}
        for step in range(1, data.draw(st.integers(1, 12)) + 1):
            losses = {i: data.draw(LOSS) for i in inside}
            gone = [i for i in inside if data.draw(st.integers(0, 9)) == 0]
            due = data.draw(st.booleans()) or bool(gone)
            if not due:  # only candidates are held, as `Member.is_candidate` decides
                losses = {i: loss for i, loss in losses.items()
                          if step in {n.step for n in keep.rank([*kept[i], Note(step, 0.0, {"loss": loss}, 0)])[:top]}}  # fmt: skip
            for i, loss in losses.items():
                kept[i].append(Note(step, 0.0, {"loss": loss}, 0))
            note(f"{step}: {losses}, due: {due}, leave: {gone}")
            alone.save(step, losses, due)
            group.save(step, losses, due, gone)
            group.leave(*gone)
            inside = [i for i in inside if i not in gone]
        for part in group.parts:
            part.flush()
        for i in inside:
            alone.writers[i].put_held()
        group.leave(*inside)
        for i, part in enumerate(group.parts):
            part.flush()
            alone.writers[i].flush()
            assert steps(group.runs[i]) == steps(alone.runs[i])
            check_states(group.runs[i], i, count)
            if steps(alone.runs[i]):
                assert part.done() == group.runs[i].checkpoints()[-1].log_length
    assert not (root / "groups").exists() or not list((root / "groups").iterdir())
    assert not list(root.glob("trials/*/checkpoints/group.json"))
    for writer in alone.writers:
        writer.close()
    shutil.rmtree(root)


def test_one_rename_commits_all_runs(tmp_path, monkeypatch):
    """After the first commit, nothing is written to the folders of the runs."""
    seen = []
    with Runs(tmp_path, 3) as group:
        group.save(1, dict.fromkeys(range(3), 0.3))
        group.parts[0].flush()
        monkeypatch.setattr(durable, "before", lambda operation, path: seen.append((operation, path)))
        group.save(2, dict.fromkeys(range(3), 0.2))
        group.parts[0].flush()
    assert [operation for operation, _ in seen].count("rename") == 1
    assert not [path for _, path in seen if path.is_relative_to(tmp_path / "trials")]
    for i, run in enumerate(group.runs):
        assert steps(run) == [1, 2]
        check_states(run, i, 3)


def test_readers_find_what_is_in_the_group(tmp_path):
    with Runs(tmp_path, 3) as group:
        for step, losses in enumerate([(0.1, 0.3, 0.2), (0.2, 0.2, 0.2), (0.3, 0.1, 0.4)], 1):
            group.save(step, dict(enumerate(losses)))
    run = group.runs[0]
    assert [path.name for path in list_committed(run.checkpoint_folder)] == [
        f"step-00000000{i}" for i in (1, 2, 3)
    ]
    assert run.select_checkpoint("loss", "min").step == 1
    assert read(run.checkpoint_folder / "step-000000002").load().values == {"run": 0, "step": 2}
    found = newest(run.checkpoint_folder)
    assert found is not None
    assert found.checkpoint.step == 3
    assert not find_damaged(run.checkpoint_folder)
    copy = run.checkpoints()[0].copy_to(tmp_path / "copy")
    assert torch.equal(copy.load().tensors["w"], make_tensors(1, 3)["w"][0])
    with pytest.raises(FolderError, match="has no manifest"):
        read(run.checkpoint_folder / "step-000000009")


def test_the_best_gets_files_of_its_own_when_the_others_are_pruned(tmp_path):
    with Runs(tmp_path, 6, Keep("loss", "min", last=2, top=1)) as group:
        for step in range(1, 12):  # the best step of run i is i
            group.save(step, {i: abs(step - i) for i in range(6)})
        group.parts[0].flush()
        own = [[path.name for path in run.checkpoint_folder.glob("step-*")] for run in group.runs]
        assert own == [["step-000000001"], ["step-000000001"], ["step-000000002"], ["step-000000003"], [], []]
        assert len(list(group.group.glob("commit-*"))) == 4
        for i, run in enumerate(group.runs):
            assert run.select_checkpoint("loss", "min").step == max(i, 1)
            check_states(run, i, 6)


def test_a_run_takes_its_checkpoints_out_after_a_crash(tmp_path):
    """And the rows of its log that only the group has, as after the loss of power."""
    with Runs(tmp_path, 3) as group:
        for step in (1, 2, 3):
            group.save(step, dict.fromkeys(range(3), 1 / step))
    for number, run in enumerate(group.runs):
        whole = run.metrics.read_bytes()
        run.metrics.write_bytes([b"", whole[:20], whole][number])
        before = steps(run)
        leave_group(run.checkpoint_folder, run.metrics, group.keep)
        assert run.metrics.read_bytes() == whole
        assert len(read_events(run.metrics, run.checkpoints()[-1].log_length)) == 3
        assert steps(run) == before[-2:]
        check_states(run, number, 3)
        assert group.group.exists() == (number < 2)


def test_a_damaged_group_is_said_and_kept(tmp_path):
    with Runs(tmp_path, 2) as group:
        for step in (1, 2):
            group.save(step, dict.fromkeys(range(2), 1 / step))
    commit = sorted(group.group.glob("commit-*"))[-1]
    (states,) = commit.glob("states-*")
    data = bytearray(states.read_bytes())
    data[-30] ^= 1  # a tensor of the last run
    states.write_bytes(bytes(data))
    one, other = (newest(run.checkpoint_folder) for run in group.runs)
    assert [one.checkpoint.step, other.checkpoint.step] == [2, 1]
    assert "does not match its checksum" in str(other.wrong)
    for run in group.runs:
        leave_group(run.checkpoint_folder, run.metrics, group.keep)
    assert [steps(run) for run in group.runs] == [[1, 2], [1, 2]]  # the reference stays with what is damaged
    assert group.group.exists()


def test_a_run_without_its_group_is_an_error(tmp_path):
    with Runs(tmp_path, 2) as group:
        group.save(1, {0: 0.1, 1: 0.2})
    shutil.copytree(group.runs[0].path, tmp_path / "elsewhere" / "trials" / "0")
    copy = RunFolder(tmp_path / "elsewhere" / "trials" / "0")
    with pytest.raises(FolderError, match="copied or moved without it"):
        newest(copy.checkpoint_folder)
    assert copy.state() == "damaged"


@pytest.mark.parametrize("change", [
    lambda text: text.replace('"run": 0', '"run": "0"'), lambda text: text[:10], lambda text: "[]",
    lambda text: text.replace("../", "/etc/", 1), lambda text: text.replace('"format": 1', '"format": 9'),
])  # fmt: skip
def test_a_damaged_reference_is_an_error(tmp_path, change):
    with Runs(tmp_path, 2) as group:
        group.save(1, {0: 0.1, 1: 0.2})
    file = group.runs[0].checkpoint_folder / "group.json"
    file.write_text(change(file.read_text()))
    with pytest.raises(FolderError, match=r"group\.json|does not exist"):
        newest(group.runs[0].checkpoint_folder)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_noticed(tmp_path_factory, data):
    """A run reads what it has saved, or says that it is damaged."""
    root = tmp_path_factory.mktemp("damage")
    with Runs(root, 2) as group:
        group.save(1, {0: 0.1, 1: 0.2})
    (commit,) = group.group.glob("commit-*")
    file = data.draw(st.sampled_from(sorted(commit.glob("[ms]*"))))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(bytes(content))
    for number, run in enumerate(group.runs):
        try:
            found = newest(run.checkpoint_folder)
        except FolderError:
            continue
        assert found is not None
        check_states(run, number, 2)
    shutil.rmtree(root)


def test_a_full_disk_fails_all_runs_and_loses_nothing(tmp_path, monkeypatch):
    with Runs(tmp_path, 2) as group:
        group.save(1, {0: 0.1, 1: 0.2})
        group.parts[0].flush()

        def full(operation, path):
            if operation == "write":
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(durable, "before", full)
        group.save(2, {0: 0.1, 1: 0.2})
        for part in group.parts:
            with pytest.raises(RunFailed, match="No space left on device; earlier checkpoints are intact"):
                part.flush()
    assert [steps(run) for run in group.runs] == [[1], [1]]


def test_folders_that_nobody_uses_are_removed(tmp_path):
    with Runs(tmp_path, 2) as group:
        group.save(1, {0: 0.1, 1: 0.2})
        group.parts[0].flush()
        discard_leftovers(tmp_path / "groups")
        assert group.group.exists()
    discard_leftovers(tmp_path / "groups")
    assert group.group.exists()
    for run in group.runs:
        shutil.rmtree(run.path)
    discard_leftovers(tmp_path / "groups")
    assert not group.group.exists()


def test_a_group_that_was_killed_before_its_first_commit_is_removed(tmp_path):
    """Its runs begin anew, with or without a group."""
    runs = [RunFolder(tmp_path / "trials" / name) for name in "ab"]
    for run in runs:
        run.checkpoint_folder.mkdir(parents=True)
    group = tmp_path / "groups" / "g"
    group.mkdir(parents=True)
    create_group(group, [run.checkpoint_folder for run in runs])
    for number, run in enumerate(runs):
        refer(run.checkpoint_folder, group, number)
        assert newest(run.checkpoint_folder) is None
    for run in runs:
        assert group.exists()
        assert resumable(run, Keep("val_loss", "min", 1)) is None
        assert not list(run.checkpoint_folder.iterdir())
    assert not group.exists()
