"""No row of validation or test is trained on without a word, through whichever door it comes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import manyfit
from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, DatasetSource, IterableSource
from manyfit.data.overlap import Compared
from manyfit.data.tfrecord.writer import write_records

OVERLAP = """
import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from manyfit.data import ArraySource, DatasetSource, IterableSource

STATE = np.random.RandomState(0)
ROWS = STATE.normal(size=(120, 64)).astype("float32")
CLASSES = np.arange(120) % 10
PARTS = {"train": np.arange(0, 80), "validation": np.arange(80, 100), "test": np.arange(100, 120)}


class Augmented(Dataset):
    def __init__(self, rows, noise):
        self.rows, self.noise = rows, noise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return torch.from_numpy(ROWS[row]) + self.noise * torch.randn(64), int(CLASSES[row])


class Any_:
    \"\"\"Validation shares some of its rows with training.\"\"\"

    def __init__(self, kind: str = "array", shared: int = 0, split: str = "validation") -> None:
        self.batch_size, self.kind, self.shared, self.split = 16, kind, shared, split

    def rows(self, split):
        rows = PARTS[split].copy()
        if split == self.split and self.shared:
            rows[-self.shared:] = np.arange(3, 3 + 2 * self.shared, 2)
        return rows

    def source(self, split):
        rows = self.rows(split)
        if self.kind == "array":
            return ArraySource(ROWS[rows], CLASSES[rows])
        if self.kind == "dataset":
            return DatasetSource(Augmented(rows, 0.0))
        if self.kind == "subset":
            return Subset(Augmented_ALL, rows.tolist())
        if self.kind == "ids":
            return DatasetSource(Augmented(rows, 0.1), ids=[f"image-{row}" for row in rows])
        return IterableSource(lambda: ((ROWS[row], int(CLASSES[row])) for row in rows), count=len(rows))


Augmented_ALL = Augmented(np.arange(120), 0.1)
"""


@pytest.fixture
def overlapping(project):
    project.write("src/overlapping.py", OVERLAP)
    return project


@pytest.mark.parametrize("kind", ["array", "dataset", "subset", "ids", "iterable"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_row_that_is_trained_on_is_not_measured(overlapping, kind, split):
    data = {"class": "overlapping.Any_", "kind": kind, "shared": 4, "split": split}
    with pytest.raises(UsageError, match=rf"4 of 20 rows of the {split} split .*data.allow_overlap: true"):
        manyfit.train(overlapping.changed(data=data), folder=overlapping.root / "runs" / "b")
    assert not list(overlapping.root.glob("runs/b/checkpoints/*"))
    result = manyfit.train(overlapping.changed(data=data | {"allow_overlap": True}), folder="runs/c")
    plain = manyfit.train(overlapping.changed(data=data | {"shared": 0}), folder="runs/d")
    assert result.step == plain.step


def test_the_permission_is_not_part_of_what_a_run_is(overlapping):
    tree = overlapping.changed(data={"class": "overlapping.Any_"})
    allowed = overlapping.changed(data={"class": "overlapping.Any_", "allow_overlap": True})
    assert manyfit.load_config(tree).fingerprint == manyfit.load_config(allowed).fingerprint
    first = manyfit.train(tree, folder="runs/e")
    assert manyfit.train(allowed, folder="runs/e").step == first.step


def test_a_batch_that_is_learnt_by_heart_may_be_measured(overlapping):
    tree = overlapping.changed(data={"class": "overlapping.Any_", "shared": 4})
    assert manyfit.train(tree, ["train.limit.overfit=1"], folder="runs/f").step


def test_variants_say_it_in_their_own_words(project, cli):
    for name, first, count in (("train", 0, 40), ("eval", 30, 20)):
        (project.root / "data").mkdir(exist_ok=True)
        rows = [{"x": [float(i), 1.0, 2.0, 3.0], "y": [i % 3]} for i in range(first, first + count)]
        write_records(project.root / "data" / f"{name}.tfrecord", rows)
    project.write(
        "variants/shared.yaml",
        """
        model: {type: "torch.nn:Linear", in_features: 4, out_features: 3, model_dir: runs/shared}
        train:
          epochs: 1
          loss: cross_entropy
          optimizer: {class: sgd, lr: 0.1}
          train_feeder: &feeder
            type: TFRecordExamplesFeeder
            file_patterns: data/train.tfrecord
            auto_generate_meta: true
            batch_size: 8
            features_map: {x: {type: FixedLenFeature, shape: [4], dtype: float32}}
            labels_map: {y: {type: FixedLenFeature, shape: [1], dtype: int64}}
          eval_feeder: {<<: *feeder, file_patterns: data/eval.tfrecord}
        """,
    )
    found = cli("train", "variants/shared.yaml")
    assert found.code == 2
    assert "10 of 20 rows of the validation split are also in the training split" in found.err
    assert "train.allow_overlap: true" in found.err
    assert cli("train", "variants/shared.yaml", "train.allow_overlap=true").code == 0


@given(
    rows=st.integers(20, 300),
    other=st.integers(5, 200),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_every_shared_row_is_found(rows, other, share, seed):
    state = np.random.RandomState(seed)
    train = state.normal(size=(rows, 3))
    shared = min(rows, int(other * share))
    theirs = np.concatenate((train[state.permutation(rows)[:shared]], state.normal(size=(other - shared, 3))))
    order = state.permutation(other)
    found = Compared(ArraySource(train)).overlap(ArraySource(theirs[order]))
    assert found is not None
    assert sorted(found.rows) == sorted(np.flatnonzero(order < shared).tolist())
    assert found.is_error == (shared / other > 0.01)


def test_data_with_few_distinct_rows_is_no_error():
    state = np.random.RandomState(0)
    train, other = (ArraySource(state.randint(0, 2, (500, 3))) for _ in range(2))
    found = Compared(train).overlap(other)
    assert found is not None
    assert found.rows
    assert not found.is_error


def test_few_rows_by_chance_are_said_only(project, caplog):
    project.write(
        "src/chance.py",
        """
        import numpy as np
        from manyfit.data import ArraySource
        class Chance:
            batch_size = 64
            def source(self, split):
                state = np.random.RandomState(len(split))
                rows = state.normal(size=(400, 64)).astype("float32")
                rows[7] = 0
                return ArraySource(rows, np.arange(400) % 10)
        """,
    )
    manyfit.train(project.changed(data={"class": "chance.Chance"}), folder="runs/b")
    assert "1 of 400 rows of the validation split are also in the training split (such as 7)" in caplog.text


@pytest.mark.parametrize("same_order", [True, False])
def test_names_that_begin_anew_in_each_split_are_no_overlap(same_order):
    names = [f"image-{i}" for i in range(20)]
    rows = torch.randn(40, 3)
    train = DatasetSource(torch.utils.data.TensorDataset(rows[:20]), ids=names)
    other = DatasetSource(
        torch.utils.data.TensorDataset(rows[20:]), ids=names if same_order else list(reversed(names))
    )
    found = Compared(train).overlap(other)
    assert found is not None
    assert found.is_error != same_order


def test_numbers_are_no_names():
    rows = np.random.RandomState(0).normal(size=(40, 3))
    mine = IterableSource(list(rows[:20]), ids=range(20))
    found = Compared(mine).overlap(IterableSource(list(rows[20:]), ids=range(19, -1, -1)))
    assert found is not None
    assert not found.rows


@pytest.mark.parametrize("shuffle", ["", "global", "entropy"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_an_iterable_that_is_evaluated_keeps_its_order(shuffle, has_ids):
    rows = np.random.RandomState(0).normal(size=(30, 3))

    def walk():
        state = np.random.default_rng() if shuffle == "entropy" else np.random.mtrand._rand
        for i in state.permutation(30) if shuffle else range(30):
            yield rows[i], 1.0

    source = IterableSource(walk, 30, [f"row-{i}" for i in range(30)] if has_ids else None)
    if shuffle == "entropy" or (shuffle and has_ids):
        with pytest.raises(UsageError, match="must not shuffle"):
            source.prove()
    else:
        source.prove()


def test_noise_is_no_shuffle():
    source = IterableSource(
        lambda: ((np.float64(i) + np.random.normal(), 1) for i in range(20)), 20, [f"n{i}" for i in range(20)]
    )
    source.prove()
    assert source.ids(np.arange(2)) == ["n0", "n1"]


def test_a_feature_that_the_model_does_not_take_names_its_feeder(project, cli):
    (project.root / "data").mkdir()
    for name, first in (("train", 0), ("eval", 40)):
        rows = [{"x": [float(i), 1.0], "bonus": [1.0], "y": [i % 3]} for i in range(first, first + 40)]
        write_records(project.root / "data" / f"{name}.tfrecord", rows)
    project.write("src/two.py", "from torch import nn\nclass Two(nn.Linear):\n    def __init__(self) -> None:\n"
                  "        super().__init__(2, 3)\n    def forward(self, x, bonos=None):\n        return super().forward(x)\n")  # fmt: skip
    project.write(
        "variants/two.yaml",
        """
        src_code_path: src
        model: {class: two.Two, model_dir: runs/two}
        train:
          epochs: 1
          loss: cross_entropy
          optimizer: {class: sgd, lr: 0.1}
          train_feeder: &feeder
            type: TFRecordExamplesFeeder
            file_patterns: data/train.tfrecord
            auto_generate_meta: true
            batch_size: 8
            features_map:
              x: {type: FixedLenFeature, shape: [2], dtype: float32}
              bonus: {type: FixedLenFeature, shape: [1], dtype: float32}
            labels_map: {y: {type: FixedLenFeature, shape: [1], dtype: int64}}
          eval_feeder: {<<: *feeder, file_patterns: data/eval.tfrecord}
        """,
    )
    found = cli("train", "variants/two.yaml")
    assert found.code == 2
    assert (
        "train.train_feeder provides bonus, but Two.forward accepts bonos, x; did you mean bonos?"
        in found.err
    )
    assert "train.unused: [bonus]" in found.err
    assert cli("train", "variants/two.yaml", "train.unused=[bonus]").code == 0
