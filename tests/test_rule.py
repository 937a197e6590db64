"""The rule of every door: what a user writes is used, or refused, or named in a warning.

Each case writes something that has no business there, or that has an effect, into a job that works. What is
refused or said must have its name in it; what is used must change what is trained or reported.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

import manyfit
from manyfit.config.dialects.variant_files import SHIPPED
from manyfit.config.tree.reader import dump
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.study.sweep import sweep

CODE = """
import itertools

import numpy as np
import torch
from torch import nn
from manyfit.data import ArraySource
from manyfit.pipeline import (
    AugmentorBase, Compiled, DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase,
)

COUNTS = {"train": 24, "validation": 12, "test": 12}


def arrays(split):
    x = np.random.RandomState(len(split)).normal(size=(COUNTS[split], 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


class Data:
    def __init__(self, batch_size: int = 6, key: str = "", weight: str = "", target: bool = True) -> None:
        self.batch_size, self.key, self.weight = batch_size, key, weight

    def source(self, split):
        x, y = arrays(split)
        weight = None
        if self.weight:
            weight = np.linspace(0, 1, len(x), dtype="float32")
            weight = weight[: None if self.weight == "used" else -1]
        return ArraySource({"x": x, self.key: x} if self.key else {"x": x}, y, weight=weight)


class Net(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Hook(Net):
    def training_step(self, batch, number):
        raise AssertionError


class AlmostHook(Net):
    def configure_optimizer(self):
        raise AssertionError


class Loader(DataLoaderBase):
    def rows(self, split, third):
        x, y = arrays(split)
        return ((x[i], y[i], third(i)) for i in range(len(x))), len(x)

    def create_training_generator(self):
        return self.rows("train", self.weight)

    def weight(self, i):
        return 1.0

    def create_validation_generator(self):
        return self.rows("validation", lambda i: 1.0)

    def create_test_generator(self):
        return self.rows("test", str)

    def get_validation_index(self):
        return range(12)


class Weighted(Loader):
    def weight(self, i):
        return i / 24


class AlmostIndex(Loader):
    get_validation_index = DataLoaderBase.get_validation_index

    def get_validation_indices(self):
        raise AssertionError


class Noise(AugmentorBase):
    def add_augmentation(self, generator):
        return ((x + 1, y, w) for x, y, w in generator)

    def add_validation_augmentation(self, generator):
        return generator


class AlmostNoise(AugmentorBase):
    def add_augmentation(self, generator):
        return generator

    def add_validation_augmentations(self, generator):
        raise AssertionError


class Preprocessor(PreprocessorBase):
    key = ""

    def image_preprocess(self, image):
        return image

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        return generator

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n):
        return self.batches(generator), -(-n // 6)

    def batches(self, generator):
        while rows := list(itertools.islice(generator, 6)):
            x, y, w = (np.array(column) for column in zip(*rows))
            yield {"x": x, self.key: x} if self.key else {"x": x}, y, w


class Keyed(Preprocessor):
    key = "zebra"


class AlmostWeights(Preprocessor):
    def add_weights_preprocess(self, generator):
        raise AssertionError


class Builder(ModelBuilderBase):
    def get_compiled_model(self):
        module = Net()
        return Compiled(module, nn.CrossEntropyLoss(), torch.optim.SGD(module.parameters(), lr=0.1))


class Strict(Builder):
    hidden: int = 4


class ClassWeight(Builder):
    def get_class_weight(self):
        return {0: 0.25, 1: 1.0}


class OddClassWeight(Builder):
    def get_class_weight(self):
        return {0: 0.25, 77: 3.0}


class Callbacks(Builder):
    def get_callbacks(self):
        return ["zebra"]


class AlmostCallbacks(Builder):
    def get_callback(self):
        raise AssertionError


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"zebra": lambda y_true, y_pred: float(y_pred[y_true])}


class NoFunction(EvaluatorBase):
    def get_eval_funcs(self):
        return {"zebra": 3}


class Nothing(EvaluatorBase):
    def get_eval_funcs(self):
        return {}


class AlmostFunctions(EvaluatorBase):
    def get_eval_func(self):
        raise AssertionError


def zebra(output, target):
    return output.max()
"""

RUN: dict[str, Any] = {
    "project_name": "rule", "seed": 1, "data": {"class": "mine.Data"}, "model": {"class": "mine.Net"},
    "train": {"epochs": 1, "loss": {"class": "cross_entropy"}, "metrics": ["accuracy"],
              "optimizer": {"class": "sgd", "lr": 0.1}, "scheduler": {"class": "cosine"},
              "stop": {"metric": "val_loss", "patience": "3ep"}, "limit": {"train": 3}, "threads": 1},
    "evaluate": {"worst": 3}, "export": {"metric": "val_loss", "mode": "min"}, "track": {"mlflow": None},
}  # fmt: skip
FIVE: dict[str, Any] = {
    "project_name": "rule", "src_code_path": "src", "data_dir": "data", "data_loader_class": "mine.Loader",
    "preprocessor_class": "mine.Preprocessor", "model_builder_class": "mine.Builder",
    "evaluator_class": "mine.Nothing", "epochs": 1, "batch_size": 6, "seed": 1,
    "export": {"metric": "val_loss", "mode": "min"}, "track": {"mlflow": None},
}  # fmt: skip
FEEDER: dict[str, Any] = {
    "type": "TFRecordExamplesFeeder", "batch_size": 50,
    "features_map": {"number": {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}},
    "labels_map": {"number": {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}},
}  # fmt: skip
VARIANT: dict[str, Any] = {
    "model": {"type": "net:Net"},
    "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": {"class": "adam", "lr": 0.02}, "threads": 1,
              "train_feeder": FEEDER | {"file_patterns": "data/train-*"},
              "eval_feeder": FEEDER | {"file_patterns": "data/validation-*"}},
}  # fmt: skip
REGISTERED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Embedding(100, 4), nn.Linear(4, 100)

    def forward(self, number):
        return self.head(self.body(number[:, 0]))
"""
STUDY: dict[str, Any] = {
    "base": RUN, "objective": {"metric": "val_loss", "mode": "min"}, "space": {"model.hidden": [2, 3]},
    "search": {"method": "grid"}, "execute": {"on": "inline"},
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch, caplog):
    """A project with the code of all doors."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING, "manyfit")
    for name, text in {"src/mine.py": CODE, "models/registry/net.py": REGISTERED}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def changed(tree, changes):
    """The tree with dotted keys changed."""
    found = copy.deepcopy(tree)
    for key, value in changes.items():
        *parents, last = key.split("/")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {}) if isinstance(inner, dict) else inner[int(parent)]
        inner[last] = value
    return found


def result_of(folder: Path) -> str:
    """A digest of what was trained and reported."""
    digest = hashlib.sha256()
    for file in sorted([*folder.rglob("model.safetensors"), *folder.glob("reports/*.csv")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def train_run(place, changes, **options):
    folder = place / "runs/a"
    manyfit.train(changed(RUN, changes), folder=folder, **{"callbacks": [], **options})
    return result_of(folder)


def train_five(place, changes, **options):
    folder = place / "runs/a"
    folder.mkdir(parents=True)
    (place / "data").mkdir()
    (folder / "config.yaml").write_text(dump(changed(FIVE, changes)))
    manyfit.train(folder, **{"callbacks": [], **options})
    return result_of(folder)


def train_variant(place, changes, **options):
    (place / "variants").mkdir()
    (place / "variants/net.yaml").write_text(dump(changed(VARIANT, changes)))
    shutil.copytree(SHIPPED / "data", place / "data")
    manyfit.train("net", folder=place / "runs/a", **{"callbacks": [], **options})
    return result_of(place / "runs/a")


def train_study(place, changes):
    (place / "studies/s").mkdir(parents=True)
    (place / "studies/s/study.yaml").write_text(dump(changed(STUDY, changes)))
    sweep(place / "studies/s", progress=False)
    return "".join(result_of(folder) for folder in sorted((place / "studies/s").rglob("trials/*")))


DOORS = {"run": train_run, "five": train_five, "variant": train_variant, "study": train_study}


def sections(tree, path=""):
    """Every mapping of a config, by its path."""
    yield path
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from sections(value, f"{path}{key}/")


SECTIONS = [
    *(("run", f"{path}zebra") for path in sections(RUN)),
    *(("five", f"{path}zebra") for path in sections(FIVE)),
    *(("variant", f"{path}zebra") for path in sections(VARIANT)),
    *(("study", f"{path}zebra") for path in sections(STUDY)),
]
FEATURE = {"type": "FixedLenFeature", "shape": [1], "dtype": "int64"}
NAMED = {
    # what is written: the door, the changes, and the word that has to be said
    "batch key": ("run", {"data/key": "zebra"}, "zebra"),
    "declared unused, not there": ("run", {"data/unused": ["zebra"]}, "zebra"),
    "hook": ("run", {"model/class": "mine.Hook"}, "training_step"),
    "almost a hook": ("run", {"model/class": "mine.AlmostHook"}, "configure_optimizer"),
    "weight, too short": ("run", {"data/weight": "short"}, "weight"),
    "class weight, no class": ("run", {"train/class_weights": [1.0, 1.0, 3.0]}, "class_weights"),
    "group, no parameters": ("run", {"train/groups": [{"match": "zebra", "options": {"lr": 1.0}}]}, "zebra"),
    "freeze, no parameters": ("run", {"train/freeze": ["zebra"]}, "zebra"),
    "metric": ("run", {"train/metrics": ["zebra"]}, "zebra"),
    "metric to stop by": ("run", {"train/stop/metric": "val_zebra"}, "zebra"),
    "metric to choose by": ("run", {"export/metric": "val_zebra"}, "zebra"),
    "format": ("run", {"export/formats": ["zebra"]}, "zebra"),
    "split": ("run", {"data": {"class": "manyfit.data.Splits", "zebra": {"class": "mine.Data"}}}, "zebra"),
    "limit": ("run", {"train/limit": {"zebra": 3}}, "zebra"),
    "key of five components": ("five", {"zebra/stripes": 3}, "zebra"),
    "section of a typed builder": (
        "five", {"model_builder_class": "mine.Strict", "model_builder": {"zebra": 1}}, "zebra"),
    "batch key of five components": ("five", {"preprocessor_class": "mine.Keyed"}, "zebra"),
    "almost an index": ("five", {"data_loader_class": "mine.AlmostIndex"}, "get_validation_indices"),
    "almost an augmentation": ("five", {"augmentor_class": "mine.AlmostNoise"}, "add_validation_augmentations"),
    "almost weights": ("five", {"preprocessor_class": "mine.AlmostWeights"}, "add_weights_preprocess"),
    "almost callbacks": ("five", {"model_builder_class": "mine.AlmostCallbacks"}, "get_callback"),
    "callbacks of torch": ("five", {"model_builder_class": "mine.Callbacks"}, "get_callbacks"),
    "class weight of five components": ("five", {"model_builder_class": "mine.OddClassWeight"}, "77"),
    "no function": ("five", {"evaluator_class": "mine.NoFunction"}, "zebra"),
    "almost functions": ("five", {"evaluator_class": "mine.AlmostFunctions"}, "get_eval_func"),
    "feature": ("variant", {"train/train_feeder/features_map/zebra": FEATURE}, "zebra"),
    "feature of validation": ("variant", {"train/eval_feeder/features_map/zebra": FEATURE}, "zebra"),
    "id": ("variant", {"train/eval_feeder/id_feature": "zebra"}, "zebra"),
    "searched key": ("study", {"space/model.zebra": [1, 2]}, "zebra"),
    "objective": ("study", {"objective/metric": "val_zebra"}, "zebra"),
    "method": ("study", {"search/method": "zebra"}, "zebra"),
}  # fmt: skip
USED = {
    # what has an effect: the door and the changes
    "weight": ("run", {"data/weight": "used"}),
    "function": ("run", {"evaluate/functions": {"zebra": "mine.zebra"}}),
    "class weight": ("run", {"train/class_weights": [0.25, 1.0]}),
    "weight of five components": ("five", {"data_loader_class": "mine.Weighted"}),
    "class weight of five components": ("five", {"model_builder_class": "mine.ClassWeight"}),
    "augmentation": ("five", {"augmentor_class": "mine.Noise", "do_train_augmentation": True}),
    "function of five components": ("five", {"evaluator_class": "mine.Evaluator"}),
    "batch size of a feeder": ("variant", {"train/train_feeder/batch_size": 20}),
    "space": ("study", {"space/model.hidden": [2, 5]}),
}


def said(place, caplog, door, changes, **options):
    """What the job said: of what was refused the error, else the warnings."""
    try:
        DOORS[door](place, changes, **options)
    except ManyfitError as error:
        assert isinstance(error, UsageError) or error.exit_code == 2, f"not bad input, but {error!r}"
        assert not list(place.rglob("step-*")), "something was trained"
        return str(error)
    return caplog.text


@pytest.mark.parametrize(("door", "key"), SECTIONS, ids=lambda value: value.replace("/", "."))
def test_a_key_that_nothing_reads_is_named(place, caplog, door, key):
    assert "zebra" in said(place, caplog, door, {key: 1})


@pytest.mark.parametrize(("door", "changes", "word"), NAMED.values(), ids=NAMED)
def test_what_has_no_effect_is_refused_or_named(place, caplog, door, changes, word):
    assert word in said(place, caplog, door, changes)


@pytest.mark.parametrize("door", ["run", "five", "variant"])
def test_what_is_no_callback_is_refused(place, caplog, door):
    class Zebra:
        def on_start(self, cohort): ...
        def on_boundry(self, cohort, boundary, rows): ...
        def on_end(self, cohort): ...

    for callback in ("zebra", Zebra(), None):
        text = said(place, caplog, door, {}, callbacks=[callback])
        assert "has no" in text and "on_boundary" in text
        for name in ("runs", "data", "variants"):
            shutil.rmtree(place / name, ignore_errors=True)


@pytest.mark.parametrize(("door", "changes"), USED.values(), ids=USED)
def test_what_has_an_effect_is_used(place, door, changes):
    first = DOORS[door](place, {})
    for name in ("runs", "studies", "data", "variants"):
        shutil.rmtree(place / name, ignore_errors=True)
    assert DOORS[door](place, changes) != first
