"""What can be done with a run later: evaluate, predict, export, compare, check."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch

import manyfit
from manyfit.report.compare import compare
from manyfit.run.reuse import evaluate, export
from manyfit.store.folder import RunFolder


@pytest.fixture
def finished(project):
    manyfit.train("runs/a", ["train.epochs=3", "train.every.checkpoint=1ep"], callbacks=[])
    return project


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_evaluating_again_gives_the_same(finished, cli):
    file = finished.run / "reports/test.csv"
    before, summary = file.read_bytes(), (finished.run / "reports/summary.json").read_text()
    file.unlink()
    answer = cli("evaluate", "runs/a", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["rows"] == 64
    assert file.read_bytes() == before
    assert (finished.run / "reports/summary.json").read_text() == summary
    assert RunFolder(finished.run).state() == "finished"


def test_other_checkpoints_and_data_get_reports_of_their_own(finished, cli):
    before = (finished.run / "reports/test.csv").read_bytes()
    assert cli("evaluate", "runs/a", "--checkpoint", 8, "--split", "validation").code == 0
    assert len(table(finished.run / "reports/validation-step-8.csv")) == 64
    assert cli("evaluate", "runs/a", "data.rows=20").code == 0
    assert len(table(finished.run / "reports/test-changed.csv")) == 20
    assert (finished.run / "reports/test.csv").read_bytes() == before
    report = evaluate(finished.run, "train")
    assert len(report) == 64


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["evaluate", "runs/b"], "the run folder runs/b does not exist"),
        (["evaluate", "runs/a", "--checkpoint", "7"], "no checkpoint '7'"),
        (["evaluate", "runs/a", "--split", "tset"], "no split 'tset'"),
        (["predict", "runs/a", "--data", "none.npz"], "no file"),
        (["predict", "runs/a", "--data", "runs/a/config.yaml"], "is not a .npy, .npz or .csv file"),
        (["export", "runs/a", "--format", "pickle"], "pickle"),
        (["compare", "runs/a", "runs/b"], "the run folder runs/b does not exist"),
        (["compare", "runs/a", "runs/a", "--metric", "accurracy"], "did you mean 'accuracy'"),
        (["check", "runs/b"], "no such config"),
    ],
)
def test_bad_input_is_one_message(finished, cli, words, says):
    answer = cli(*words)
    assert answer.code == 2
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert not (finished.root / "runs/b").exists()


def test_predictions_are_keyed_by_id(finished, cli):
    answer = cli("predict", "runs/a")
    rows = list(csv.DictReader(answer.out.splitlines()))
    expected = table(finished.run / "reports/test.csv")
    assert [(r["id"], r["prediction"]) for r in rows] == [(r["id"], r["prediction"]) for r in expected]
    assert [float(r["confidence"]) for r in rows] == pytest.approx([float(r["confidence"]) for r in expected])


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_new_data_is_predicted(finished, cli, suffix):
    inputs = np.random.RandomState(0).normal(size=(5, 64)).astype(np.float32)
    file = finished.root / f"new{suffix}"
    ids = [f"row-{i}" for i in range(5)]
    if suffix == ".npy":
        np.save(file, inputs)
        ids = [str(i) for i in range(5)]
    elif suffix == ".npz":
        np.savez(file, inputs=inputs, ids=np.array(ids))
    else:
        lines = [",".join(["id", *(f"x{i}" for i in range(64))])]
        lines += [
            ",".join([id_, *(repr(float(v)) for v in row)]) for id_, row in zip(ids, inputs, strict=True)
        ]
        file.write_text("\n".join(lines) + "\n")
    assert cli("predict", "runs/a", "--data", file, "-o", "out.csv").code == 0
    rows = table(finished.root / "out.csv")
    assert [row["id"] for row in rows] == ids
    with torch.no_grad():
        output = manyfit.load_model("runs/a")(torch.from_numpy(inputs))
    assert [int(row["prediction"]) for row in rows] == output.argmax(1).tolist()


def test_a_file_of_pickles_is_refused(finished, cli):
    np.save("bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    answer = cli("predict", "runs/a", "--data", "bad.npy")
    assert answer.code == 2
    assert "cannot be read as data" in answer.err


def test_every_form_of_export_says_the_same(finished, cli):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    inputs = torch.randn(3, 64)
    expected = manyfit.load_model("runs/a")(inputs).detach()
    assert len(export(finished.run, ["torch", "onnx", "safetensors"])) == 3
    exported = finished.run / "exported"
    assert {path.name for path in exported.iterdir()} == {
        "model.json",
        "model.safetensors",
        "model.pt2",
        "model.onnx",
    }
    assert torch.equal(manyfit.load_model(exported)(inputs), expected)
    program = torch.export.load(exported / "model.pt2").module()
    assert torch.allclose(program(inputs), expected, atol=1e-6), "also for another number of rows"
    session = onnxruntime.InferenceSession(str(exported / "model.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0]
    assert np.allclose(found, expected.numpy(), atol=1e-4)


def test_a_checkpoint_rebuilds_its_model_alone(finished, monkeypatch):
    """Neither the config nor the run folder is needed, only the code that the model is made of."""
    place = finished.root / "elsewhere"
    shutil.copytree(finished.run / "checkpoints" / "step-000000012", place / "ckpt")
    shutil.copytree(finished.run / "exported", place / "exported")
    shutil.copytree(finished.src, place / "src")
    shutil.rmtree(finished.run)
    inputs = torch.randn(2, 64)
    left, right = (manyfit.load_model(place / name)(inputs) for name in ("ckpt", "exported"))
    assert left.shape == right.shape == (2, 10)


def test_an_export_that_does_not_agree_is_not_kept(finished):
    finished.write(
        "src/odd.py",
        """
        import torch
        from models import MLP

        class Odd(MLP):
            made = 0

            def __init__(self, hidden: int = 8) -> None:
                super().__init__(hidden)
                Odd.made += 1
                self.shift = Odd.made

            def forward(self, images):
                return super().forward(images) + self.shift
        """,
    )
    with pytest.raises(manyfit.ManyfitError, match="differ from those of the original"):
        manyfit.train(finished.changed(model={"class": "odd.Odd"}), folder="runs/odd", callbacks=[])
    assert not (finished.root / "runs/odd/exported").exists()


def test_two_runs_are_compared_on_the_same_rows(finished, cli):
    manyfit.train(finished.changed(train__epochs=6), folder="runs/b", callbacks=[])
    found = compare(finished.run, finished.root / "runs/b")
    left, right = (table(finished.root / f"runs/{name}/reports/test.csv") for name in "ab")
    differences = [float(b["loss"]) - float(a["loss"]) for a, b in zip(left, right, strict=True)]
    assert found.rows == 64
    assert found.difference == pytest.approx(np.mean(differences))
    assert found.interval[0] < found.difference < found.interval[1] < 0
    assert found.verdict == "the second is lower on these rows"
    sizes = [abs(change.difference) for change in found.changes]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(max(map(abs, differences)))
    answer = cli("compare", "runs/a", "runs/b", "--json")
    assert json.loads(answer.out)["rows"] == 64
    assert "largest changes" in cli("compare", "runs/a", "runs/b").out
    same = compare(finished.run, finished.run)
    assert same.verdict == "no significant difference on these rows"
    assert same.changes == []


def test_rows_that_only_one_run_has_are_left_out(finished, cli):
    file = finished.run / "reports/test.csv"
    shutil.copytree(finished.run, finished.root / "runs/c")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *lines[5:]]) + "\n")
    answer = cli("compare", "runs/a", "runs/c")
    assert "0 rows only in the first, 4 only in the second" in answer.out


def test_check_finds_what_would_go_wrong(finished, cli):
    answer = cli("check", "runs/a")
    assert answer.code == 0
    assert answer.out.count("ok ") == 7
    assert "loss 2." in answer.out or "loss" in answer.out
    finished.write(
        "src/broken.py",
        """
        from torch import Tensor
        from models import MLP

        class Deaf(MLP):
            def forward(self, images):
                return super().forward(images).detach() + 0 * sum(p.sum() for p in self.parameters())

        def fails(output: Tensor, target: Tensor) -> Tensor:
            raise KeyError("nope")

        def hinge(output: Tensor, target: Tensor) -> Tensor:
            wanted = output.gather(1, target[:, None])
            return (output - wanted + 1e-3).clamp(min=0).mean() - 1e-4
        """,
    )
    finished.config(
        finished.changed(train__loss="broken.hinge", train__optimizer={"class": "adam", "lr": 0.05}),
        run="satisfied",
    )
    answer = cli("check", "runs/satisfied")  # in the end there is nothing to learn, and no gradient
    assert answer.code == 0, answer.out
    finished.config(finished.changed(model={"class": "broken.Deaf", "dropout": 0.5}), run="deaf")
    for seed in range(3):  # by luck, one of these losses falls
        answer = cli("check", "runs/deaf", f"seed={seed}")
        assert answer.code == 1
        assert "WRONG  one batch fits: the loss does not fall: no gradient reaches a weight" in answer.out
    finished.config(finished.changed(train__metrics=["broken.fails"]), run="fails")
    answer = cli("check", "runs/fails", "--json")
    assert answer.code == 1
    assert [f["name"] for f in json.loads(answer.out) if not f["ok"]] == ["evaluation"]
    assert not (finished.root / "runs/deaf/run.log").exists()


@pytest.mark.soak
def test_check_resume_proves_it(finished, cli):
    answer = cli("check", "--resume", "runs/a")
    assert answer.code == 0
    assert answer.out.count("the same weights, optimizer, schedule") >= 6


@pytest.mark.soak
def test_check_resume_finds_a_model_that_cannot(finished, cli):
    finished.write(
        "src/clock.py",
        """
        import time
        from models import MLP

        class Clock(MLP):
            def forward(self, images):
                logits = super().forward(images)
                # In training alone: the check of the export, which comes first, would find it too.
                return logits * (1 + 1e-3 * (time.time() % 1)) if self.training else logits
        """,
    )
    finished.config(finished.changed(model={"class": "clock.Clock"}), run="clock")
    answer = cli("check", "--resume", "runs/clock")
    assert answer.code == 1
    assert "WRONG" in answer.out
    assert "differs" in answer.out
