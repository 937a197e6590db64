"""Finding runs again: lists with conditions, read-only records, curves and figures."""

import json

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.smoothing import smooth_values
from manyfit.report.charts import Chart, Figure, Series, draw_text
from manyfit.report.conditions import Condition
from manyfit.report.curves import align_curves, draw_history
from manyfit.study.result import Study


@pytest.fixture
def three(project, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root / "cache"))
    for name, rate in (("a", 0.01), ("b", 0.0001), ("c", 0.1)):
        project.config(
            project.changed(train__optimizer={"class": "adamw", "lr": rate}, train__epochs=3), name
        )
        if name != "c":
            manyfit.train(f"runs/{name}", callbacks=[])
    return project


def test_runs_are_found_by_conditions(three, cli):
    runs = manyfit.runs(three.root)
    assert [run.name for run in runs] == ["a", "b", "c"]
    assert [run.name for run in runs.where("train.optimizer.lr<1e-3")] == ["b"]
    assert [run.name for run in runs.where("state=finished", "name~^[ac]")] == ["a"]
    assert [run.name for run in runs.sort("val_loss")] == ["a", "b", "c"]
    assert [run.name for run in runs.sort("val_loss", descending=True)] == ["b", "a", "c"]
    frame = runs.frame("train.optimizer.lr", "val_loss", "test_accuracy")
    assert frame.loc["a", "train.optimizer.lr"] == 0.01 and np.isnan(frame.loc["c", "val_loss"])
    answer = cli(
        "list", "--where", "train.optimizer.lr<1e-3", "--sort", "val_loss", "-c", "model.hidden", "--dates"
    )
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[0][:7] == ["run", "state", "epoch", "model.hidden", "started", "changed", "val_loss"]
    assert [line[0] for line in lines[1:]] == ["b"]
    found = json.loads(cli("list", "--where", "name=a", "--json").out)
    assert found[0]["config"]["train.optimizer.lr"] == 0.01
    for words, text in (
        (["--sort", "val_los"], "did you mean val_loss"),
        (["--where", "lr"], "is not a condition"),
    ):
        answer = cli("list", *words)
        assert answer.code == 2 and text in answer.err


def test_the_cache_notices_changes(three):
    assert manyfit.open("runs/a").facts["epoch"] == 3
    assert (three.root / "cache/manyfit").is_dir()
    assert manyfit.open("runs/a").state == "finished"
    manyfit.train("runs/a", ["train.epochs=4"], callbacks=[])
    assert manyfit.open("runs/a").facts["epoch"] == 4
    (three.root / "runs/a/reports/summary.json").write_text("{}")
    assert manyfit.open("runs/a").state in ("damaged", "unfinished")


def test_a_run_is_read_only_and_has_tables(three):
    run = manyfit.open("runs/a")
    before = {path: path.read_bytes() for path in sorted(three.run.rglob("*")) if path.is_file()}
    assert run.frame()["val_loss"].tolist() == [event.values["val_loss"] for event in run.history]
    rows = run.rows("test")
    assert len(rows) == 64 and rows["accuracy"].mean() == pytest.approx(run.test["accuracy"])
    assert run._repr_html_().startswith("<b>a</b>")
    figure = run.plot("val_loss")
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.save("curves/a.svg")
    assert "<svg" in (three.root / "curves/a.svg").read_text()
    assert {path: path.read_bytes() for path in sorted(three.run.rglob("*")) if path.is_file()} == before
    with pytest.raises(ManyfitError, match="no report of the split"):
        run.rows("other")
    with pytest.raises(ManyfitError, match="neither a run nor a study"):
        manyfit.open(three.src)


def test_history_draws_several_runs(three, cli):
    answer = cli("history", "runs/a", "runs/b", "-m", "val_loss", "--by", "epoch", "--smooth", "0.5")
    assert answer.code == 0 and "val_loss  (a, b)" in answer.out and "⠀" in answer.out
    data = json.loads(cli("history", "runs/a", "runs/b", "--json", "--by", "epoch").out)
    assert data[0]["series"][0]["x"] == [1.0, 2.0, 3.0]
    assert cli("history", "runs/a", "-o", "a.png").code == 0
    assert (three.root / "a.png").stat().st_size > 5000
    for words, text in ((["runs/a", "-m", "val_lss"], "did you mean val_loss"), (["runs/c"], "has not been trained"),
                        (["runs/a", "-o", "a.txt"], "one of .png")):  # fmt: skip
        answer = cli("history", *words)
        assert answer.code == 2 and text in answer.err


def test_a_study_has_tables_and_pictures(lab, cli):
    lab.sweep()
    study = manyfit.open(lab.folder)
    assert isinstance(study, Study)
    assert len(study.frame()) == 12
    assert study.plot()._repr_png_().startswith(b"\x89PNG")
    assert "<table>" in study._repr_html_()
    charts = draw_history([lab.folder], ["val_loss"])
    assert all(series.low is not None for series in charts[0].series)
    assert "finished" in cli("list").out and "val_loss=" in cli("list").out


def test_show_model_schedule_and_checkpoint(three, cli):
    layers = json.loads(cli("show", "runs/a", "--model", "--json").out)
    assert layers[0] == {"layer": "(model)", "class": "MLP", "parameters": 610, "output": "(2, 10)"}
    assert [row["output"] for row in layers if row["class"] == "Linear"] == ["(2, 8)", "(2, 10)"]
    found = json.loads(cli("show", "runs/c", "--schedule", "--json").out)
    assert found["lr"] == [0.1] * 12
    three.config(three.changed(train__scheduler="cosine", train__epochs=5), "d")
    rates = json.loads(cli("show", "runs/d", "--schedule", "--json").out)["lr"]
    assert rates[0] == 0.01 and rates[-1] < 1e-3 and len(rates) == 20
    assert "⠀" in cli("show", "runs/d", "--schedule").out
    assert not (three.root / "runs/d/config.resolved.yaml").exists()
    (folder,) = sorted((three.root / "runs/a/checkpoints").iterdir())[-1:]
    rows = json.loads(cli("show", folder, "--json").out)
    weights = [row for row in rows if row["shape"] == "[8, 64]"]
    assert weights and all(row["type"] == "float32" and row["norm"] >= 0 for row in weights)
    (folder / "manifest.json").write_text("{")
    assert cli("show", folder).code == 2


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [("a<1e-3", {"a": 1e-4}, True), ("a<1e-3", {"a": "text"}, False), ("a<1e-3", {}, False), ("a>=2", {"a": 2}, True),
     ("a!=x", {"a": "y"}, True), ("a=true", {"a": True}, True), ("a ~ ^x", {"a": "xy"}, True), ("a=0.1", {"a": 0.1}, True),
     ("a<b", {"a": "aa"}, True), ("a>0", {"a": True}, False)],
)  # fmt: skip
def test_conditions(text, values, expected):
    assert Condition.parse(text).holds(values) is expected


@pytest.mark.parametrize("text", ["", "a", "a<", "a ~ (", "<3"])
def test_conditions_that_are_none(text):
    with pytest.raises(UsageError):
        Condition.parse(text)


def test_curves():
    x, y = align_curves([([0, 2, 4], [0.0, 2.0, 4.0]), ([1, 3], [1.0, 1.0])])
    assert x == [1.0, 2.0, 3.0] and y.tolist() == [[1, 2, 3], [1, 1, 1]]
    assert smooth_values([2.0, float("nan"), 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    with pytest.raises(UsageError, match="from 0 to below 1"):
        draw_history([], smooth=1.0)


def test_charts_of_odd_values():
    for series in ([], [1.0], [float("nan")], [1.0, 1.0], [1e-9, 1e9]):
        chart = Chart("t", "x", "y", [Series("s", list(map(float, range(len(series)))), series)])
        assert draw_text(chart)
        Figure([chart])._render("png")
    assert "nothing to draw" in draw_text(Chart("t", "x", "y", []))


def test_dates_are_compared_as_text_and_numbers_with_numbers():
    assert Condition.parse("started>2020").holds({"started": "2026-11-18T07:00:00"})
    assert not Condition.parse("started<2026-11").holds({"started": "2026-11-18"})
    with pytest.raises(UsageError, match="val_loss is a number"):
        Condition.parse("val_loss<abc").holds({"val_loss": 1.0})


def test_time_is_time_of_training():
    from manyfit.report.curves import active_seconds
    from manyfit.store.events import Event

    events = [Event(i, i, t, {}) for i, t in enumerate([0.0, 1.0, 2.0, 90_000.0, 90_001.0])]
    assert active_seconds(events) == [0.0, 1.0, 2.0, 3.0, 4.0]
