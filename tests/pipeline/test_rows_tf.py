"""Rows and ids belong together in pipelines of TensorFlow, too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.lazy import LazyModule, needs

from manyfit.core.errors import UsageError
from manyfit.data import Limited, once
from manyfit.pipeline import DataLoaderBase, PreprocessorBase
from manyfit.pipeline.source import ComponentSource
from manyfit.run.evaluation.row_report import keys_of

pytestmark = needs("tensorflow")
tf = LazyModule("tensorflow")

COUNT = 22


class Loader(DataLoaderBase):
    """Row i is [i], its label i, its id "id i"."""

    def __init__(self, change=None, ids=None, says=COUNT, weights=None):
        super().__init__()
        self.change, self.says = change or (lambda ds: ds), says
        self.ids = ids if ids is not None else [f"id {i}" for i in range(COUNT)]
        self.weights = weights if weights is not None else np.ones(COUNT, np.float32)

    def made(self, third):
        rows = np.arange(COUNT, dtype=np.float32)[:, None]
        return self.change(tf.data.Dataset.from_tensor_slices((rows, np.arange(COUNT), third))), self.says

    def create_training_generator(self):
        return self.made(self.weights)

    def create_validation_generator(self):
        return self.made(self.weights)

    def create_test_generator(self):
        return self.made(self.ids)


class Preprocessor(PreprocessorBase):
    def __init__(self, batchify=None, rows=None):
        super().__init__()
        self.how, self.rows = batchify or (lambda ds: ds.batch(4).repeat()), rows or (lambda ds: ds)

    def image_preprocess(self, image):
        return image

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        return self.rows(generator)

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n):
        return self.how(generator), -(-n // (9 if self.how is BATCHED["larger"] else 4))


def sorted_batch(x, y, w):
    order = tf.argsort(y, direction="DESCENDING")
    return tf.gather(x, order), tf.gather(y, order), tf.gather(w, order)


def zipped(ds):
    parts = [ds.map(lambda x, y, w, i=i: (x, y, w)[i]) for i in range(3)]
    return tf.data.Dataset.zip(tuple(parts))


def listed(folder):
    for i in range(COUNT):
        (folder / f"{i:02}.txt").write_text(str(i))

    def change(_):
        files = tf.data.Dataset.list_files(str(folder / "*.txt"))

        def row(file):
            number = tf.strings.to_number(tf.io.read_file(file))
            name = tf.strings.regex_replace(tf.strings.split(file, "/")[-1], r"0?(\d+)\.txt", r"id \1")
            return number[None], tf.cast(number, tf.int64), name

        return files.map(row)

    return change


BATCHED = {
    "plain": lambda ds: ds.batch(4).repeat(),
    "once": lambda ds: ds.batch(4),
    "whole": lambda ds: ds.batch(4, drop_remainder=True).repeat(),
    "shuffled": lambda ds: ds.shuffle(COUNT).batch(4).repeat(),
    "repeated, then shuffled": lambda ds: ds.repeat().shuffle(50).batch(4),
    "cached": lambda ds: ds.cache().batch(4).repeat(),
    "sorted": lambda ds: ds.batch(4).map(sorted_batch).repeat(),
    "larger": lambda ds: ds.batch(9, drop_remainder=True).repeat(),
    "prefetched": lambda ds: ds.map(lambda *row: row, num_parallel_calls=2).batch(4).repeat().prefetch(2),
}
ROWS = {
    "as they are": None,
    "zipped": zipped,
    "numeric": lambda ds: ds.map(lambda x, y, w: (x, y, tf.cast(w, tf.float32))),
}


def read(found):
    batches = list(once(found, 4))
    index = np.concatenate([batch.index for batch in batches])
    rows = np.concatenate([batch.inputs for batch in batches])[:, 0].astype(int)
    assert rows.tolist() == np.concatenate([batch.target for batch in batches]).tolist()
    return index, rows


def combined():
    """Everything with everything; a part of it, in which each is there once, with every test."""
    for i, (number, (name, rows), loaded) in enumerate(
        itertools.product(range(len(BATCHED)), ROWS.items(), ["as it lies", "shuffled", "listed"])
    ):
        batched = list(BATCHED)[number]
        marks = [] if i % 7 == 0 else [pytest.mark.soak]
        yield pytest.param(BATCHED[batched], rows, loaded, id=f"{loaded}-{name}-{batched}", marks=marks)


@pytest.mark.parametrize(("batched", "rows", "loaded"), list(combined()))
def test_an_id_is_that_of_its_row(batched, rows, loaded, tmp_path):
    change = {"as it lies": None, "shuffled": lambda ds: ds.shuffle(COUNT), "listed": listed(tmp_path)}[
        loaded
    ]
    if loaded != "as it lies" and rows is zipped:
        pytest.skip("columns that are shuffled one by one belong to nobody")
    found = ComponentSource("test", Loader(change), None, Preprocessor(batched, rows), 4)
    for _ in range(2):
        index, said = read(found)
        assert sorted(said) == list(range(COUNT))
        assert found.ids(index) == [f"id {row}" for row in said]
        assert list(keys_of(index, found)) == ["id"]
    index, said = read(Limited(found, 7))
    assert len(index) == 7
    assert found.ids(index) == [f"id {row}" for row in said]


@pytest.mark.parametrize(
    "ids",
    [np.arange(COUNT) * 7, [b"\xff%d" % i for i in range(COUNT)], np.arange(COUNT) / 2],
    ids=["int", "bytes", "float"],
)
def test_ids_of_any_kind(ids):
    found = ComponentSource("test", Loader(ids=ids), None, Preprocessor(), 4)
    index, said = read(found)
    known = [id_.decode(errors="replace") if isinstance(id_, bytes) else str(id_) for id_ in ids]
    assert found.ids(index) == [known[row] for row in said]


@pytest.mark.parametrize(
    ("rows", "kept", "times"),
    [(lambda ds: ds.filter(lambda x, y, w: y % 5 != 0), 17, 1),
     (lambda ds: ds.flat_map(lambda *row: tf.data.Dataset.from_tensors(row).repeat(2)), 22, 2)],
    ids=["left out", "doubled"],
)  # fmt: skip
def test_what_is_left_out_or_doubled_is_said(rows, kept, times, caplog):
    found = ComponentSource("test", Loader(), None, Preprocessor(None, rows), 4)
    index, said = read(found)
    assert found.ids(index) == [f"id {row}" for row in said]
    assert len(set(said)) == kept and len(said) == kept * times
    keys_of(index, found)
    assert f"{COUNT - kept} are missing, {kept if times > 1 else 0} occur more than once" in caplog.text


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("change", [None, lambda ds: ds.filter(lambda *_: True)], ids=["known", "unknown"])
@pytest.mark.parametrize("says", [30, 20])
def test_a_count_that_is_not_true(split, change, says):
    found = ComponentSource(split, Loader(change, says=says), None, Preprocessor(), 4)
    with pytest.raises(UsageError, match=f"reports {says} data points, but yields (22|more)"):
        found.prove() if split == "validation" else read(found)


@pytest.mark.parametrize(
    ("loader", "preprocessor", "words"),
    [({"change": lambda ds: ds.shuffle(COUNT)}, {}, r"Loader\.create_validation_generator yields \d+ of 22"),
     ({}, {"batchify": BATCHED["shuffled"]}, "Preprocessor changes the order"),
     ({}, {"batchify": BATCHED["sorted"]}, "Preprocessor changes the order"),
     ({}, {"rows": lambda ds: ds.filter(lambda x, y, w: y % 5 != 0)}, "Preprocessor drops 5 of 22")],
    ids=["loader", "shuffled", "sorted", "left out"],
)  # fmt: skip
def test_validation_in_another_order_is_refused(loader, preprocessor, words):
    with pytest.raises(UsageError, match=words):
        ComponentSource("validation", Loader(**loader), None, Preprocessor(**preprocessor), 4).prove()


@pytest.mark.parametrize("name", ["plain", "once", "whole", "larger", "cached"])
def test_validation_as_it_was_said(name):
    weights = np.arange(COUNT, dtype=np.float32) + 1
    found = ComponentSource("validation", Loader(weights=weights), None, Preprocessor(BATCHED[name]), 4)
    found.prove()
    for _ in range(2):
        index, said = read(found)
        assert index.tolist() == said.tolist() == list(range(COUNT))
        assert np.concatenate([batch.weight for batch in once(found, 4)]).tolist() == weights.tolist()
