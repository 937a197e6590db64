"""Ready data classes: images, text, HDF5 and LMDB, with workers and after a resume."""

import csv

import numpy as np
import pytest
from tests.run.cut import resumes

import manyfit
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.data import Hdf5, ImageFolder, ImagePairs, Lmdb, Order, TextFile, pad, write_lmdb
from manyfit.data.files.held_out import read_split_file, write_split_file
from manyfit.testing import SourceContract

h5py, image_module = pytest.importorskip("h5py"), pytest.importorskip("PIL.Image")
lmdb = pytest.importorskip("lmdb")

ROWS = 60
QUICK = (("hdf5", 3), ("lmdb", 1), ("own", 3))


def points():
    state = np.random.RandomState(0)
    target = np.arange(ROWS) % 10
    centres = np.random.RandomState(9).normal(size=(10, 64))
    return (centres[target] + 0.5 * state.normal(size=(ROWS, 64))).astype(np.float32), target.astype(np.int64)


@pytest.fixture
def h5(tmp_path):
    x, y = points()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = x, y
        file["name"] = [f"n{i}" for i in range(ROWS)]
        file.attrs["classes"] = [str(i) for i in range(10)]
    return tmp_path / "data.h5"


@pytest.fixture
def records(tmp_path):
    x, y = points()
    write_lmdb(tmp_path / "data.lmdb", ((f"r{i:03d}", {"x": x[i], "target": y[i]}) for i in range(ROWS)))
    return tmp_path / "data.lmdb"


@pytest.fixture
def images(tmp_path):
    state = np.random.RandomState(0)
    for label, name in enumerate(["cat", "dog", "eel"]):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(12):
            pixels = state.randint(0, 60, size=(9, 12, 3)).astype(np.uint8)
            pixels[..., label] += 150
            image_module.fromarray(pixels).save(tmp_path / f"images/{name}/{i:02d}.png")
    return tmp_path / "images"


class TestHdf5Rows(SourceContract):
    @pytest.fixture(autouse=True)
    def place(self, h5):
        self.file = h5

    def make(self):
        return Hdf5(self.file, "x", "y", id="name").source("train")


class TestLmdbRows(SourceContract):
    @pytest.fixture(autouse=True)
    def place(self, records):
        self.file = records

    def make(self):
        return Lmdb(self.file).source("train")


class TestImageRows(SourceContract):
    @pytest.fixture(autouse=True)
    def place(self, images):
        self.folder = images

    def make(self):
        return ImageFolder(self.folder, size=8).source("train")


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        pytest.param(kind, workers, marks=[] if (kind, workers) in QUICK else [pytest.mark.soak])
        for kind in ("hdf5", "lmdb", "own")
        for workers in (0, 1, 3)
    ],
)
def test_rows_do_not_depend_on_workers_or_restarts(project, h5, records, kind, workers):
    project.write(
        "src/rows.py",
        """
        import random
        import numpy as np
        from manyfit.data import Hdf5
        from torch.utils.data import WeightedRandomSampler

        class Texts:
            def __init__(self, file, split):
                self.source = Hdf5(file, "x", "y").source(split)

            def __len__(self):
                return len(self.source)

            def __getitem__(self, row):
                batch = self.source.make_batch(np.array([row]))
                return batch.inputs[0] + np.float32(0.01 * random.random()), int(batch.target[0])

        def train(file: str) -> Texts:
            return Texts(__import__("pathlib").Path(file), "train")

        def validation(file: str) -> Texts:
            return Texts(__import__("pathlib").Path(file), "validation")

        def sampler(dataset):
            return WeightedRandomSampler([1.0 + i % 2 for i in range(len(dataset))], len(dataset))

        def collate(rows):
            import torch
            return torch.stack([torch.as_tensor(x) for x, _ in rows]) * 2, torch.tensor([y for _, y in rows])
        """,
    )
    data = {
        "hdf5": {"class": "manyfit.data.Hdf5", "file": str(h5), "inputs": "x", "target": "y", "batch_size": 8},
        "lmdb": {"class": "manyfit.data.Lmdb", "file": str(records), "batch_size": 8},
        "own": {"class": "manyfit.data.Splits", "batch_size": 8, "sampler": "rows.sampler", "collate": "rows.collate", "drop_last": True,
                "train": {"class": "rows.train", "file": str(h5)}, "validation": {"class": "rows.validation", "file": str(h5)}},
    }  # fmt: skip
    tree = project.changed(data={**data[kind], "workers": workers}, train__epochs=3)
    result = resumes(project, tree, step=7)
    plain = manyfit.train({**tree, "data": data[kind]}, folder="runs/plain", callbacks=[])
    assert result.metrics == plain.metrics


def test_hdf5_groups_are_splits_and_mistakes_are_named(tmp_path, h5):
    x, y = points()
    with h5py.File(tmp_path / "g.h5", "w") as file:
        for split, part in (("train", slice(0, 40)), ("test", slice(40, 60))):
            file[f"{split}/x"], file[f"{split}/y"] = x[part], y[part]
    data = Hdf5(tmp_path / "g.h5", "x", "y")
    assert [len(s) if (s := data.source(split)) else None for split in ("train", "validation", "test")] == [
        40,
        None,
        20,
    ]
    assert Hdf5(h5, "x", "y").facts()["classes"] == 10
    for options, words in (
        ({"inputs": "z"}, "has no 'z'"),
        ({"inputs": "x", "target": "yy"}, "did you mean 'y'"),
    ):
        with pytest.raises(UsageError, match=words):
            Hdf5(h5, **options).source("train")
    (tmp_path / "bad.h5").write_bytes(b"no")
    with pytest.raises(UsageError, match="cannot be read as HDF5"):
        Hdf5(tmp_path / "bad.h5", "x").source("train")
    with pytest.raises(UsageError, match="there is no file"):
        Hdf5(tmp_path / "none.h5", "x").source("train")


def test_batches_of_hdf5_are_the_rows_that_were_asked_for(h5):
    x, y = points()
    source = Hdf5(h5, "x", "y", id="name", validation=0.2, test=0.2).source("train")
    for batch, _ in zip(source.batches(Order(7, seed=3)), range(12), strict=False):
        rows = source.rows[batch.index]
        assert np.array_equal(batch.inputs, x[rows]) and np.array_equal(batch.target, y[rows])
        assert source.ids(batch.index) == [f"n{row}" for row in rows]


def test_lmdb_mistakes(tmp_path, records):
    with pytest.raises(UsageError, match="a row has no 'label'"):
        next(iter(Lmdb(records, target="label").source("train").batches(Order(2))))
    with pytest.raises(UsageError, match="already exists"):
        write_lmdb(records, [])
    with pytest.raises(UsageError, match="two rows have the ID"):
        write_lmdb(tmp_path / "b.lmdb", [("a", {"x": np.zeros(1)}), ("a", {"x": np.zeros(1)})])
    with lmdb.open(str(tmp_path / "c.lmdb"), subdir=False) as env, env.begin(write=True) as put:
        put.put(b"k", b"text")
    with pytest.raises(UsageError, match="not arrays in the format of safetensors"):
        next(iter(Lmdb(tmp_path / "c.lmdb", validation=0, test=0).source("train").batches(Order(1))))


def test_a_folder_of_images_trains_without_code(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = [
        {"class": "torch.nn.Flatten"},
        {"class": "torch.nn.Linear", "in_features": 192, "out_features": "${data.classes}"},
    ]
    tree = {
        "data": {"class": "manyfit.data.ImageFolder", "folder": "images", "size": 8, "batch_size": 6},
        "model": {"class": "torch.nn.Sequential", "args": layers},
        "train": {"epochs": 8, "loss": "cross_entropy", "metrics": ["accuracy"], "optimizer": {"class": "adam", "lr": 0.01}},
    }  # fmt: skip
    result = manyfit.train(tree, folder="runs/a", callbacks=[])
    assert result.test["accuracy"] == 1.0
    with (result.folder / "reports/test.csv").open() as file:
        assert next(csv.DictReader(file))["id"].endswith(".png")
    found = manyfit.predict("runs/a", data="images/dog")
    assert len(found["id"]) == 12 and set(found["prediction"]) == {1}


def test_images_in_folders_of_splits(images, tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "s" / split / name).mkdir(parents=True)
            for file in list((images / name).iterdir())[: 4 if split == "train" else 2]:
                (tmp_path / "s" / split / name / file.name).write_bytes(file.read_bytes())
    data = ImageFolder(tmp_path / "s", channels=1)
    assert (
        len(data.source("train")) == 8 and len(data.source("validation")) == 4 and data.source("test") is None
    )
    assert data.facts()["class_names"] == ["cat", "dog"]
    assert next(iter(data.source("train").batches(Order(2)))).inputs.shape == (2, 1, 9, 12)
    (tmp_path / "s/val/eel").mkdir()
    with pytest.raises(UsageError, match="'eel', which is not among the training images"):
        data.source("validation")
    (tmp_path / "s/train/cat/x.png").write_bytes(b"no image")
    with pytest.raises(ManyfitError, match=r"x\.png cannot be read as an image"):
        list(ImageFolder(tmp_path / "s").source("train").batches(Order(20, epochs=1)))


def test_pairs(images, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(10):
            (tmp_path / name / f"{i}.png").write_bytes((images / "cat" / f"{i:02d}.png").read_bytes())
    aligned = ImagePairs(tmp_path / "a", tmp_path / "b", size=8).source("train")
    batch = next(iter(aligned.batches(Order(4, seed=1))))
    assert np.array_equal(batch.inputs, batch.target)
    loose = ImagePairs(tmp_path / "a", tmp_path / "b", aligned=False, size=8).source("train")
    first, again = (next(iter(loose.batches(Order(4, seed=1)))) for _ in range(2))
    assert set(first.inputs) == {"first", "second"}
    assert np.array_equal(first.inputs["second"], again.inputs["second"])
    (tmp_path / "b/9.png").unlink()
    with pytest.raises(UsageError, match="'9' has no partner"):
        ImagePairs(tmp_path / "a", tmp_path / "b").source("train")


def test_split_files(h5, tmp_path):
    ids = [f"n{i}" for i in range(ROWS)]
    write_split_file(
        tmp_path / "split.csv", {"train": ids[:40], "validation": ids[40:50], "test": ids[50:55]}
    )
    data = Hdf5(h5, "x", "y", id="name", split_file=tmp_path / "split.csv")
    assert data.source("test").ids(np.arange(5)) == ids[50:55]
    before = data.source("train").fingerprint()
    write_split_file(
        tmp_path / "split.csv", {"train": ids[:39], "validation": ids[40:50], "test": ids[50:55]}
    )
    assert (
        Hdf5(h5, "x", "y", id="name", split_file=tmp_path / "split.csv").source("train").fingerprint()
        != before
    )
    for text, words in (("id,split\nzz,train\n", "no row 'zz'"), ("id,split\nn1,dev\n", "none of"), ("a,b\n", "must have the columns"),
                        ("id,split\nn1,train\nn1,test\n", "more than once")):  # fmt: skip
        (tmp_path / "split.csv").write_text(text)
        with pytest.raises(UsageError, match=words):
            read_split_file(tmp_path / "split.csv", ids)


def test_text_with_a_vocabulary(tmp_path):
    lines = [f"the film was {'good' if i % 2 else 'bad'}, number {i}" for i in range(40)]
    (tmp_path / "t.csv").write_text(
        "text,mood\n" + "".join(f'"{line}",{"up" if i % 2 else "down"}\n' for i, line in enumerate(lines))
    )
    data = TextFile(tmp_path / "t.csv", target="mood", length=8, min_count=2)
    source = data.source("train")
    assert data.facts() == {
        "vocabulary_size": 2 + len(data.words),
        "length": 8,
        "classes": 2,
        "class_names": ["down", "up"],
    }
    assert source.inputs.shape == (len(source), 8) and source.inputs.max() < data.facts()["vocabulary_size"]
    assert "number" in data.words and "17" not in data.words
    assert (source.inputs == 1).any() and (source.inputs[:, 7] == 0).all()
    (tmp_path / "t.txt").write_text("\n".join(lines))
    plain = TextFile(tmp_path / "t.txt", length=6, level="character").source("train")
    assert np.array_equal(plain.inputs[:, 1:], plain.target[:, :-1])
    with pytest.raises(UsageError, match="has only texts"):
        TextFile(tmp_path / "t.txt", target="mood").source("train")


def test_padding():
    rows = [(np.array([1, 2, 3]), np.array([0, 1, 1])), (np.array([4]), np.array([1]))]
    inputs, target = pad(rows)
    assert inputs.tolist() == [[1, 2, 3], [4, 0, 0]] and target.tolist() == [[0, 1, 1], [1, -100, -100]]
    (inputs, sizes), label = pad([(np.array([1.0, 2.0]), 1), (np.array([3.0]), 0)], value=9, lengths=True)
    assert inputs.tolist() == [[1, 2], [3, 9]] and sizes.tolist() == [2, 1] and label.tolist() == [1, 0]
    found = pad([{"x": np.array([1, 2]), "target": 1}, {"x": np.array([3]), "target": 0}], lengths=True)
    assert found["x"].tolist() == [[1, 2], [3, 0]] and found["x_lengths"].tolist() == [2, 1]
