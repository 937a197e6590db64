"""Models with several outputs: reports and functions see all of them, each row as a plain forward pass does."""

from __future__ import annotations

import csv
import itertools
import json

import numpy as np
import pytest
from tests.lazy import LazyModule, needs

import manyfit
from manyfit.core.errors import RunFailed, UsageError

pytestmark = needs("keras", "tensorflow")
keras, tf = LazyModule("keras"), LazyModule("tensorflow")

SOURCE = '''
import itertools

import keras
import numpy as np
import tensorflow as tf
from manyfit.pipeline import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase, batched

COUNTS = {"train": 37, "validation": 13, "test": 11}


def arrays(split):
    """Inputs, classes and sizes."""
    x = np.random.RandomState(len(split)).normal(size=(COUNTS[split], 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64") + (x[:, 1] > 0), x.sum(axis=1)


class Loader(DataLoaderBase):
    """Test rows come in another order each time."""

    def rows(self, split, third):
        x, kind, size = arrays(split)
        return tf.data.Dataset.from_tensor_slices((x, (kind, size), third)), len(x)

    def create_training_generator(self):
        rows, count = self.rows("train", np.ones(37, "float32"))
        return rows.shuffle(37), count

    def create_validation_generator(self):
        return self.rows("validation", np.ones(13, "float32"))

    def create_test_generator(self):
        rows, count = self.rows("test", [f"row-{i}" for i in range(11)])
        return rows.shuffle(11), count


class Generators(Loader):
    """The same rows from generators of Python."""

    def rows(self, split, third):
        x, kind, size = arrays(split)
        order = np.random.permutation(len(x)) if split != "validation" else np.arange(len(x))
        return ((x[i], (kind[i], size[i]), third[i]) for i in order), len(x)

    def create_training_generator(self):
        return self.rows("train", np.ones(37, "float32"))

    def create_test_generator(self):
        return self.rows("test", [f"row-{i}" for i in range(11)])


class Preprocessor(PreprocessorBase):
    """Gives labels in the form that the config says."""

    def _load_params(self, config):
        self.form = config.form

    def image_preprocess(self, image):
        return image * 2

    def label_preprocess(self, label):
        kind, size = label
        if self.form in ("named", "listed by name"):
            return {"size": size, "kind": kind}
        if self.form == "labels in a tuple":  # in the order of the names
            return size, kind
        return kind if self.form in ("one label", "one output", "unlabelled first", "of no row") else (kind, size)

    def add_image_preprocess(self, generator):
        if isinstance(generator, tf.data.Dataset):
            return generator.map(lambda x, y, w: (self.image_preprocess(x), y, w))
        return ((self.image_preprocess(x), y, w) for x, y, w in generator)

    def add_label_preprocess(self, generator):
        if isinstance(generator, tf.data.Dataset):
            return generator.map(lambda x, y, w: (x, self.label_preprocess(y), w))
        return ((x, self.label_preprocess(y), w) for x, y, w in generator)

    def batchify(self, generator, n):
        if isinstance(generator, tf.data.Dataset):
            return generator.batch(4), -(-n // 4)
        return self.batches(generator), -(-n // 4)

    def batches(self, generator):
        while rows := list(itertools.islice(generator, 4)):
            x, y, w = zip(*rows)
            if isinstance(y[0], dict):
                y = {name: np.array([each[name] for each in y]) for name in y[0]}
            elif isinstance(y[0], tuple):
                y = tuple(np.array(column) for column in zip(*y))
            else:
                y = np.array(y)
            yield np.array(x), y, np.array(w)


class Builder(ModelBuilderBase):
    def __init__(self, config=None):
        super().__init__(config)
        self.form = config.form

    def get_model(self):
        x = keras.Input((4,))
        kind, size = keras.layers.Dense(3, name="kind")(x), keras.layers.Dense(1, name="size")(x)
        if self.form == "one output":
            return keras.Model(x, kind)
        if self.form == "labels in a tuple":
            return keras.Model(x, {"kind": kind, "a_size": keras.layers.Dense(1, name="a_size")(x)})
        if self.form == "unlabelled first":
            return keras.Model(x, {"size": size, "kind": kind})
        if self.form == "of no row":
            return keras.Model(x, {"a": keras.ops.mean(x, axis=(0, 1), keepdims=True), "kind": kind, "size": size})
        is_named = self.form in ("named", "one label")
        return keras.Model(x, {"kind": kind, "size": size} if is_named else [kind, size])

    def get_compiled_model(self):
        model = self.get_model()
        scored = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loss = {
            "named": {"kind": scored, "size": "mse"},
            "listed": [scored, "mse"],
            "listed by name": {"kind": scored, "size": "mse"},
            "one label": {"kind": scored, "size": None},
            "one output": scored,
            "labels in a tuple": {"kind": scored, "a_size": "mse"},
            "unlabelled first": {"kind": scored, "size": None},
            "of no row": {"a": None, "kind": scored, "size": None},
        }[self.form]
        model.compile("adam", loss, jit_compile=False)
        return model


def parts(value):
    if isinstance(value, dict):
        return value["kind"], value["size" if "size" in value else "a_size"]
    if isinstance(value, (tuple, list)):
        return value[::-1] if np.ndim(value[0]) == 0 and np.asarray(value[0]).dtype.kind == "f" else value
    return value, 0.0


def both(y_true, y_pred):
    """Looks at both outputs, and at both labels where there are two."""
    (kind, size), (scores, guess) = parts(y_true), parts(y_pred)
    return float(scores[kind]) + 10 * float(np.ravel(guess)[0] if np.ndim(guess) else guess) - float(size)


@batched
def many(y_true, y_pred):
    return np.array(parts(y_pred)[0])[:, 0] + np.shape(parts(y_true)[0])[0] * 0


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"both": both, "many": many, "right": "accuracy"}


class Taken(EvaluatorBase):
    def get_eval_funcs(self):
        return {"prediction_size": both}


class Wrong(EvaluatorBase):
    def get_eval_funcs(self):
        return {"wrong": lambda y_true, y_pred: y_pred["kid"]}
'''

FORMS = (
    "named",
    "listed",
    "listed by name",
    "one label",
    "one output",
    "labels in a tuple",
    "unlabelled first",
    "of no row",  # which looks like one of a row where the last batch has one
)


def cases():
    """Everything with everything; with every test a part of it, in which each is there."""
    for i, (style, form) in enumerate(itertools.product(("Loader", "Generators"), FORMS)):
        yield pytest.param(style, form, marks=[] if i in (7, 8) else [pytest.mark.soak])


@pytest.fixture
def heads(tiny):
    (tiny.root / "src/heads.py").write_text(SOURCE)

    def write(**changes):
        return tiny.write(
            without=("data_loader", "preprocessor", "model_builder"),
            **{
                "data_loader_class": "heads.Loader",
                "preprocessor_class": "heads.Preprocessor",
                "model_builder_class": "heads.Builder",
                "evaluator_class": "heads.Evaluator",
                "form": "named",
                **changes,
            },
        )

    return write


def plain(folder, split):
    """What a forward pass says of each row, and what is true of it."""
    count = {"validation": 13, "test": 11}[split]
    x = np.random.RandomState(len(split)).normal(size=(count, 4)).astype("float32")
    found = manyfit.load_model(folder)(2 * x, training=False)
    values = found if isinstance(found, (list, tuple)) else [found]
    values = [found["kind"], found.get("size", found.get("a_size"))] if isinstance(found, dict) else values
    kind = (x[:, 0] > 0).astype("int64") + (x[:, 1] > 0)
    return [np.asarray(value) for value in values], kind, x.sum(axis=1)


@pytest.mark.parametrize(("style", "form"), list(cases()))
def test_every_row_of_every_output_is_that_of_a_plain_forward_pass(heads, style, form, caplog):
    folder = heads(data_loader_class=f"heads.{style}", form=form)
    manyfit.train(folder, callbacks=[])
    has_sizes = form not in ("one label", "one output", "unlabelled first", "of no row")
    second = {"listed": "1", "labels in a tuple": "a_size"}.get(form, "size")
    for split in ("validation", "test"):
        (scores, *rest), kind, size = plain(folder, split)
        with (folder / f"reports/{split}.csv").open() as file:
            rows = {row["id"].removeprefix("row-"): row for row in csv.DictReader(file)}
        assert set(rows) == {str(i) for i in range(len(kind))}
        for i in range(len(kind)):
            row = rows[str(i)]
            assert int(row["prediction"]) == scores[i].argmax() and int(row["target"]) == kind[i]
            assert float(row["right"]) == (scores[i].argmax() == kind[i])
            assert float(row["many"]) == pytest.approx(scores[i, 0], rel=1e-4, abs=1e-5)
            other = 0.0
            if rest:
                other = rest[0][i, 0]
                assert float(row[f"prediction_{second}"]) == pytest.approx(other, rel=1e-4, abs=1e-5)
            if has_sizes:
                assert float(row[f"target_{second}"]) == pytest.approx(size[i], rel=1e-5)
            wanted = scores[i, kind[i]] + 10 * other - (size[i] if has_sizes else 0)
            assert float(row["both"]) == pytest.approx(wanted, rel=1e-4, abs=1e-4)
        summary = json.loads((folder / "reports/summary.json").read_text())
        measured = summary["splits"][split]["columns"]
        assert {"both", "many", "right"} <= set(measured)
        assert not any(name.startswith(("prediction", "target")) for name in measured)
    named = "metrics (right) measure the output"
    assert (named in caplog.text) == (form != "one output")
    assert ("reports omit the outputs 'a'" in caplog.text) == (form == "of no row")
    predicted = manyfit.predict(folder)
    columns = {"id", "prediction", "confidence", *([f"prediction_{second}"] if form != "one output" else [])}
    assert set(predicted) == columns
    assert (folder / "exported/saved_model").is_dir() and (folder / "exported/model.keras").exists()


@pytest.mark.soak
def test_a_function_cannot_have_the_name_of_a_column(heads):
    with pytest.raises(UsageError, match="prediction_size is the column of the output 'size' in reports"):
        manyfit.train(heads(evaluator_class="heads.Taken"), callbacks=[])


def test_a_function_that_asks_for_another_output_fails_before_the_training(heads):
    folder = heads(evaluator_class="heads.Wrong")
    with pytest.raises(RunFailed, match=r"output \{'kind': \(3,\), 'size': \(1,\)\}.*KeyError: 'kid'"):
        manyfit.train(folder, callbacks=[])
    assert not list(folder.glob("checkpoints/*"))
