"""Studies and runs whose steps are launched together: on a GPU by default, here because they are compiled."""

import gc
import weakref

import pytest
import torch
from tests.study.test_fusing import GRID, check_tables, fused, states

import manyfit
from manyfit.learn.torch.fused.launch import launcher
from manyfit.learn.torch.fused.launch.program import Program
from manyfit.learn.torch.learner import TorchLearner
from manyfit.store.events import Event
from manyfit.store.folder import RunFolder
from manyfit.study.status import status

COMPILED = {"train.epochs": 3, "train.compile": "default"}


@pytest.fixture
def programs(monkeypatch):
    """All programs that are made; they have four slots."""
    found, make = [], Program.__init__

    def init(self, *given, **options):
        make(self, *given, **options)
        found.append(weakref.ref(self))

    monkeypatch.setattr(Program, "__init__", init)
    monkeypatch.setattr(launcher, "STEPS", 4)
    return found


def test_a_compiled_study(lab, programs):
    search = {"method": "grid", "seeds": 1}
    lab.write(space=GRID, search=search, set={"train.epochs": 3})
    lab.sweep()
    alone = lab.table()
    lab.clear()
    lab.write(space=GRID, search=search, set=COMPILED, execute={"on": "inline", "fuse": 8})
    lab.sweep()
    check_tables(alone, lab.table())
    assert fused(lab) == 8 and programs
    assert all(values.get("compiled") == "default" for values in _read_marks(lab))


def _read_marks(lab):
    folders = sorted((lab.folder / "trials").iterdir())
    return [RunFolder(each).checkpoints()[-1].load().values for each in folders]


def test_a_study_that_goes_on_has_the_same_bits(lab, programs):
    search, execute = {"method": "grid", "seeds": 1}, {"on": "inline", "fuse": 8}
    lab.write(space=GRID, search=search, set=COMPILED, execute=execute)
    lab.sweep()
    whole = states(lab)
    lab.clear()
    lab.write(space=GRID, search=search, set={**COMPILED, "train.epochs": 1}, execute=execute)
    lab.sweep()
    lab.write(space=GRID, search=search, set=COMPILED, execute=execute)
    lab.sweep()
    found = states(lab)
    assert found.keys() == whole.keys()
    for name, tensors in whole.items():
        assert all(torch.equal(tensor, found[name][key]) for key, tensor in tensors.items())


def test_a_compiled_run(project, programs):
    tree = project.changed(train__epochs=3)
    alone = manyfit.train(tree, folder="runs/one", callbacks=[])
    tree["train"]["compile"] = "default"
    found = manyfit.train(tree, folder="runs/two", callbacks=[])
    assert programs
    assert found.metrics["val_loss"] == pytest.approx(alone.metrics["val_loss"], rel=1e-4)
    part = manyfit.train(tree, ["train.epochs=1"], folder="runs/three", callbacks=[])
    assert part.step < found.step
    manyfit.train(tree, folder="runs/three", callbacks=[])
    folders = [RunFolder(project.root / "runs" / each) for each in ("two", "three")]
    one, two = (
        [Event.parse(line).values for line in each.metrics.read_text().splitlines()] for each in folders
    )
    assert [values["val_loss"] for values in one] == [values["val_loss"] for values in two]
    one, two = (folder.checkpoints()[-1].load() for folder in folders)
    assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())


def test_a_run_that_cannot_be_compiled_says_so(project, caplog):
    tree = project.changed(train__epochs=1, train__device="cpu")
    manyfit.train(tree, folder="runs/one", callbacks=[])
    tree["train"] |= {"compile": "default", "epochs": 2}
    manyfit.train(tree, folder="runs/one", callbacks=[])
    assert "launched one by one: the run goes on as it was begun" in caplog.text


def test_tensors_of_a_study_are_released_at_its_end(lab, monkeypatch):
    """Not only when garbage is collected: on a GPU, the next study needs the memory."""
    found, make = [], TorchLearner.__post_init__

    def init(self):
        make(self)
        found.append(weakref.ref(self))

    monkeypatch.setattr(TorchLearner, "__post_init__", init)
    lab.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2},
              execute={"on": "inline", "fuse": 8})  # fmt: skip
    gc.collect()
    gc.disable()
    try:
        lab.sweep()
        assert len(found) >= 8
        assert not [each for each in found if each() is not None]
    finally:
        gc.enable()


def test_compiled_steps_are_kept_in_the_study(lab, monkeypatch, tmp_path, caplog):
    """A study that goes on starts without compiling, also where the cache of the user is gone."""
    from torch._inductor import standalone_compile

    def write(epochs):
        lab.write(
            space={"train.optimizer.lr": [0.01, 0.03]},
            search={"method": "grid", "seeds": 1},
            set={"train.epochs": epochs, "train.compile": "default"},
            execute={"on": "inline", "fuse": 2},
        )

    write(1)
    lab.sweep()
    kept = {file.name: file.read_bytes() for file in (lab.folder / "compiled").iterdir()}
    assert kept  # the step, and validation
    compiled = []

    def note(graph, *given, **more):
        compiled.append(graph)
        return standalone_compile(graph, *given, **more)

    monkeypatch.setattr("torch._inductor.standalone_compile", note)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
    write(2)
    lab.sweep()
    assert not compiled and status(lab.folder)["state"] == "finished"
    for name in kept:  # what somebody else has put there is not executed
        (lab.folder / "compiled" / name).write_bytes(b"0" * 64 + b"\n" + kept[name].partition(b"\n")[2])
    write(3)
    lab.sweep()
    assert len(compiled) == len(kept) and "is not loaded, as it was not written here" in caplog.text
    assert status(lab.folder)["state"] == "finished"
