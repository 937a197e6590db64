"""Compiled models of Keras, on TensorFlow and on torch."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.lazy import LazyModule, needs
from tests.run.cut import resumes

from manyfit import export, load_config, load_model, predict, train
from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, once
from manyfit.learn.keras.learner import KerasLearner
from manyfit.run.build.builder import build
from manyfit.run.resume_proof import Kill, Probe, difference, kill_and_resume
from manyfit.store.folder import RunFolder
from manyfit.testing import LearnerContract
from manyfit.testing.learner import copy_states, equal

pytestmark = needs("keras", "tensorflow")
keras, tf = LazyModule("keras"), LazyModule("tensorflow")

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
    export(folder)
    assert (exported / "model.keras").exists() and (exported / "saved_model").exists()
    assert train(folder, callbacks=[]).trained_steps == 0
    assert train(folder, ["epochs=4"], callbacks=[]).trained_steps == 10


@pytest.mark.soak
@pytest.mark.parametrize("has_input", [pytest.param(True, marks=pytest.mark.soak), False])
def test_a_warm_start_of_a_model_with_and_without_an_input_shape(tiny, has_input):
    model = {**KERAS, "model_builder": {**KERAS.get("model_builder", {}), "has_input": has_input}}
    first = tiny.write(**model, epochs=1)
    train(first, callbacks=[])
    weights = [np.asarray(variable) for variable in load_model(first / "exported").variables]
    second = tiny.write("second", **model, epochs=1, train={"warm_start": {"path": str(first)}})
    built = build(load_config(second, trust=True), warm=True)
    found = [np.asarray(variable) for variable in built.learner.model.variables]
    assert len(found) == len(weights) > 2
    assert all(np.array_equal(left, right) for left, right in zip(found, weights, strict=True))


@pytest.mark.soak
def test_a_callback_may_stop_a_run_for_good(tiny):
    folder = tiny.write(model_builder_class="models.KerasBuilder", model_builder={"patience": 2}, epochs=9)
    result = train(folder, callbacks=[])
    assert result.step == 30 and "callback" in result.summary["stopped"]
    assert train(folder, callbacks=[]).trained_steps == 0


def test_a_metric_that_does_not_exist_is_named(tiny):
    folder = tiny.write(**KERAS, export={"metric": "val_acuracy", "mode": "max"})
    with pytest.raises(UsageError, match=r"export\.metric.*did you mean val_accuracy\?"):
        train(folder, callbacks=[])
    with pytest.raises(UsageError, match=r"train\.ema: does not apply to a compiled Keras model"):
        train(tiny.write("b", **KERAS), ["+train.ema=0.9"], callbacks=[])


def test_layers_that_carry_code_are_refused_unless_they_are_named(tiny, caplog):
    folder = tiny.write(
        model_builder_class="models.KerasBuilder", model_builder={"lambda_layer": True}, epochs=1
    )
    train(folder, callbacks=[])
    file = folder / "exported" / "model.keras"
    assert "model.keras contains code (Lambda" in caplog.text
    with pytest.raises(UsageError, match="contains code"):
        load_model(file)
    names = ["Lambda", "__lambda__"]
    assert load_model(file, allow=names).count_params() == load_model(folder).count_params()


INSIDE, BETWEEN = Kill("step", 5), Kill("epoch", 1)
MANY = [[INSIDE, BETWEEN]] + [
    [Kill(where, count)] for where in ("step", "validation", "write") for count in (1, 3, 9, 12)
]


def test_a_run_that_was_cut_short_ends_as_if_it_had_not_been(tiny, monkeypatch):
    monkeypatch.chdir(tiny.root)
    resumes(tiny, tiny.write(**KERAS), step=13)


@pytest.mark.soak
@pytest.mark.parametrize("kills", [[INSIDE], *MANY], ids=str)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tiny, kills):
    changes = ["train.every.checkpoint=2ba", "train.threads=1", "epochs=3"]
    source = tiny.write(**KERAS)
    kill_and_resume(source, changes, tiny.root / "runs" / "whole", [])
    assert kill_and_resume(source, changes, tiny.root / "runs" / "killed", kills)
    assert not difference(RunFolder(tiny.root / "runs" / "whole"), RunFolder(tiny.root / "runs" / "killed"))


@pytest.mark.soak
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


def test_a_learner_is_built_after_an_import_of_keras_that_failed(monkeypatch):
    """Then modules are loaded, but are no attributes of their packages."""
    monkeypatch.delattr(keras.src.backend.common, "global_state")
    noisy()


def test_a_pipeline_of_tensorflow_is_positioned_like_any_other():
    from tests.pipeline.test_source import Loader, Preprocessor

    from manyfit.data import Order
    from manyfit.pipeline import training_batches
    from manyfit.pipeline.source import ComponentSource

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
    before, training_batches.SEGMENT = training_batches.SEGMENT, 6
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
        training_batches.SEGMENT = before


NATIVE = """
import numpy as np
import tensorflow as tf
from dataset import COUNTS, Loader, arrays
from preprocessing import Preprocessor


class Rows(Loader):
    def rows(self, split, third):
        x, y = arrays(split)
        thirds = [third(i) for i in range(len(x))]
        found = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y, thirds))
        return found.shuffle(COUNTS[split]) if split == "train" else found


class Batches(Preprocessor):
    def add_image_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        return generator.batch(self.batch_size), -(-n_data_points // self.batch_size)
"""


def native(tiny):
    (tiny.root / "src" / "native.py").write_text(NATIVE)
    return tiny.write(**KERAS, data_loader_class="native.Rows", preprocessor_class="native.Batches", epochs=2)


@pytest.mark.soak
def test_the_probe_of_check_resume_leaves_tensorflow_its_own_pipeline(tiny):
    """What is proved is the path that is trained: TensorFlow reads the batches, so that no rows are known."""
    folder, trace = native(tiny), tiny.root / "trace"
    result = train(folder, callbacks=[Probe(trace, None)])
    seen = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [step for step, _ in seen] == list(range(result.step))
    assert not any(rows for _, rows in seen), "the batches went through NumPy"


@pytest.mark.soak
def test_a_pipeline_of_tensorflow_resumes_exactly(tiny):
    source, runs = native(tiny), tiny.root / "runs"
    changes = ["train.every.checkpoint=2ba", "train.threads=1"]
    kill_and_resume(source, changes, runs / "whole", [])
    assert kill_and_resume(source, changes, runs / "killed", [Kill("step", 5)])
    assert not difference(RunFolder(runs / "whole"), RunFolder(runs / "killed"))


def test_evaluation_functions_of_every_kind_are_vectorised_where_they_can_be():
    import torch

    from manyfit.run.build.evaluator import Evaluator, batched

    output = np.random.RandomState(0).dirichlet(np.ones(4), 50).astype(np.float32)
    target = np.arange(50) % 4
    wanted = -np.log(output[np.arange(50), target])
    calls = {}

    def counted(name, function):
        def call(y_true, y_pred):
            calls[name] = calls.get(name, 0) + 1
            return function(y_true, y_pred)

        return call

    scce = keras.losses.SparseCategoricalCrossentropy()
    found = Evaluator(
        {},
        {
            "numpy": counted("numpy", lambda y_true, y_pred: -np.log(np.take(y_pred, y_true))),
            "tensorflow": counted("tf", lambda y_true, y_pred: -tf.math.log(tf.gather(y_pred, y_true))),
            "torch": counted("torch", lambda y_true, y_pred: -torch.log(torch.take(y_pred, y_true))),
            "batched": batched(lambda y_true, y_pred: -np.log(y_pred[np.arange(len(y_true)), y_true])),
            "name": "sparse_categorical_crossentropy",
            "eager": counted("eager", lambda y_true, y_pred: scce(y_true, y_pred).numpy()),
        },
    )
    for _ in range(3):
        for name, values in found(output, target).items():
            assert np.allclose(values, wanted, atol=1e-5), name
    assert calls["eager"] > 150  # row by row
    assert calls["tf"] < 60 and calls["torch"] < 60  # some rows, to see that many at once are the same
    with pytest.raises(UsageError, match="did you mean 'sparse_categorical_crossentropy'"):
        Evaluator({}, {"x": "sparse_categorical_crosentropy"})


def test_a_function_that_only_seems_to_take_many_rows_is_found_out(caplog):
    from manyfit.run.build.evaluator import Evaluator

    def right(y_true, y_pred):
        return np.argmax(y_pred) == y_true  # of a batch, this is a number of another kind

    target = np.arange(40) % 10
    output = np.zeros((40, 10), np.float32)
    evaluator = Evaluator({}, {"right": right})
    assert not evaluator(output[:8], np.full(8, 9))["right"].any()  # nothing is right yet, either way
    output[np.arange(40), target] = 1
    assert evaluator(output, target)["right"].all()

    def odd(y_true, y_pred):
        return np.abs(y_pred).sum(-1) if np.ndim(y_pred) == 1 or len(y_pred) < 9 else np.zeros(len(y_pred))

    evaluator = Evaluator({}, {"odd": odd})
    output = np.random.RandomState(0).normal(size=(40, 10))
    assert np.allclose(evaluator(output[:8], target[:8])["odd"], np.abs(output[:8]).sum(-1))
    assert np.allclose(evaluator(output, target)["odd"], np.abs(output).sum(-1))
    assert "'odd' returns other values for many rows at once" in caplog.text


def noisy(callbacks=(), steps=5):
    class Noisy(keras.layers.Layer):
        """Draws at inference, too, and has a weight without a name."""

        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator()
            self.scale = self.add_weight(shape=(1,), initializer="ones")

        def call(self, inputs):
            drawn = keras.random.dropout(inputs, 0.3, seed=self.seeds) * self.scale
            return drawn + 0.01 * keras.random.normal((1,))

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), Noisy(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], jit_compile=False)
    return KerasLearner(model, steps, lambda: next(once(rows(), 4)), callbacks, seed=9)


@pytest.mark.soak
def test_evaluating_changes_nothing_about_the_training():
    from manyfit.data import Order

    def state(evaluates, start=None):
        learner = noisy()
        if start is not None:
            learner.load(start)
        batches = rows().batches(Order(4, seed=1), learner.step)
        for _ in range(2):
            learner.train(batches, 3)
            if evaluates:
                list(learner.evaluate(once(rows(), 4)))
        return copy_states(learner.state())

    half = state(False)
    assert equal(half, state(True))
    assert equal(state(False, half), state(True, half))


def test_callbacks_hear_what_fit_would_tell_them():
    from manyfit.data import Order

    heard = []
    lambdas = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: heard.append("train"),
        on_epoch_begin=lambda epoch, logs: heard.append(f"epoch {epoch}"),
        on_train_batch_end=lambda batch, logs: heard.append(batch),
        on_epoch_end=lambda epoch, logs: heard.append(sorted(logs)),
        on_train_end=lambda logs: heard.append("end"),
    )
    stopping = keras.callbacks.EarlyStopping("loss", patience=7, min_delta=100)
    learner = noisy([[lambdas], stopping], steps=2)
    batches = rows().batches(Order(4, seed=1))
    learner.train(batches, 2)
    learner.observe([{"val_loss": 1.0, "train_loss": 3.0}])
    learner.train(batches, 2)
    learner.observe([{}])
    learner.end()
    assert heard == [
        "train", "epoch 0", 0, 1, ["accuracy", "loss", "val_loss"],
        "epoch 1", 0, 1, ["accuracy", "loss"], "end",
    ]  # fmt: skip
    other = keras.callbacks.EarlyStopping("loss", patience=3, min_delta=100)
    again = noisy([[keras.callbacks.Callback()], other], steps=2)
    again.load(copy_states(learner.state()))
    again.train(rows().batches(Order(4, seed=1), 4), 2)
    assert (other.patience, other.wait) == (3, 1)  # what was set stays, what it has learned comes back
    again.observe([{}])
    assert other.wait == 2 and again.stop_reasons() == [""]
    again.train(batches, 2)
    again.observe([{}])
    assert "stopped it in epoch 4" in again.stop_reasons()[0]


@pytest.mark.soak
def test_a_rate_that_a_callback_changed_stays_changed_after_a_restart():
    from manyfit.data import Order

    def halved():
        class Halves(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                self.model.optimizer.learning_rate = 1.0

            def on_epoch_end(self, epoch, logs=None):
                self.model.optimizer.learning_rate = self.model.optimizer.learning_rate / 2

        return [Halves()]

    learner = noisy(halved(), steps=2)
    learner.train(rows().batches(Order(4, seed=1)), 2)
    for measured in (False, True):  # cut off before the epoch was told of, or after
        if measured:
            learner.observe([{}])
        again = noisy(halved(), steps=2)
        again.load(copy_states(learner.state()))
        again.observe([{}])
        again.train(rows().batches(Order(4, seed=1), 2), 1)
        assert float(again.take()["lr"][0]) == 0.5
