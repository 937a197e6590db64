"""Rows and ids belong together: whatever loaders and preprocessors do, an id is that of its own row."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest
import torch

import manyfit
from manyfit.config import load_config
from manyfit.core.errors import RunFailed, UsageError
from manyfit.data import Limited, Order, once
from manyfit.pipeline import DataLoaderBase, PreprocessorBase
from manyfit.pipeline.source import ComponentSource
from manyfit.report.compare import compare
from manyfit.run.build.builder import build
from manyfit.run.evaluation.row_report import keys_of

COUNT = 22


class Loader(DataLoaderBase):
    """Row i is [i], its label i, its id "id i"."""

    def __init__(self, **options):
        super().__init__()
        self.shuffles = options.get("shuffles", False)
        self.says = options.get("says", COUNT)
        self.gives = options.get("gives", COUNT)
        self.repeats = options.get("repeats", False)
        self.ids = options.get("ids", lambda i: f"id {i}")
        self.goes_on = options.get("goes_on", False)
        self.weight = options.get("weight", lambda i: 1.0)
        self._kept = None

    def rows(self, third):
        while True:
            order = np.arange(self.gives)
            if self.shuffles:
                np.random.shuffle(order)
            for i in order:
                yield np.array([float(i)], np.float32), int(i), third(int(i))
            if not self.repeats:
                return

    def create_training_generator(self):
        return self.rows(self.weight), self.says

    def create_validation_generator(self):
        if not self.goes_on:
            return self.rows(self.weight), self.says
        self._kept = self._kept or self.rows(self.weight)
        return self._kept, self.says

    def create_test_generator(self):
        return self.rows(self.ids), self.says


class Preprocessor(PreprocessorBase):
    size = 4

    def image_preprocess(self, image):
        return image

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        return generator

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n):
        return self.batches(generator), -(-n // self.size)

    def batches(self, generator):
        while True:
            rows = [next(generator) for _ in range(self.size)]
            yield tuple(np.array(column) for column in zip(*rows, strict=True))


class Draining(Preprocessor):
    """The last batch is what is left."""

    def batches(self, generator):
        while rows := list(itertools.islice(generator, self.size)):
            yield tuple(np.array(column) for column in zip(*rows, strict=True))


class Shuffling(Draining):
    def batchify(self, generator, n):
        rows = list(generator)
        np.random.shuffle(rows)
        return super().batchify(iter(rows), n)


class Filtering(Preprocessor):
    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            if x[0] % 5:
                yield x, y, w


class Doubling(Preprocessor):
    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            yield x, y, w
            yield x, y, w


class Sorting(Preprocessor):
    def batches(self, generator):
        for x, y, w in super().batches(generator):
            order = np.argsort(-y)
            yield x[order], y[order], w[order]


class Weighing(Preprocessor):
    def add_label_preprocess(self, generator):
        for x, y, w in generator:
            yield x, y, w * 2


class Hidden(Preprocessor):
    def add_label_preprocess(self, generator):
        for x, y, _ in generator:
            yield x, y, 1.0


def source(split, preprocessor, size=4, **options):
    return ComponentSource(split, Loader(**options), None, preprocessor, size)


def read(found):
    """What a report is made of: indices, and what each row says of itself."""
    batches = list(once(found, 4))
    index = np.concatenate([batch.index for batch in batches])
    rows = np.concatenate([np.asarray(batch.inputs) for batch in batches])[:, 0].astype(int)
    labels = np.concatenate([np.asarray(batch.target) for batch in batches])
    assert rows.tolist() == labels.tolist()
    return index, rows


KEEPING = {"plain": Preprocessor, "draining": Draining, "shuffling": Shuffling, "sorting": Sorting}


@pytest.mark.parametrize("made", KEEPING.values(), ids=KEEPING)
@pytest.mark.parametrize("shuffles", [False, True], ids=["as it lies", "shuffled"])
@pytest.mark.parametrize("repeats", [False, True], ids=["ends", "endless"])
def test_an_id_is_that_of_its_row(made, shuffles, repeats):
    if shuffles and repeats:
        pytest.skip("an endless generator that shuffles begins with another row each time")
    found = source("test", made(), shuffles=shuffles, repeats=repeats)
    for _ in range(2):
        index, rows = read(found)
        assert sorted(rows) == list(range(COUNT))
        assert found.ids(index) == [f"id {row}" for row in rows]
        assert list(keys_of(index, found)) == ["id"]
    index, rows = read(Limited(found, 7))
    assert len(index) == 7
    assert found.ids(index) == [f"id {row}" for row in rows]


@pytest.mark.parametrize(("made", "kept", "times"), [(Filtering, 17, 1), (Doubling, 22, 2)], ids=str)
def test_what_is_left_out_or_doubled_is_said(made, kept, times, caplog):
    found = source("test", made())
    index, rows = read(found)
    assert found.ids(index) == [f"id {row}" for row in rows]
    assert len(set(rows)) == kept and len(rows) == kept * times
    keys = keys_of(index, found)
    missing, more = COUNT - kept, kept if times > 1 else 0
    assert f"{missing} are missing, {more} occur more than once" in caplog.text
    assert len(set(zip(*keys.values(), strict=True))) == len(rows)
    assert ("part" in keys) == (times > 1)


def test_ids_may_be_repeated():
    found = source("test", Preprocessor(), ids=lambda i: f"patient {i // 2}")
    index, rows = read(found)
    keys = keys_of(index, found)
    assert keys["id"] == [f"patient {row // 2}" for row in rows]
    assert keys["row"].tolist() == rows.tolist()


def test_a_row_that_comes_back_without_its_number_is_an_error():
    for made in (Weighing, Hidden):
        with pytest.raises(
            UsageError, match=rf"{made.__name__} turns the third value of a data point.* into "
        ):
            read(source("test", made()))


@pytest.mark.parametrize("repeats", [False, True], ids=["ends", "endless"])
def test_a_preprocessor_that_waits_for_the_end_of_training_data_is_named(repeats, monkeypatch):
    monkeypatch.setattr("manyfit.pipeline.generators.WAITING", 5_000_000)
    with pytest.raises(UsageError, match=r"Shuffling has consumed \d+ data points without yielding a batch"):
        source("train", Shuffling(), repeats=repeats)


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize(("says", "gives", "words"), [(22, 30, "more"), (22, 20, "20"), (22, 0, "none")])
def test_a_count_that_is_not_true(split, says, gives, words):
    found = source(split, Preprocessor(), says=says, gives=gives)
    with pytest.raises(UsageError, match=f"reports {says} data points, but yields {words}"):
        found.prove() if split == "validation" else read(found)


@pytest.mark.parametrize(
    "options", [{"shuffles": True}, {"goes_on": True}, {"shuffles": True, "repeats": True}], ids=str
)
def test_validation_in_another_order_is_refused(options):
    with pytest.raises(UsageError, match=r"Loader\.create_validation_generator yields \d+ of 22 data points"):
        source("validation", Preprocessor(), **options).prove()


@pytest.mark.parametrize("made", [Shuffling, Sorting, Filtering, Doubling])
def test_a_preprocessor_that_changes_the_order_of_validation_is_refused(made):
    with pytest.raises(UsageError, match=rf"{made.__name__} (drops \d+|changes the order)"):
        source("validation", made()).prove()


@pytest.mark.parametrize("made", [Preprocessor, Draining, Weighing])
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("size", [4, 11, 22, 50])
def test_validation_as_it_was_said(made, repeats, size):
    preprocessor = made()
    preprocessor.size = size
    found = source("validation", preprocessor, size, repeats=repeats, weight=lambda i: float(i + 1))
    found.prove()
    for _ in range(2):
        index, rows = read(found)
        assert index.tolist() == rows.tolist() == list(range(COUNT))
        weights = np.concatenate([batch.weight for batch in once(found, 4)])
        assert (weights / weights[0]).tolist() == [float(i + 1) for i in range(COUNT)]


def test_rows_left_out_by_their_weight_are_missed():
    class ByWeight(Preprocessor):
        def add_image_preprocess(self, generator):
            for x, y, w in generator:
                if w != 3.0:
                    yield x, y, w

    found = source("validation", ByWeight(), weight=lambda i: float(i + 1))
    found.prove()
    with pytest.raises(UsageError, match="ByWeight yielded batches with"):
        read(found)


def test_sources_that_nobody_remakes_must_be_whole():
    class Some:
        def __len__(self):
            return 3

        def ids(self, index):
            return [str(row) for row in index]

    with pytest.raises(RunFailed, match="the report would contain 2 rows, but the split has 3"):
        keys_of(np.array([0, 1]), Some())


def test_training_is_not_numbered():
    batch = next(iter(source("train", Weighing()).batches(Order(4, seed=1))))
    assert batch.weight.tolist() == [2.0] * 4


SPLIT = """

class Split(Loader):
    \"\"\"Splits its rows at random when it is made, and shuffles its own list when it is asked.\"\"\"

    def __init__(self, config, data_dir):
        super().__init__(config, data_dir)
        self.x = np.arange(40)[:, None] * np.ones((1, 4))
        order = (np.random.default_rng() if ENTROPY else np.random.mtrand._rand).permutation(40)
        self.parts = {"train": list(order[:20]), "validation": list(order[20:30]), "test": list(order[30:])}
        if LOCKED:
            import threading
            self.lock = threading.Lock()

    def rows(self, split, third):
        part = self.parts[split]
        if split == "train":
            np.random.shuffle(part)
        for i in part:
            yield self.x[i], int(i) % 3, third(i)

    def create_training_generator(self):
        return self.rows("train", lambda i: 1.0), 20

    def create_validation_generator(self):
        return self.rows("validation", lambda i: 1.0), 10

    def create_test_generator(self):
        return self.rows("test", lambda i: f"row-{i}"), 10

    def get_validation_index(self):
        return [f"row-{i}" for i in self.parts["validation"]]
"""


@pytest.mark.parametrize(("entropy", "locked"), [(False, False), (True, False), (False, True)])
def test_no_row_of_validation_or_test_is_trained_on(tiny, entropy, locked):
    text = SPLIT.replace("ENTROPY", str(entropy)).replace("LOCKED", str(locked))
    (tiny.root / "src/dataset.py").write_text((tiny.root / "src/dataset.py").read_text() + text)
    built = build(load_config(tiny.write(data_loader_class="dataset.Split")))

    def seen(batches):
        return {int(x) for batch in batches for x in np.asarray(batch.inputs)[:, 0]}

    trained = seen(itertools.islice(built.train.batches(built.order), 40))
    assert len(trained) == 20
    assert not trained & (seen(once(built.validation, 4)) | seen(once(built.test, 4)))
    again = [b.inputs.tolist() for b in itertools.islice(built.train.batches(built.order, 7), 5)]
    assert again == [b.inputs.tolist() for b in itertools.islice(built.train.batches(built.order), 7, 12)]


SHUFFLED = """

class Shuffled(Loader):
    def rows(self, split, third):
        x, y = arrays(split)
        for i in np.random.permutation(len(x)) if split == "test" else range(len(x)):
            yield x[i], y[i], third(i)
"""


def test_every_row_of_a_report_is_what_a_plain_forward_pass_gives(tiny):
    (tiny.root / "src/dataset.py").write_text((tiny.root / "src/dataset.py").read_text() + SHUFFLED)
    folder = tiny.write(data_loader_class="dataset.Shuffled")
    manyfit.train(folder, callbacks=[])
    from dataset import arrays

    model = manyfit.load_model(folder).eval()
    for split, name in (("test", "row-{}"), ("validation", "v{}")):
        x, y = arrays(split)
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                model(torch.from_numpy(x.astype(np.float32))), torch.from_numpy(y), reduction="none"
            )
        with (folder / f"reports/{split}.csv").open() as file:
            rows = {row["id"]: row for row in csv.DictReader(file)}
        assert set(rows) == {name.format(i) for i in range(len(x))}
        for i in range(len(x)):
            row = rows[name.format(i)]
            assert int(row["target"]) == y[i]
            assert float(row["loss"]) == pytest.approx(float(losses[i]), rel=1e-5)


def test_a_report_with_repeated_ids_can_be_compared(tiny):
    folder = tiny.write(data_loader_class="dataset.Twice")
    manyfit.train(folder, callbacks=[])
    with (folder / "reports/eval_report.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows if row["id"] == "same"] == ["3", "5"]
    assert compare(folder, folder).rows == 11


def test_validation_that_is_shuffled_is_refused_for_an_estimator_too(tiny):
    text = SHUFFLED.replace('== "test"', '== "validation"')
    (tiny.root / "src/dataset.py").write_text((tiny.root / "src/dataset.py").read_text() + text)
    folder = tiny.write(
        data_loader_class="dataset.Shuffled", model_builder_class="models.Forest", model_builder={}
    )
    with pytest.raises(UsageError, match=r"Shuffled.create_validation_generator yields .* in another place"):
        manyfit.train(folder, callbacks=[])


@pytest.mark.parametrize("builder", ["Builder", "Forest"])
def test_a_loader_that_gives_a_row_to_two_splits_is_refused(tiny, project_cli, builder):
    text = """

class Shared(Loader):
    def rows(self, split, third):
        (x, y), (seen, labels) = arrays(split), arrays("train")
        if split == "test":
            x[4:7], y[4:7] = seen[:6:2], labels[:6:2]
        for i in range(len(x)):
            yield x[i], y[i], third(i)
"""
    (tiny.root / "src/dataset.py").write_text((tiny.root / "src/dataset.py").read_text() + text)
    folder = tiny.write(
        data_loader_class="dataset.Shared", model_builder_class=f"models.{builder}", model_builder={}
    )
    code, err = project_cli("train", folder)
    assert code == 2
    assert "3 of 11 rows of the test split are also in the training split (such as row-4, row-5" in err
    assert "set allow_overlap: true" in err
    assert project_cli("train", folder, "allow_overlap=true")[0] == 0
