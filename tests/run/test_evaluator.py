"""Evaluation functions of one row."""

import csv

import pytest

import manyfit


def test_functions_of_one_row(forms, caplog):
    parquet = pytest.importorskip("pyarrow.parquet")
    tree = forms.changed(train__metrics=["accuracy"])
    tree["evaluate"] = {
        "functions": {"wrong": "forms.worst_class", "right": "forms.by_hand"},
        "parquet": True,
        "worst": 3,
    }
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    with (result.folder / "reports/validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (
        [1 - float(r["wrong"]) for r in rows]
        == [float(r["right"]) for r in rows]
        == [float(r["accuracy"]) for r in rows]
    )
    assert "'right' is called row by row" in caplog.text
    assert "'wrong' is called row by row" not in caplog.text
    table = parquet.read_table(result.folder / "reports/test.parquet")
    assert table.column_names == [
        "id",
        "target",
        "prediction",
        "confidence",
        "loss",
        "accuracy",
        "wrong",
        "right",
    ]
    assert table.num_rows == 64
    worst = result.summary["splits"]["test"]["worst"]
    assert len(worst) == 3
    assert worst[0]["loss"] >= worst[1]["loss"] >= worst[2]["loss"]
    assert result.summary["splits"]["test"]["columns"]["loss"]["count"] == 64
