"""Generators as sources: every row once in a report, and any step of training found again."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core.errors import UsageError
from manyfit.data import ClassWeighted, Limited, Order, once
from manyfit.pipeline import DataLoaderBase, PreprocessorBase, training_batches
from manyfit.pipeline.source import ComponentSource


class Loader(DataLoaderBase):
    def __init__(self, count, endless, shuffle=True):
        super().__init__()
        self.count, self.endless, self.shuffle = count, endless, shuffle

    def rows(self, kind):
        while True:
            order = np.arange(self.count)
            if self.shuffle and kind == "train":
                np.random.shuffle(order)
            for i in order:
                yield np.array([float(i)]), int(i) % 3, f"id {i}".encode() if kind == "test" else 1.0
            if not self.endless:
                return

    def create_training_generator(self):
        return self.rows("train"), self.count

    def create_validation_generator(self):
        return self.rows("validation"), self.count

    def create_test_generator(self):
        return self.rows("test"), self.count


class Preprocessor(PreprocessorBase):
    def __init__(self, size, whole, noise=False):
        super().__init__()
        self.size, self.whole, self.noise = size, whole, noise

    def image_preprocess(self, image):
        return image

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            yield x + (np.random.normal() if self.noise else 0), y, w

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n):
        def batches():
            for count in itertools.count():
                left = self.size if self.whole else min(self.size, n - (count * self.size) % n or n)
                rows = [next(generator) for _ in range(left)]
                yield tuple(np.array(c) for c in zip(*rows, strict=True))

        return batches(), -(-n // self.size)


def source(split, count, size, endless=True, whole=True, noise=False):
    return ComponentSource(split, Loader(count, endless), None, Preprocessor(size, whole, noise), size)


@given(
    split=st.sampled_from(["validation", "test", "train"]),
    count=st.integers(1, 40),
    size=st.integers(1, 17),
    endless=st.booleans(),
    data=st.data(),
)
def test_a_report_has_every_row_once_however_rows_are_batched(split, count, size, endless, data):
    found = source(split, count, size, endless)
    limit = data.draw(st.integers(1, count + 3))
    for rows, wanted in ((found, count), (Limited(found, limit), min(limit, count))):
        for _ in range(2):  # every pass is like the first
            batches = list(once(rows, 5))
            index = np.concatenate([batch.index for batch in batches])
            assert index.tolist() == list(range(wanted))
            if split != "train":
                assert np.concatenate([b.inputs for b in batches])[:, 0].tolist() == list(range(wanted))
            ids = rows.ids(index)
            assert len(set(ids)) == wanted
            assert split != "test" or ids == [f"id {i}" for i in range(wanted)]


@given(count=st.integers(1, 12), size=st.integers(1, 5), endless=st.booleans(), start=st.integers(0, 40))
def test_any_step_is_found_again(count, size, endless, start):
    before, training_batches.SEGMENT = training_batches.SEGMENT, 6
    try:
        found = source("train", count, size, endless, noise=True)
        order = Order(size, seed=3)
        whole = [b.inputs.tolist() for b in itertools.islice(found.batches(order), start + 4)]
        np.random.seed(start)  # whatever was drawn meanwhile
        later = [b.inputs.tolist() for b in itertools.islice(found.batches(order, start), 4)]
        assert later == whole[start:]
        other = [b.inputs.tolist() for b in itertools.islice(found.batches(Order(size, seed=4)), 3)]
        assert other != whole[:3]
    finally:
        training_batches.SEGMENT = before


def test_a_limit_trains_on_the_same_rows_again_and_again():
    found = Limited(source("train", 12, 4), 8)
    batches = [b.inputs.tolist() for b in itertools.islice(found.batches(Order(4, seed=1)), 6)]
    assert found.steps(Order(4, seed=1)) == 2
    assert batches[:2] == batches[2:4] == batches[4:] and batches[0] != batches[1]


def test_ids_are_read_even_if_nothing_was_evaluated():
    assert source("test", 5, 2).ids(np.array([3, 0])) == ["id 3", "id 0"]
    assert source("validation", 5, 2).ids(np.array([4])) == ["4"]


def test_classes_have_weights():
    found = ClassWeighted(source("validation", 5, 2), {0: 2.0, 2: 0.5})
    weights = np.concatenate([batch.weight for batch in found.batches(Order(2, epochs=1))])
    assert weights.tolist() == [2, 1, 0.5, 2, 1]
    assert found.of(np.eye(3)).tolist() == [2, 1, 0.5]
    assert len(found) == 5 and found.fingerprint() == found.source.fingerprint()


def test_a_count_that_is_not_true_is_an_error():
    class Empty(Loader):
        def rows(self, kind):
            yield from ()

    found = ComponentSource("test", Empty(3, False), None, Preprocessor(2, True), 2)
    with pytest.raises(UsageError, match=r"Empty\.create_test_generator reports 3 data points"):
        list(once(found, 2))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (7, "must return a generator and its number of data points"),
        ((iter([]), "many"), "the number of data points as its second value"),
        ((7, 7), "must return a generator or a tf.data.Dataset as its first value"),
    ],
)
def test_what_a_loader_returns_is_looked_at(returned, words):
    class Odd(Loader):
        def create_test_generator(self):
            return returned

    with pytest.raises(UsageError, match=words):
        ComponentSource("test", Odd(3, False), None, Preprocessor(2, True), 2)


def test_a_loader_that_shuffles_its_own_lists_is_made_anew_for_each_segment():
    class Shuffles(Loader):
        def __init__(self):
            super().__init__(6, False)
            self.files = list(range(6))

        def rows(self, kind):
            np.random.shuffle(self.files)
            for i in self.files:
                yield np.array([float(i)]), 0, 1.0

    before, training_batches.SEGMENT = training_batches.SEGMENT, 3
    try:
        found = ComponentSource("train", Shuffles(), None, Preprocessor(2, True), 2, Shuffles)
        whole = [b.inputs.tolist() for b in itertools.islice(found.batches(Order(2, seed=1)), 12)]
        again = ComponentSource("train", Shuffles(), None, Preprocessor(2, True), 2, Shuffles)
        assert [b.inputs.tolist() for b in itertools.islice(again.batches(Order(2, seed=1), 7), 5)] == whole[
            7:
        ]
    finally:
        training_batches.SEGMENT = before


def test_a_batchify_that_ends_is_begun_again():
    class Once(Preprocessor):
        def batchify(self, generator, n):
            rows = [next(generator) for _ in range(n)]
            columns = [np.array(c) for c in zip(*rows, strict=True)]
            return iter([tuple(c[:3] for c in columns), tuple(c[3:] for c in columns)]), 2

    found = ComponentSource("train", Loader(6, False), None, Once(3, True), 3)
    batches = list(itertools.islice(found.batches(Order(3, seed=1)), 6))
    assert [
        sorted(batches[i].inputs[:, 0].tolist() + batches[i + 1].inputs[:, 0].tolist()) for i in (0, 2, 4)
    ] == [[0, 1, 2, 3, 4, 5]] * 3


def test_what_a_preprocessor_does_to_weights_does_not_reach_ids():
    class Casts(Preprocessor):
        def add_weight_preprocess(self, generator):
            for x, y, w in generator:
                yield x, y, float(w) / 3

    found = ComponentSource("test", Loader(5, False), None, Casts(2, True), 2)
    list(once(found, 2))
    assert found.ids(np.arange(5)) == [f"id {i}" for i in range(5)]
