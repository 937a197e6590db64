"""Five components: what is odd about them is said with their names, and nothing is lost."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import ComponentFailed, RunConflict, RunFailed, UsageError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LOADERS = """

class Unnamed(Loader):
    def get_validation_index(self):
        return None


class Weightless(Loader):
    def create_validation_generator(self):
        return self.rows("validation", lambda i: None), 13


class OneArgument(Loader):
    def __init__(self, config):
        super().__init__(config, None)


class OutOfRange(Loader):
    def rows(self, split, third):
        for x, y, t in super().rows(split, third):
            yield x, (9 if split == "train" else y), t


class Texts(Loader):
    def rows(self, split, third):
        for x, y, t in super().rows(split, third):
            yield x, f"class {y}", t
"""

BUILDERS = '''
import numpy as np
import keras
from manyfit.pipeline import ModelBuilderBase


class Counter(keras.callbacks.Callback):
    """Its counter is also an argument, and the rate depends on it."""

    def __init__(self, count=0):
        super().__init__()
        self.count = count

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        self.model.optimizer.learning_rate = 0.01 / (1 + self.count)


class Base(ModelBuilderBase):
    def get_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(3)])

    def get_compiled_model(self):
        model = self.get_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=False)
        return model

    def create_model(self):
        return self.get_model()


class Counting(Base):
    def get_callbacks(self):
        return [Counter()]


class Bare(Base):
    def get_callbacks(self):
        return Counter()


class Nan(Base):
    def get_compiled_model(self):
        model = super().get_compiled_model()
        model.optimizer.learning_rate = float("inf")
        return model


@keras.saving.register_keras_serializable(package="mine")
class Own(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2.0


class WithOwn(Base):
    def get_model(self):
        return keras.Sequential([keras.Input((4,)), Own(), keras.layers.Dense(3)])


class Two(Base):
    """Two inputs, and two outputs by name."""

    def __init__(self, config=None):
        super().__init__(config)
        self.form = config.form if config is not None else "tuple"

    def get_model(self):
        left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
        both = keras.layers.Concatenate()([left, right])
        output = keras.layers.Dense(3, name="classes")(both)
        if self.form == "outputs":
            return keras.Model({"left": left, "right": right}, {"classes": output, "a": keras.layers.Dense(2, name="a")(both)})
        return keras.Model({"left": left, "right": right} if self.form == "dict" else (left, right), output)

    def get_compiled_model(self):
        model = self.get_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", {"classes": loss} if self.form == "outputs" else loss, jit_compile=False)
        return model
'''

TWICE = '''

class Both(Preprocessor):
    """Two inputs, in a tuple or by name."""

    def batchify(self, generator, n):
        found, count = super().batchify(generator, n)
        is_named = self.config.form != "tuple"
        def made():
            for x, y, w in found:
                inputs = {"left": x, "right": x} if is_named else (x, x)
                yield inputs, ({"classes": y} if self.config.form == "outputs" else y), w
        return made(), count
'''


@pytest.fixture
def odd(tiny):
    source = tiny.root / "src"
    with (source / "dataset.py").open("a") as file:
        file.write(LOADERS)
    with (source / "preprocessing.py").open("a") as file:
        file.write(TWICE)
    (source / "builders.py").write_text(BUILDERS)
    return tiny


def test_an_index_of_none_is_a_range(odd):
    folder = odd.write(data_loader_class="dataset.Unnamed")
    manyfit.train(folder, callbacks=[])
    with (folder / "reports/validation.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(i) for i in range(13)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_loader_class": "dataset.Weightless"}, "Weightless.create_validation_generator must yield"),
        (
            {"data_loader_class": "dataset.OneArgument"},
            r"OneArgument.__init__ must accept \(config, data_dir\)",
        ),
    ],
)
def test_a_mistake_of_a_component_names_its_method(odd, changes, words):
    with pytest.raises(UsageError, match=words):
        manyfit.train(odd.write(**changes), callbacks=[])


def test_evaluate_writes_both_reports(odd):
    folder = odd.write()
    manyfit.train(folder, callbacks=[])
    reports = [folder / "reports" / name for name in ("validation_report.csv", "eval_report.csv")]
    before = [file.read_bytes() for file in reports]
    for file in reports:
        file.write_text("gone")
    manyfit.evaluate(folder)
    assert [file.read_bytes() for file in reports] == before


def test_missing_keys_are_told_before_tensorflow_is_imported(odd):
    (odd.root / "src/models.py").write_text("raise AssertionError('imported')\n")
    folder = odd.write(without=("epochs",))
    began = time.process_time()
    with pytest.raises(UsageError, match="epochs: this key is required") as error:
        manyfit.train(folder, callbacks=[])
    assert "imported" not in str(error.value)
    assert time.process_time() - began < 3


@pytest.fixture
def with_keras():
    pytest.importorskip("tensorflow")
    return pytest.importorskip("keras")


def test_callbacks_are_a_list(odd, with_keras):
    with pytest.raises(
        UsageError, match=r"Bare.get_callbacks must return a list of callbacks, not a Counter"
    ):
        manyfit.train(odd.write(model_builder_class="builders.Bare", model_builder={}), callbacks=[])


@pytest.mark.soak
def test_a_counter_that_is_also_an_argument_is_restored(odd, with_keras):
    from tests.run.cut import Ask

    from manyfit.core.errors import Interrupted
    from manyfit.run.resume_proof import difference
    from manyfit.store.folder import RunFolder

    given = {"model_builder_class": "builders.Counting", "model_builder": {}, "epochs": 3}
    whole, parts = odd.write("whole", **given), odd.write("parts", **given)
    manyfit.train(whole, callbacks=[])
    with pytest.raises(Interrupted):
        manyfit.train(parts, callbacks=[Ask(13)])
    manyfit.train(parts, callbacks=[])
    for folder in (whole, parts):
        folder.with_name(f"{folder.name}.trace").write_text("[0, []]\n")
    assert difference(RunFolder(whole), RunFolder(parts)) == ""


def test_advice_about_a_loss_that_is_no_number_can_be_followed(odd, with_keras):
    folder = odd.write(model_builder_class="builders.Nan", model_builder={}, epochs=2)
    with pytest.raises(RunFailed, match="clipping its gradients"):
        manyfit.train(folder, callbacks=[])


@pytest.mark.parametrize("form", ["tuple", "dict", "outputs"])
def test_models_with_several_inputs_or_outputs_are_served(odd, with_keras, form, caplog):
    import tensorflow as tf

    folder = odd.write(
        model_builder_class="builders.Two",
        model_builder={},
        preprocessor_class="preprocessing.Both",
        evaluator_class="evaluation.Named",
        form=form,
    )
    manyfit.train(folder, callbacks=[])
    assert "is not exported as saved_model" not in caplog.text
    assert (folder / "exported/saved_model/saved_model.pb").exists()
    assert tf.saved_model.load(str(folder / "exported/saved_model")) is not None


@pytest.mark.soak
def test_the_advice_of_load_model_works_in_a_new_process(odd, with_keras):
    folder = odd.write(model_builder_class="builders.WithOwn", model_builder={}, epochs=1)
    manyfit.train(folder, callbacks=[])
    file = folder / "exported/model.keras"
    with pytest.raises(UsageError) as error:
        manyfit.load_model(file)
    advice = str(error.value).rpartition("if you trust it: ")[2]
    code = f"import manyfit; print(manyfit.load_model({str(file)!r}, {advice}).count_params())"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "15"


@pytest.mark.parametrize(
    ("loader", "words"),
    [("OutOfRange", "outside the valid range|label value of 9"), ("Texts", "string|text")],
)
def test_what_tensorflow_complains_about_is_said(odd, with_keras, loader, words):
    folder = odd.write(
        model_builder_class="builders.Base", model_builder={}, data_loader_class=f"dataset.{loader}"
    )
    with pytest.raises((RunFailed, UsageError, ComponentFailed), match=words) as error:
        manyfit.train(folder, callbacks=[])
    assert len(str(error.value)) < 1500
    assert np is not None


def test_evaluate_does_not_write_a_report_of_changed_validation_data(odd):
    folder = odd.write()
    manyfit.train(folder, callbacks=[])
    before = (folder / "reports/validation_report.csv").read_bytes()
    source = odd.root / "src/dataset.py"
    source.write_text(source.read_text().replace('"validation": 13', '"validation": 12'))
    sys.modules.pop("dataset", None)
    with pytest.raises(RunConflict, match=r"the data of .* has changed since it was trained: validation"):
        manyfit.evaluate(folder, allow_change=["code"])
    assert (folder / "reports/validation_report.csv").read_bytes() == before
    sys.modules.pop("dataset", None)
