"""Compiled models of Keras, on TensorFlow and on torch."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, once
from manyfit.run.proof import Kill, difference, killed_and_resumed
from manyfit.store.folder import RunFolder
from manyfit.testing import LearnerContract

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="Keras is not installed")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from manyfit import export, load_model, predict, train  # noqa: E402
from manyfit.learn.keras import KerasLearner  # noqa: E402

KERAS = {"model_builder_class": "models.KerasBuilder", "model_builder": {}}


def rows():
    state = np.random.RandomState(0)
    return ArraySource(state.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3)


class TestContract(LearnerContract):
    def make(self):
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
        return KerasLearner(model, 5, lambda: next(once(rows(), 4)), seed=9)

    def source(self):
        return rows()

    def test_what_it_says_of_a_split_is_what_keras_says(self):
        learner = self.make()
        list(learner.evaluate(once(rows(), 3)))
        wanted = learner.model.evaluate(rows().inputs, rows().target, verbose=0, return_dict=True)
        assert learner.whole()[0] == pytest.approx(wanted, rel=1e-5)

    def test_it_trains_as_fit_does(self):
        ours, theirs = self.make(), self.make()
        self.train(ours, 0, 5)
        from manyfit.data import Order

        batches = [b for b, _ in zip(self.source().batches(Order(4, seed=1)), range(5), strict=False)]
        for batch in batches:
            theirs.model.train_on_batch(batch.inputs, batch.target)
        for mine, other in zip(ours.model.variables, theirs.model.variables, strict=True):
            assert np.array_equal(mine.numpy(), other.numpy())


def test_a_run_is_trained_exported_and_loaded(tiny):
    folder = tiny.write(**KERAS, epochs=3, export={"metric": "val_accuracy", "mode": "max"})
    result = train(folder, callbacks=[])
    assert {"loss", "accuracy", "error", "top"} <= set(result.test)
    assert result.test["accuracy"] == pytest.approx(result.test["top"])
    exported = folder / "exported"
    assert {p.name for p in exported.iterdir()} == {
        "model.json", "model.safetensors", "model.keras", "saved_model",
    }  # fmt: skip
    inputs = np.random.RandomState(1).normal(size=(3, 4)).astype(np.float32)
    said = [np.asarray(load_model(p)(inputs)) for p in (folder, exported, exported / "model.keras")]
    served = tf.saved_model.load(str(exported / "saved_model"))
    assert all(np.allclose(said[0], other) for other in [*said[1:], served.serve(inputs)])
    found = predict(folder)
    assert found["id"] == [f"row-{i}" for i in range(11)]
    assert export(folder, ["keras"]) == [exported / "model.keras"]
    assert train(folder, callbacks=[]).trained_steps == 0
    assert train(folder, ["epochs=4"], callbacks=[]).trained_steps == 10


def test_a_callback_may_stop_a_run_for_good(tiny):
    folder = tiny.write(model_builder_class="models.KerasBuilder", model_builder={"patience": 2}, epochs=9)
    result = train(folder, callbacks=[])
    assert result.step == 30 and "callback" in result.summary["stopped"]
    assert train(folder, callbacks=[]).trained_steps == 0


def test_a_metric_that_does_not_exist_is_named(tiny):
    folder = tiny.write(**KERAS, export={"metric": "val_acuracy", "mode": "max"})
    with pytest.raises(UsageError, match=r"export\.metric.*did you mean val_accuracy\?"):
        train(folder, callbacks=[])
    with pytest.raises(UsageError, match=r"train\.ema: a compiled model of Keras decides this itself"):
        train(tiny.write("b", **KERAS), ["+train.ema=0.9"], callbacks=[])


def test_layers_that_carry_code_are_refused_unless_they_are_named(tiny, caplog):
    folder = tiny.write(
        model_builder_class="models.KerasBuilder", model_builder={"lambda_layer": True}, epochs=1
    )
    train(folder, callbacks=[])
    file = folder / "exported" / "model.keras"
    assert "model.keras holds code (Lambda" in caplog.text
    with pytest.raises(UsageError, match="holds code"):
        load_model(file)
    names = ["Lambda", "__lambda__"]
    assert load_model(file, allow=names).count_params() == load_model(folder).count_params()


INSIDE, BETWEEN = Kill("step", 5), Kill("epoch", 1)
MANY = [[Kill(where, count)] for where in ("step", "validation", "write") for count in (1, 3, 9, 14)]


@pytest.mark.parametrize(
    "kills", [[INSIDE, BETWEEN], *(pytest.param(kills, marks=pytest.mark.soak) for kills in MANY)], ids=str
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tiny, kills):
    changes = ["train.every.checkpoint=2ba", "train.threads=1", "epochs=3"]
    source = tiny.write(**KERAS)
    killed_and_resumed(source, changes, tiny.root / "runs" / "whole", [])
    assert killed_and_resumed(source, changes, tiny.root / "runs" / "killed", kills)
    assert not difference(RunFolder(tiny.root / "runs" / "whole"), RunFolder(tiny.root / "runs" / "killed"))


def test_the_torch_backend(tiny):
    folder = tiny.write(**KERAS, epochs=2)
    code = f"""
from manyfit import train
whole = train({str(folder)!r}, callbacks=[])
first = train({str(folder)!r}, ["epochs=1"], folder={str(tiny.root / "runs" / "parts")!r}, callbacks=[])
both = train({str(folder)!r}, ["epochs=2"], folder={str(tiny.root / "runs" / "parts")!r}, callbacks=[])
assert both.trained_steps == 10 and both.test == whole.test, (whole.test, both.test)
import keras, sys
print(keras.backend.backend(), "tensorflow" in sys.modules)
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "torch"
    assert not (folder / "exported" / "saved_model").exists()
    assert (folder / "exported" / "model.keras").exists()


def test_a_pipeline_of_tensorflow_is_positioned_like_any_other():
    from tests.pipeline.test_stream import Loader, Preprocessor

    from manyfit.data import Order
    from manyfit.pipeline import stream
    from manyfit.pipeline.stream import ComponentSource

    class Rows(Loader):
        def rows(self, kind):
            third = (
                [f"id {i}" for i in range(self.count)] if kind == "test" else np.ones(self.count, np.float32)
            )
            found = tf.data.Dataset.from_tensor_slices((np.arange(self.count, dtype=np.float32)[:, None],
                                                        np.arange(self.count) % 3, third))  # fmt: skip
            found = found.map(lambda x, y, w: (x + tf.random.uniform(()), y, w)) if kind == "train" else found
            return found.shuffle(self.count) if kind == "train" else found

    class Batches(Preprocessor):
        def add_image_preprocess(self, generator):
            return generator

        def batchify(self, generator, n):
            return generator.batch(self.size, drop_remainder=self.whole), -(-n // self.size)

    for whole in (False, True):
        test = ComponentSource("test", Rows(10, False), None, Batches(4, whole), 4)
        for _ in range(2):
            found = list(once(test, 4))
            assert np.concatenate([b.inputs for b in found])[:, 0].tolist() == list(range(10))
        assert test.ids(np.arange(10)) == [f"id {i}" for i in range(10)]
    train_ = ComponentSource("train", Rows(10, False), None, Batches(4, False), 4)
    before, stream.SEGMENT = stream.SEGMENT, 6
    try:
        batches = train_.batches(Order(4, seed=1))
        whole = [next(batches).inputs.tolist() for _ in range(14)]
        for start in (0, 2, 3, 7, 12):
            again = train_.batches(Order(4, seed=1), start)
            assert [next(again).inputs.tolist() for _ in range(2)] == whole[start : start + 2]
        native = train_.batches(Order(4, seed=1), 4)
        iterator, count = native.native(9)
        assert count == 2
        assert [next(iterator)[0].numpy().tolist() for _ in range(count)] == whole[4:6]
    finally:
        stream.SEGMENT = before


def table(file):
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_evaluation_functions_of_every_kind_are_vectorised_where_they_can_be(caplog):
    import torch

    from manyfit.run.evaluator import Evaluator, batched

    output = np.random.RandomState(0).dirichlet(np.ones(4), 50).astype(np.float32)
    target = np.arange(50) % 4
    wanted = -np.log(output[np.arange(50), target])
    calls = []

    def counted(y_true, y_pred):
        calls.append(1)
        return keras.losses.SparseCategoricalCrossentropy()(y_true, y_pred).numpy()

    found = Evaluator(
        {},
        {
            "numpy": lambda y_true, y_pred: -np.log(y_pred[y_true]),
            "tensorflow": lambda y_true, y_pred: -tf.math.log(tf.gather(y_pred, y_true)),
            "torch": lambda y_true, y_pred: -torch.log(y_pred[y_true]),
            "batched": batched(lambda y_true, y_pred: -np.log(y_pred[np.arange(len(y_true)), y_true])),
            "name": "sparse_categorical_crossentropy",
            "eager": counted,
        },
    )
    for _ in range(2):
        for name, values in found(output, target).items():
            assert np.allclose(values, wanted, atol=1e-5), name
    assert len(calls) >= 100
    with pytest.raises(UsageError, match="did you mean 'sparse_categorical_crossentropy'"):
        Evaluator({}, {"x": "sparse_categorical_crosentropy"})
    assert json.dumps(sorted(found.functions))
