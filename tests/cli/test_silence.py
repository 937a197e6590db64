"""Mistakes are answered with the place to look at, and answers show what was said."""

from __future__ import annotations

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import UsageError
from manyfit.run.build.builder import build


def test_a_study_is_not_a_run(project, cli):
    project.write("studies/s/study.yaml", "base: ../../runs/a/config.yaml\nspace: {model.hidden: [4, 8]}\n")
    for place in ("studies/s", "studies/s/study.yaml"):
        found = cli("train", place)
        assert found.code == 2
        assert found.err.strip().endswith("studies/s is a study, not a run; use: manyfit sweep studies/s")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": {"class": "adam"}}, "did you mean: train.optimizer"),
        ({"loss": {"class": "torch.nn.MSELoss"}}, "did you mean: train.loss"),
        ({"train__lr": 0.1}, "did you mean: train.optimizer.lr"),
        ({"train__learning_rate": 0.1}, "did you mean: train.optimizer.lr"),
        ({"batch_size": 3}, "did you mean: data.batch_size"),
        ({"train__batch_size": 3}, "did you mean: data.batch_size"),
        ({"train__stop": {"patience": 3}}, "expected: an interval such as 3ep, 0.5ep, 500ba or 90s"),
        ({"train__every": {"validate": 2}}, "expected: an interval such as 3ep, 0.5ep, 500ba or 90s"),
    ],
)
def test_a_key_at_the_wrong_place_is_named_at_the_right_one(project, cli, changes, words):
    project.config(project.changed(**changes))
    found = cli("train", "runs/a")
    assert found.code == 2
    assert words in found.err


BAD = """
import pathlib
class Lost:
    batch_size = 4
    def __init__(self, early: bool = True) -> None:
        if early:
            pathlib.Path("nowhere.npz").read_bytes()
    def source(self, split):
        pathlib.Path("nowhere.npz").read_bytes()
class Bug(Lost):
    def source(self, split):
        return {}["x"]
"""


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"data": {"class": "bad.Lost"}}, 2, "nowhere.npz"),
        ({"data": {"class": "bad.Lost", "early": False}}, 2, "nowhere.npz"),
        ({"data": {"class": "bad.Bug", "early": False}}, 1, "KeyError"),
        ({"train__optimizer": {"class": "adam", "lr": -1.0}}, 2, "Invalid learning rate: -1.0"),
        ({"model": {"class": "models.MLP", "dropout": 1.5}}, 2, "dropout probability"),
    ],
)
def test_bad_input_ends_with_2_and_a_bug_with_1(project, cli, changes, code, words):
    project.write("src/bad.py", BAD)
    project.config(project.changed(**changes))
    found = cli("train", "runs/a")
    assert found.code == code
    assert words in found.err
    assert "Traceback" not in found.err


def test_a_relative_import_gets_a_hint(project, cli):
    project.write("src/inner.py", "from .models import MLP\n")
    project.config(project.changed(model={"class": "inner.MLP"}))
    assert "modules in src/ are not a package; import them by name" in cli("train", "runs/a").err


def test_one_is_not_several(project, cli):
    found = cli("train", "runs/a", "train.epochs=1")
    assert "training a: 1 epoch of 4 steps" in found.err
    assert "trained  1 epoch, 4 steps" in found.out


def test_patience_is_told_in_the_unit_in_which_it_was_given(project, cli):
    project.config(project.changed(train__stop={"patience": "2ep", "min_delta": 9.0}, train__epochs=9))
    assert "for 2 epochs, since epoch" in cli("train", "runs/a").out
    project.config(project.changed(train__stop={"patience": "8ba", "min_delta": 9.0}, train__epochs=9), "b")
    assert "for 8 steps, since step" in cli("train", "runs/b").out


def test_what_is_shown_is_what_was_given(project, cli):
    result = manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
    assert len(repr(result)) < 600
    short, long = cli("show", "runs/a").out, cli("show", "runs/a", "--all").out
    assert "model.hidden" in short
    assert "train.accumulate" not in short
    assert "defaults not shown: --all" in short
    assert "train.accumulate" in long
    assert len(short.splitlines()) < 35


FORMS = """
import numpy as np
import torch
from torch import nn
from manyfit.data import ArraySource


class Named:
    batch_size = 8

    def __init__(self, kind: str = "dict") -> None:
        self.kind = kind

    def source(self, split):
        state = np.random.RandomState(len(split))
        size, age = state.normal(size=40).astype("float32"), state.randint(0, 9, 40)
        target = (size > 0).astype("int64")
        if self.kind == "dict":
            return ArraySource({"size": size, "age": age}, target)
        if self.kind == "tuple":
            return ArraySource((size, age), target)
        if self.kind == "image":
            return ArraySource(np.repeat(size, 4).reshape(40, 1, 2, 2), target)
        words = np.array(["good day " * (1 + i % 3) if t else "bad night" for i, t in enumerate(target)])
        return ArraySource(np.array([f"{w} {split} {i}" for i, w in enumerate(words)]), target)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, size, age):
        assert age.dtype == torch.int64
        return self.layer(torch.stack([size, age.float()], 1))


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 2)

    def forward(self, images):
        return self.layer(images).flatten(1)
"""

MODELS = {"dict": "forms_.Net", "tuple": "forms_.Net", "image": "forms_.Image"}


@pytest.fixture
def formed(project):
    project.write("src/forms_.py", FORMS)
    return project


def csv_of(rows):
    return "\n".join(",".join(map(str, row)) for row in rows) + "\n"


@pytest.mark.parametrize("kind", ["dict", "tuple", "image"])
def test_new_data_for_inputs_of_any_form(formed, cli, kind):
    tree = formed.changed(data={"class": "forms_.Named", "kind": kind}, model={"class": MODELS[kind]})
    formed.config(tree)
    manyfit.train("runs/a", callbacks=[])
    known = dict(zip(*list(manyfit.predict("runs/a").values())[:2], strict=True))
    source = build(manyfit.load_config(tree)).split("test")
    columns = source.inputs if kind == "dict" else dict(enumerate(source.inputs)) if kind == "tuple" else {}
    names = {0: "inputs_0", 1: "inputs_1"}
    arrays = {names.get(n, n): c for n, c in columns.items()} or {"inputs": source.inputs}
    np.savez(formed.root / "new.npz", ids=np.arange(40), **arrays)
    found = manyfit.predict("runs/a", data="new.npz")
    assert dict(zip(found["id"], found["prediction"].tolist(), strict=True)) == known
    if kind == "dict":
        rows = [
            ["id", "age", "size", "note"],
            *([i, int(source.inputs["age"][i]), float(source.inputs["size"][i]), "x"] for i in range(40)),
        ]
        (formed.root / "new.csv").write_text(csv_of(rows))
        answer = cli("predict", "runs/a", "--data", "new.csv")
        assert answer.code == 0
        assert "new.csv: not used by any input of the model: note" in answer.err
        assert [line.split(",")[1] for line in answer.out.splitlines()[1:]] == [
            str(v) for v in known.values()
        ]
        (formed.root / "new.csv").write_text(csv_of([["ages", "size"], [1, 0.5]]))
        answer = cli("predict", "runs/a", "--data", "new.csv")
        assert answer.code == 2
        assert "new.csv has no 'age', which the model needs; did you mean ages?" in answer.err
    if kind == "image":
        flat = source.inputs.reshape(40, -1)
        (formed.root / "new.csv").write_text(csv_of([["a", "b", "c", "d"], *flat.tolist()]))
        assert manyfit.predict("runs/a", data="new.csv")["prediction"].tolist() == list(known.values())
        (formed.root / "new.csv").write_text(csv_of([["a", "b"], [1, 2]]))
        with pytest.raises(UsageError, match="2 numeric columns, but the model expects 4 per row"):
            manyfit.predict("runs/a", data="new.csv")


@pytest.mark.soak
def test_new_text_for_a_model_that_reads_text(formed, cli):
    pytest.importorskip("sklearn")
    formed.write(
        "src/texts.py",
        """
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        class Texts(ClassifierMixin, BaseEstimator):
            def __init__(self, c: float = 1.0):
                self.c = c

            def fit(self, x, y):
                self.inner_ = make_pipeline(CountVectorizer(), LogisticRegression(C=self.c)).fit(x, y)
                self.classes_ = self.inner_.classes_
                return self

            def predict(self, x):
                return self.inner_.predict(x)

            def predict_proba(self, x):
                return self.inner_.predict_proba(x)
        """,
    )
    tree = formed.changed(data={"class": "forms_.Named", "kind": "text"}, model={"class": "texts.Texts"})
    tree["train"] = {"epochs": 1, "loss": None, "optimizer": None}
    formed.config(tree)
    manyfit.train("runs/a", callbacks=[])
    (formed.root / "new.csv").write_text('id,text\na,"a good, good day"\nb,bad night\n')
    answer = cli("predict", "runs/a", "--data", "new.csv")
    assert answer.code == 0, answer.err
    assert [line.split(",")[:2] for line in answer.out.splitlines()[1:]] == [["a", "1"], ["b", "0"]]
    np.save(formed.root / "new.npy", np.array(["bad night", "good day"]))
    assert manyfit.predict("runs/a", data="new.npy")["prediction"].tolist() == [0, 1]
