"""Every row of every report is what a plain forward pass gives for it, through whichever door it comes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import manyfit
from manyfit.data.tfrecord.writer import write_records
from manyfit.run.evaluation.row_report import interpret

DOORS = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset
from manyfit.data import ArraySource, DatasetSource, IterableSource

COUNTS = {"train": 40, "validation": 21, "test": 22}
BEGIN = {"train": 0, "validation": 40, "test": 61}


def row(i):
    state = np.random.RandomState(i)
    x = state.normal(size=6).astype("float32")
    return x, int(abs(x[0]) * 10) % 3


class Rows(Dataset):
    def __init__(self, split):
        self.begin, self.count = BEGIN[split], COUNTS[split]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        x, y = row(self.begin + i)
        return torch.from_numpy(x), y


class Everything(Dataset):
    def __len__(self):
        return 83

    def __getitem__(self, i):
        x, y = row(i)
        return torch.from_numpy(x), y


ALL = Everything()


class Doors:
    def __init__(self, kind: str = "array", workers: int = 0) -> None:
        self.batch_size, self.kind, self.workers = 8, kind, workers

    def source(self, split):
        numbers = range(BEGIN[split], BEGIN[split] + COUNTS[split])
        ids = [f"row-{i}" for i in numbers]
        if self.kind == "array":
            rows = [row(i) for i in numbers]
            return ArraySource(np.stack([x for x, _ in rows]), np.array([y for _, y in rows]), ids)
        if self.kind == "dataset":
            return DatasetSource(Rows(split), self.workers, ids)
        if self.kind == "subset":
            order = np.random.RandomState(0).permutation(83)[list(numbers)]
            return DatasetSource(Subset(ALL, order.tolist()), self.workers, [f"row-{i}" for i in order])
        return IterableSource(lambda: (row(i) for i in numbers), len(numbers), ids)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def doors(project):
    project.write("src/doors.py", DOORS)
    return project


def compared(folder, name, expected):
    """Compare every row of both reports with a plain forward pass."""
    from doors import row

    model = manyfit.load_model(folder).eval()
    for split, count in expected.items():
        with (Path(folder) / f"reports/{split}.csv").open() as file:
            found = list(csv.DictReader(file))
        assert len({each["id"] for each in found}) == len(found) == count
        for each in found:
            x, y = row(name(split, each["id"]))
            with torch.no_grad():
                output = model(torch.from_numpy(x)[None])
            assert int(each["target"]) == y
            assert int(each["prediction"]) == int(output.argmax())
            wanted = float(F.cross_entropy(output, torch.tensor([y])))
            assert float(each["loss"]) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "limit", [[], ["train.limit.test=2", "train.limit.validation=1"]], ids=["all", "some"]
)
@pytest.mark.parametrize("kind", ["array", "dataset", "subset", "iterable"])
def test_sources(doors, kind, limit):
    tree = doors.changed(data={"class": "doors.Doors", "kind": kind}, model={"class": "doors.Net"})
    manyfit.train(tree, limit, folder="runs/b", callbacks=[])
    counts = {"validation": 8, "test": 16} if limit else {"validation": 21, "test": 22}
    compared("runs/b", lambda split, id_: int(id_.rpartition("-")[2]), counts)


def test_workers(doors):
    data = {"class": "doors.Doors", "kind": "dataset", "workers": 2}
    manyfit.train(doors.changed(data=data, model={"class": "doors.Net"}), folder="runs/b", callbacks=[])
    compared("runs/b", lambda split, id_: int(id_.rpartition("-")[2]), {"validation": 21, "test": 22})


@pytest.mark.parametrize("options", [{}, {"cache": True}, {"id_feature": "name"}, {"num_parallel_reads": 3}])
def test_records(doors, options, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(doors.root / "cache"))
    import sys

    sys.path.insert(0, str(doors.src))
    from doors import BEGIN, COUNTS, row

    (doors.root / "data").mkdir()
    for split, count in COUNTS.items():
        rows = [
            {"x": row(i)[0].tolist(), "y": [row(i)[1]], "name": f"row-{i}"}
            for i in range(BEGIN[split], BEGIN[split] + count)
        ]
        write_records(doors.root / f"data/{split}-0", rows[: count // 2])
        write_records(doors.root / f"data/{split}-1", rows[count // 2 :])
    feeder = {
        "type": "TFRecordExamplesFeeder",
        "auto_generate_meta": True,
        "features_map": {"x": {"type": "FixedLenFeature", "shape": [6], "dtype": "float32"}},
        "labels_map": {"y": {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}},
        **options,
    }
    data = {"class": "manyfit.feeders.Feeders", "batch_size": 8}
    data |= {split: {**feeder, "file_patterns": f"data/{split}-*"} for split in COUNTS}
    manyfit.train(doors.changed(data=data, model={"class": "doors.Net"}), folder="runs/b", callbacks=[])

    def number(split, id_):
        if "id_feature" in options:
            return int(id_.rpartition("-")[2])
        file, _, place = id_.partition(":")
        return BEGIN[split] + int(place) + (COUNTS[split] // 2 if file.endswith("-1") else 0)

    compared("runs/b", number, {"validation": 21, "test": 22})


def test_one_score_is_not_a_class():
    output = np.array([[-1.0], [2.0]])
    prediction, confidence = interpret(output, np.array([0, 1]))
    assert confidence is None
    assert prediction is output
