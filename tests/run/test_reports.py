"""Reports: rows that are undefined or fail, arrays that are too large, and functions that are called once."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import manyfit
from manyfit.config import load_config
from manyfit.run.build.evaluator import Evaluator
from manyfit.run.evaluation import summary_statistics

REPORTED = '''
from typing import NamedTuple

import numpy as np
import torch
from torch import nn, Tensor
from points import Blobs
from manyfit.data import ArraySource

CALLS = []


class Pictures:
    """Pixels with a class each, many of them."""

    batch_size = 4

    def __init__(self, side: int = 20) -> None:
        self.side = side

    def source(self, split):
        state = np.random.RandomState(len(split))
        inputs = state.normal(size=(10, 1, self.side, self.side)).astype("float32")
        return ArraySource(inputs, (inputs[:, 0] > 0).astype("int64"))


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 1)

    def forward(self, images):
        return self.layer(images)


class Copies(Pictures):
    def source(self, split):
        found = super().source(split)
        return ArraySource(found.inputs, found.inputs)


class Auto(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, images):
        return self.layer(images)


class TwoHeads(nn.Module):
    """Knows its own loss, and says more than one thing of a row, and one thing of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size, self.large = nn.Linear(64, 10), nn.Linear(64, 1), nn.Linear(64, 300)

    def forward(self, images, target=None):
        outputs = {"kind": self.kind(images), "size": self.size(images), "large/1": self.large(images)}
        outputs |= {"batch": images.mean(), "fixed": torch.arange(15.0), "sparse": images.to_sparse()}
        outputs["ragged"] = images[:, : 1 + len(images) % 3]
        if target is None:
            return outputs, None
        losses = nn.functional.cross_entropy(outputs["kind"], target, reduction="none")
        return outputs, losses + outputs["size"].squeeze(1) ** 2 + outputs["large/1"].mean(1) ** 2


class Pair(NamedTuple):
    """Several outputs in the order of a class."""

    temperature: Tensor
    kind: Tensor
    further: list[Tensor]


class OddHeads(nn.Module):
    """What it says first is of no row."""

    def __init__(self, form: str = "named") -> None:
        super().__init__()
        self.form = form
        self.kind, self.size, self.temperature = nn.Linear(64, 10), nn.Linear(64, 1), nn.Parameter(torch.ones(1))

    def forward(self, images, target=None):
        kind, size = self.kind(images) * self.temperature, self.size(images)
        named = Pair(self.temperature.exp(), kind, [size])
        outputs = {"named": named, "tuple": tuple(named), "list": list(named), "dict": named._asdict()}[self.form]
        if target is None:
            return outputs, None
        return outputs, nn.functional.cross_entropy(kind, target, reduction="none") + size.squeeze(1) ** 2


def sum_of_both(output, target: Tensor) -> Tensor:
    return output["kind"].sum() + 100 * output["size"][0] + 0 * target


def undefined(output: Tensor, target: Tensor) -> Tensor:
    return torch.where(target == 3, torch.nan, output.max())


def fails(output: Tensor, target: Tensor) -> float:
    if int(target) == 3:
        raise ValueError("three is not allowed")
    return float(output.max())


def always(output: Tensor, target: Tensor) -> float:
    raise ValueError("never")


def counted(output: Tensor, target: Tensor) -> float:
    CALLS.append(int(target))
    return float(output.max())
'''


@pytest.fixture
def reported(project):
    project.write("src/reported.py", REPORTED)
    return project


def run(project, folder="runs/a", **changes):
    tree = project.changed(**{key: value for key, value in changes.items() if key != "evaluate"})
    tree |= {"evaluate": changes.get("evaluate", {})}
    project.config(tree, Path(folder).name)
    return manyfit.train(folder, callbacks=[])


def rows(split="test", folder="runs/a"):
    with Path(f"{folder}/reports/{split}.csv").open() as file:
        return list(csv.DictReader(file))


def test_rows_that_are_undefined_are_counted_and_left_out_of_the_mean(reported, caplog):
    result = run(reported, evaluate={"functions": {"u": "reported.undefined"}})
    found = rows()
    known = [float(row["u"]) for row in found if row["u"] != "nan"]
    undefined = sum(row["target"] == "3" for row in found)
    assert 0 < undefined == len(found) - len(known)
    assert result.test["u"] == pytest.approx(np.mean(known))
    assert result.summary["splits"]["test"]["undefined"] == {"u": undefined}
    assert result.summary["splits"]["test"]["columns"]["u"]["count"] == len(known)
    assert f"'u' is undefined in {undefined} of 64 rows: its mean is over the others" in caplog.text


def test_a_row_on_which_a_function_fails_is_named_and_the_rest_is_reported(reported, cli):
    tree = reported.changed() | {"evaluate": {"functions": {"f": "reported.fails"}}}
    reported.config(tree)
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "a function has failed on rows" in answer.err
    for split in ("validation", "test"):
        found = rows(split)
        assert len(found) == 64
        for row in found:
            assert (row["f"] == "nan") == (row["target"] == "3")
            assert ("f: ValueError: three is not allowed at" in row["failed"]) == (row["target"] == "3")
            assert "reported.py" in row["failed"] or not row["failed"]
    assert "already finished" in cli("train", "runs/a").out
    answer = cli("evaluate", "runs/a")
    assert answer.code == 1
    failed = json.loads(cli("evaluate", "runs/a", "--json").out)["summary"]["failed"]
    assert set(failed) == {row["id"] for row in rows() if row["target"] == "3"}


def test_a_function_that_always_fails_costs_no_training(reported, cli):
    reported.config(reported.changed() | {"evaluate": {"functions": {"f": "reported.always"}}})
    answer = cli("train", "runs/a")
    assert answer.code == 1
    assert "ValueError: never" in answer.err
    assert "reported.py" in answer.err
    assert not list(Path("runs/a").glob("checkpoints/*"))


def test_a_function_of_one_row_is_called_once_for_each(reported):
    run(reported, evaluate={"functions": {"c": "reported.counted"}})
    import reported as code

    code.CALLS.clear()
    report = manyfit.evaluate("runs/a")
    assert sorted(code.CALLS) == sorted(report.columns["target"].tolist())
    code.CALLS.clear()


@given(
    size=st.integers(1, 40),
    bad=st.sets(st.integers(0, 39), max_size=6),
    kind=st.sampled_from(["branches", "indexes"]),
)
def test_whatever_fails_the_others_have_their_numbers(size, bad, kind):
    output = np.arange(float(size))[:, None] + 1
    target = np.array([-1 if i in bad else i for i in range(size)])

    def function(output, target):
        if kind == "branches" and bool(target < 0):
            raise ValueError("bad")
        return output[0] * [1.0, 2.0][0 if int(target) >= 0 else 7]

    evaluator = Evaluator({"f": function})
    wrong = {i for i in bad if i < size}
    if len(wrong) in (size, min(8, size)) and wrong >= set(range(min(8, size))):
        return  # nothing works: an error
    found = evaluator(output, target)["f"]
    assert set(np.flatnonzero(np.isnan(found)).tolist()) == wrong
    assert {i for _, i, _ in evaluator.failures} == wrong
    good = [i for i in range(size) if i not in wrong]
    assert found[good].tolist() == [i + 1.0 for i in good]


@pytest.mark.parametrize("outputs", ["full", "summary", "none"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_large_arrays_are_kept_described_or_left_out(reported, caplog, outputs, kind):
    data, model = (
        ("reported.Pictures", "reported.Pixels")
        if kind == "classes"
        else ("reported.Copies", "reported.Auto")
    )
    changes = {
        "data": {"class": data}, "model": {"class": model},
        "train__loss": "cross_entropy" if kind == "classes" else "mse",
        "train__metrics": ["accuracy"] if kind == "classes" else ["mse"],
    }  # fmt: skip
    result = run(reported, evaluate={"outputs": outputs}, **changes)
    assert caplog.text.count("too large for a report") == 2  # once for each split
    found = rows()
    assert len(found) == 10
    files = sorted(path.name for path in Path("runs/a/reports").glob("test.*.npy"))
    assert files == (["test.prediction.npy", "test.target.npy"] if outputs == "full" else [])
    if outputs == "none":
        assert "prediction" not in found[0]
    else:
        assert "20, 20]" in found[0]["prediction"]
        assert len(found[0]["prediction"]) < 100
    if outputs == "full":
        small = run(reported, "runs/b", evaluate={"outputs": "full"}, **changes)
        assert small.step == result.step
        values = np.load("runs/a/reports/test.prediction.npy")
        assert len(values) == 10
        assert values.mean() == pytest.approx(
            float(np.mean([float(r["prediction"].rpartition(" ")[2]) for r in found])), rel=1e-4
        )
    if kind == "classes":
        summary = result.summary["splits"]["test"]
        assert summary["pixel_accuracy"] == pytest.approx(result.test["accuracy"])
    manyfit.evaluate("runs/a", overrides=["evaluate.outputs=none"])
    assert Path("runs/a/reports/test.csv").exists()


def test_every_output_is_reported_and_seen_by_functions(reported, caplog):
    result = run(
        reported, model={"class": "reported.TwoHeads"}, train__loss=None, data__batch_size=15,
        evaluate={"functions": {"both": "reported.sum_of_both"}, "outputs": "full"},
    )  # fmt: skip
    assert caplog.text.count("reports omit the outputs 'batch', 'fixed', 'sparse'") == 1
    assert (
        "metrics (accuracy) measure the output 'kind'; only per-row functions receive 'size'" in caplog.text
    )
    model = manyfit.load_model("runs/a").eval()
    source = load_config("runs/a").run.data.build().source("test")
    with torch.no_grad():
        outputs, _ = model(torch.from_numpy(source.inputs))
    kind, size = outputs["kind"].numpy(), outputs["size"].numpy()[:, 0]
    found, predicted = rows(), manyfit.predict("runs/a")
    assert [row["id"] for row in found] == [f"test-{i}" for i in range(64)]
    assert np.allclose([float(row["prediction_size"]) for row in found], size, atol=1e-5)
    assert np.allclose([float(row["both"]) for row in found], kind.sum(1) + 100 * size, atol=1e-3)
    assert [int(row["prediction"]) for row in found] == kind.argmax(1).tolist()
    assert np.allclose(predicted["prediction_size"][:, 0], size, atol=1e-5)
    assert "prediction_size" not in result.summary["splits"]["test"]["columns"]
    assert [np.shape(json.loads(found[i]["prediction_ragged"])) for i in (0, 63)] == [(), (2,)]
    large = Path("runs/a/reports/test.prediction_large_1.npy")
    assert np.allclose(np.load(large), outputs["large/1"].numpy(), atol=1e-5)
    manyfit.evaluate("runs/a")
    assert large.exists()


@pytest.mark.parametrize(
    ("form", "name"), [("named", "2_0"), ("tuple", "2_0"), ("list", "2_0"), ("dict", "further_0")]
)
def test_what_is_of_no_row_is_not_measured(reported, caplog, form, name):
    """Batches of 9 leave one row in the last, where an output of length 1 looks as if it were that of a row."""
    run(reported, model={"class": "reported.OddHeads", "form": form}, train__loss=None, data__batch_size=9)
    model = manyfit.load_model("runs/a").eval()
    source = load_config("runs/a").run.data.build().source("test")
    with torch.no_grad():
        outputs, _ = model(torch.from_numpy(source.inputs))
    _, kind, (size,) = outputs.values() if form == "dict" else outputs
    found = rows()
    assert [int(row["prediction"]) for row in found] == kind.argmax(1).tolist()
    right = kind.argmax(1).numpy() == source.target
    assert [float(row["accuracy"]) for row in found] == right.astype(float).tolist()
    assert np.allclose([float(row[f"prediction_{name}"]) for row in found], size[:, 0], atol=1e-5)
    assert "prediction_temperature" not in found[0]
    assert "prediction_0" not in found[0]
    assert caplog.text.count("reports omit the outputs") == 1


def test_small_arrays_stay_in_the_report(reported, caplog):
    changes = {"data": {"class": "reported.Pictures", "side": 4}, "model": {"class": "reported.Pixels"}}
    run(reported, **changes)
    assert "too large" not in caplog.text
    assert np.array(json.loads(rows()[0]["prediction"])).shape == (4, 4)


@given(
    classes=st.integers(2, 6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    places=st.booleans(),
    seed=st.integers(0, 99),
)
def test_metrics_of_parts_are_those_of_the_whole(classes, sizes, places, seed):
    state = np.random.RandomState(seed)
    shape = (3,) if places else ()
    parts = [(state.randint(-1, classes, (n, *shape)), state.randint(0, classes, (n, *shape))) for n in sizes]
    whole = summary_statistics.usual(*(np.concatenate(each) for each in zip(*parts, strict=True)), classes)
    found = summary_statistics.Confusion()
    for target, prediction in parts:
        found.add(target, prediction, classes)
    assert found.metrics() == whole


def test_tensorflow_says_nothing_about_functions_of_many_learners(caplog):
    keras, _ = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    from manyfit.data import ArraySource, once
    from manyfit.learn.keras.learner import KerasLearner

    def measured():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        rows = ArraySource(np.zeros((7, 3), "float32"), np.zeros((7, 1), "float32"))
        learner = KerasLearner(model, 2, lambda: next(once(rows, 4)))
        return sum(len(outputs.index) for outputs in learner.evaluate(once(rows, 4)))

    caplog.set_level(logging.WARNING, "tensorflow")
    logging.getLogger("tensorflow").propagate = True
    assert [measured() for _ in range(8)] == [7] * 8
    assert "retracing" not in caplog.text


def test_tensorflow_says_nothing_about_functions_that_are_tried(caplog):
    tensorflow = pytest.importorskip("tensorflow")
    assert tensorflow is not None

    def odd(y_true, y_pred):
        return float(y_pred.sum()) if y_true > 0 else 0.0

    evaluator = Evaluator({}, {"odd": odd})
    with caplog.at_level(logging.WARNING, "tensorflow"):
        for _ in range(8):
            evaluator(np.random.RandomState(0).normal(size=(20, 3)), np.arange(20) % 2)
    assert not [record for record in caplog.records if record.name == "tensorflow"]
