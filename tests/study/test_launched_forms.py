"""Runs of every form whose steps should be launched together: they are, or a message says why not."""

import pytest
import torch
from tests.study.test_fusing import fused, states
from tests.study.test_hopping import train_alone, trained
from tests.study.test_traveling import travel_inline

import manyfit
from manyfit.learn.torch.fused.launch import launcher, program
from manyfit.store.folder import RunFolder

DATA = """
    import numpy as np, torch
    from manyfit.data import ArraySource

    def rows(split, count):
        made = np.random.RandomState({"train": 0, "validation": 1, "test": 2}[split])
        return made.randn(count, 8, 8).astype(np.float32), made.randint(0, 10, count), made.rand(count).astype(np.float32)

    class Weighted:
        def __init__(self, batch_size: int = 16):
            self.batch_size = batch_size

        def source(self, split):
            x, y, w = rows(split, 61)
            return ArraySource(x, y, weight=w)

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, split):
            self.split = split

        def __iter__(self):
            x, y, _ = rows(self.split, 61)
            return iter(list(zip(x, (int(v) for v in y))))

    class Drawing(ArraySource):
        def batches(self, order, start=0):
            for batch in super().batches(order, start):
                yield type(batch)(batch.inputs * np.float32(np.random.rand()), batch.target, batch.index)

    class Drawn(Weighted):
        def source(self, split):
            return Drawing(*rows(split, 61)[:2])

    class Streams:
        def __init__(self, batch_size: int = 16):
            self.batch_size = batch_size

        def source(self, split):
            return Stream(split)

    class Rows(torch.utils.data.Dataset):
        def __init__(self, split):
            self.x, self.y, _ = rows(split, 61)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return self.x[i] + np.random.randn(8, 8).astype(np.float32) / 10, int(self.y[i])

    class Augmented:
        def __init__(self, batch_size: int = 16):
            self.batch_size = batch_size

        def source(self, split):
            return Rows(split)
"""
LAUNCHED = {
    "plain": {},
    "weights": {"data": {"class": "kinds.Weighted", "batch_size": 16}},
    "augmented": {"data": {"class": "kinds.Augmented", "batch_size": 16}},
    "shards": {"data__shards": 3},
    "folds": {"data__folds": 3, "data__fold": 1},
    "one short batch": {"data__batch_size": 1000},
    "limit": {"train__limit": {"train": 25, "validation": 30}},
    "class weights": {"train__class_weights": "balanced"},
    "ema": {"train__ema": 0.9, "train__accumulate": 2, "train__clip_norm": 0.1},
    "bf16": {"train__precision": "bf16"},
    "momentum": {
        "train__optimizer": {"class": "sgd", "lr": 0.05, "momentum": 0.9},
        "train__scheduler": {"class": "exponential", "gamma": 0.9},
    },
    "plateau": {"train__scheduler": {"class": "plateau", "patience": 0, "threshold": 0.5}},
    "groups": {"train__groups": [{"match": "bias$", "options": {"weight_decay": 0.0, "lr": 0.1}}]},
    "frozen": {"train__freeze": [{"match": "layers.1", "epochs": 1}]},
    "metrics": {"train__metrics": ["accuracy", "f1"], "train__every": {"validate": "3ba", "log": "2ba"}},
}
REFUSED = {
    "lbfgs": ({"train__optimizer": {"class": "lbfgs", "lr": 0.1}}, "LBFGS"),
    "fp16": ({"train__precision": "fp16"}, "fp16"),
    "stream": (
        {"data": {"class": "kinds.Streams", "batch_size": 16}},
        "IterableSource may depend on random numbers",
    ),
    "source that draws": (
        {"data": {"class": "kinds.Drawn", "batch_size": 16}},
        "rows of Drawing may depend on random numbers",
    ),
}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(launcher, "STEPS", 3)


@pytest.fixture
def marked(monkeypatch):
    """Nothing is compiled; what would be is told from the rest by its results."""

    def compile_step(step, *_):
        def compiled(state, slot):
            found = step(state, slot)
            state[0].mul_(1 + 1e-6)
            return found

        return compiled

    monkeypatch.setattr(program, "compile_step", compile_step)


def tree_of(project, changes, compile):
    project.write("src/kinds.py", DATA)
    return project.changed(
        **{"train__epochs": 3, "train__every": {"checkpoint": "1ba"}, **changes, "train__compile": compile}
    )


def last(project, folder):
    return RunFolder(project.root / "runs" / folder).checkpoints()[-1].load()


@pytest.mark.parametrize("name", LAUNCHED)
def test_it_is_launched_and_goes_on_exactly(project, short, marked, caplog, name):
    alone = manyfit.train(tree_of(project, LAUNCHED[name], "off"), folder="runs/off", callbacks=[])
    tree = tree_of(project, LAUNCHED[name], "default")
    whole = manyfit.train(tree, folder="runs/whole", callbacks=[])
    assert "launched one by one" not in caplog.text and "not compiled" not in caplog.text
    for metric in ("train_loss", "val_loss"):
        assert whole.metrics[metric] == pytest.approx(
            alone.metrics[metric], rel=2e-2 if name == "bf16" else 1e-3
        )
    assert last(project, "whole").values["compiled"] == "default"
    manyfit.train(tree, ["train.epochs=1"], folder="runs/cut", callbacks=[])
    manyfit.train(tree, folder="runs/cut", callbacks=[])
    one, two = last(project, "whole"), last(project, "cut")
    assert all(torch.equal(tensor, two.tensors[key]) for key, tensor in one.tensors.items())


@pytest.mark.parametrize("name", REFUSED)
def test_it_says_why_it_is_not_launched(project, caplog, name):
    changes, reason = REFUSED[name]
    alone = manyfit.train(tree_of(project, changes, "off"), folder="runs/off", callbacks=[])
    found = manyfit.train(tree_of(project, changes, "default"), folder="runs/on", callbacks=[])
    assert found.metrics == alone.metrics
    lines = [each for each in caplog.records if "launched one by one" in each.message]
    (line,) = [each.message for each in lines if each.levelname == "WARNING"]  # what was asked for
    assert reason in line


def test_groups_that_hop(lab, short, marked):
    """Each visit opens the group anew; the same steps are compiled whatever the size of the group."""
    lab.project.config(lab.project.changed(data__shards=3, model__dropout=0.2))
    space, found = {"train.optimizer.lr": [0.003, 0.01, 0.03, 0.1]}, []
    for fuse in (64, 2):
        lab.clear()
        lab.write(space=space, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2, "train.compile": "default"},
                  execute={"on": "inline", "hop": True, "fuse": fuse})  # fmt: skip
        lab.sweep()
        assert fused(lab) == 4
        found.append((lab.table(), states(lab)))
    assert found[0][0] == found[1][0]
    for name, tensors in found[0][1].items():
        assert all(torch.equal(tensor, found[1][1][name][key]) for key, tensor in tensors.items())


@pytest.mark.parametrize("how", ["hop", "travel"])
def test_trials_that_are_visited_one_by_one(lab, short, marked, how):
    """Where they have no folder, they are launched as anywhere else: with the same bits."""
    changes = {"data__shards": 3} if how == "hop" else {}
    lab.project.config(lab.project.changed(model__dropout=0.2, train__compile="default", **changes))
    lab.write(search__seeds=1, execute={"on": "inline", "hop": how == "hop"})
    if how == "hop":
        assert not lab.sweep().failures
    else:
        assert not lab.execute(travel_inline).failures
    folders = sorted((lab.folder / "trials").iterdir())
    for folder in folders[:3]:
        (state, events), (alone, rows) = (trained(each) for each in (folder, train_alone(lab, folder.name)))
        assert [row[:2] for row in events] == [row[:2] for row in rows]
        assert state.values["compiled"] == alone.values["compiled"] == "default"
        assert all(torch.equal(tensor, alone.tensors[name]) for name, tensor in state.tensors.items())
