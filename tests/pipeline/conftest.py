"""A project of five components on disk: arrays made on the spot, generators of Python, a module of PyTorch."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from manyfit.config.tree.reader import dump

DATASET = '''
import numpy as np
from manyfit.pipeline import AugmentorBase, DataLoaderBase

COUNTS = {"train": 37, "validation": 13, "test": 11}


def arrays(split):
    count = COUNTS[split]
    state = np.random.RandomState(len(split))
    x = state.normal(size=(count, 4))
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)


class Loader(DataLoaderBase):
    """Finite generators; rows are shuffled by NumPy's global generator."""

    def _set_defaults(self):
        self.shuffle = True

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle

    def rows(self, split, third):
        x, y = arrays(split)
        order = np.arange(len(x))
        if split == "train" and self.shuffle:
            np.random.shuffle(order)
        for i in order:
            yield x[i], y[i], third(i)

    def create_training_generator(self):
        return self.rows("train", lambda i: 1.0), COUNTS["train"]

    def create_validation_generator(self):
        return self.rows("validation", lambda i: 1.0), COUNTS["validation"]

    def create_test_generator(self):
        return self.rows("test", lambda i: f"row-{i}".encode()), COUNTS["test"]

    def get_validation_index(self):
        return np.array([f"v{i}" for i in range(COUNTS["validation"])])


class Endless(Loader):
    """Generators that never end."""

    def rows(self, split, third):
        while True:
            yield from super().rows(split, third)


class Pairs(Loader):
    def rows(self, split, third):
        for x, y, _ in super().rows(split, third):
            yield x, y


class Few(Loader):
    """Says that there are more rows than there are."""

    def create_validation_generator(self):
        return super().create_validation_generator()[0], 20

    def get_validation_index(self):
        return range(20)


class Twice(Loader):
    def create_test_generator(self):
        return self.rows("test", lambda i: "same" if i in (3, 5) else i), COUNTS["test"]


class Unfinished(DataLoaderBase):
    def create_training_generator(self): ...
    def create_validation_generator(self): ...


class Broken(Loader):
    def create_training_generator(self):
        raise FileNotFoundError("labels.csv")


class Noise(AugmentorBase):
    calls = []

    def add_augmentation(self, generator):
        Noise.calls.append("train")
        for x, y, w in generator:
            yield x + 0.01 * np.random.normal(size=x.shape), y, w

    def add_validation_augmentation(self, generator):
        Noise.calls.append("validation")
        for x, y, w in generator:
            yield x, y, w


class OnlyTraining(AugmentorBase):
    def add_augmentation(self, generator):
        return generator
'''

PREPROCESSING = '''
import numpy as np
from manyfit.pipeline import PreprocessorBase


class Preprocessor(PreprocessorBase):
    """As guides write it: it asks for more rows than there are, and would end with an error."""

    def _set_defaults(self):
        self.batch_size = 4
        self.scale = 1.0

    def _load_params(self, config):
        self.batch_size = config.batch_size
        self.scale = config.preprocessor.scale

    def image_preprocess(self, image):
        return image * self.scale

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        while True:
            x, y, w = next(generator)
            yield self.image_preprocess(x), y, w

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        return self.batches(generator), -(-n_data_points // self.batch_size)

    def batches(self, generator):
        while True:
            rows = [next(generator) for _ in range(self.batch_size)]
            yield tuple(np.array(column) for column in zip(*rows))
'''

MODELS = '''
from typing import Annotated, Literal

from annotated_types import Gt
from manyfit.pipeline import Compiled, ModelBuilderBase


class Builder(ModelBuilderBase):
    """Typed: its section is checked."""

    hidden: Annotated[int, Gt(0)] = 8
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = 0.1
    scale: float = 1.0

    def get_compiled_model(self):
        import torch
        from torch import nn

        act = nn.ReLU() if self.activation == "relu" else nn.Tanh()
        module = nn.Sequential(nn.Linear(4, self.hidden), act, nn.Dropout(self.dropout), nn.Linear(self.hidden, 3))
        return Compiled(module, nn.CrossEntropyLoss(), torch.optim.Adam(module.parameters(), lr=0.01))


class Plain(ModelBuilderBase):
    """A module alone: the config says how it is trained."""

    def get_compiled_model(self):
        from torch import nn

        return nn.Linear(4, 3)

    def get_class_weight(self):
        return {0: 2.0, 2: 0.5}


def negative(output, target):
    return -1 - (output.argmax(-1) != target).float()


class Wrong(ModelBuilderBase):
    def get_compiled_model(self):
        return "a model"


class Weighty(Builder):
    def get_class_weight(self):
        return {"much": 3}


class Narrow(ModelBuilderBase):
    def get_compiled_model(self):
        import torch
        from torch import nn

        module = nn.Linear(5, 3)
        return Compiled(module, nn.CrossEntropyLoss(), torch.optim.Adam(module.parameters()))


class Forest(ModelBuilderBase):
    trees: int = 5

    def get_compiled_model(self):
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(self.trees)


class Scaled(ModelBuilderBase):
    """A pipeline with a step of one's own."""

    def get_compiled_model(self):
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import Pipeline

        from steps import Halved

        return Pipeline([("half", Halved()), ("model", LogisticRegression())])


class KerasBuilder(ModelBuilderBase):
    """A compiled model, with callbacks that the config asks for."""

    rate: float = 0.01
    patience: int = 0
    lambda_layer: bool = False
    has_input: bool = True

    def get_compiled_model(self):
        import keras

        layers = [keras.Input((4,))] if self.has_input else []
        layers += [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2)]
        if self.lambda_layer:
            layers.append(keras.layers.Lambda(lambda x: x))
        model = keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")])
        model.compile(
            keras.optimizers.Adam(self.rate), "sparse_categorical_crossentropy", metrics=["accuracy"],
            jit_compile=False,
        )
        return model

    def get_callbacks(self):
        import keras

        if not self.patience:
            return []
        return [keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=self.patience)]
'''

EVALUATION = """
import numpy as np
from manyfit.pipeline import EvaluatorBase, batched


def error(y_true, y_pred):
    return float(1 - np.exp(y_pred[y_true]) / np.exp(y_pred).sum())


@batched
def right(y_true, y_pred):
    return np.argmax(y_pred, axis=-1) == y_true


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"error": error, "right": right, "top": "accuracy"}


class Named(EvaluatorBase):
    def get_eval_funcs(self):
        return {"top": "accuracy"}


class Other(EvaluatorBase):
    def get_eval_funcs(self):
        return {}


class Reserved(EvaluatorBase):
    def get_eval_funcs(self):
        return {"loss": error}
"""

STEPS = """
from sklearn.base import BaseEstimator, TransformerMixin


class Halved(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        self.count_ = len(x)
        return self

    def transform(self, x):
        return x / 2
"""

CONFIG = {
    "project_name": "tiny",
    "src_code_path": "src",
    "data_dir": "data",
    "data_loader_class": "dataset.Loader",
    "preprocessor_class": "preprocessing.Preprocessor",
    "model_builder_class": "models.Builder",
    "evaluator_class": "evaluator_class: evaluation.Evaluator",
    "epochs": 2,
    "batch_size": 4,
    "data_loader": {"shuffle": True},
    "preprocessor": {"scale": 1.0},
    "model_builder": {"hidden": 8},
    "export": {"metric": "val_loss", "mode": "min"},
    "track": {"mlflow": None},
}


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        files = {
            "dataset": DATASET,
            "preprocessing": PREPROCESSING,
            "models": MODELS,
            "evaluation": EVALUATION,
            "steps": STEPS,
        }
        (root / "src").mkdir()
        (root / "data").mkdir()
        for name, text in files.items():
            (root / "src" / f"{name}.py").write_text(textwrap.dedent(text))

    def write(self, name: str = "run", without: tuple[str, ...] = (), **changes) -> Path:
        """The folder of a run with this config."""
        config = {k: v for k, v in {**CONFIG, **changes}.items() if k not in without}
        folder = self.root / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(dump(config))
        return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def project_cli(cli):
    """The command line: its exit code, and all that it says."""

    def run(*words):
        answer = cli(*words)
        return answer.code, answer.out + answer.err

    return run
