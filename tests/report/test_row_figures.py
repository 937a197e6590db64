"""Figures of row reports."""

import numpy as np
import pytest

import manyfit
from manyfit.report.row_figures import choose_panels, write_row_figure

pytest.importorskip("matplotlib")


def test_a_run_draws_what_its_outputs_are(project):
    tree = {**project.changed(), "evaluate": {"figures": True}}
    manyfit.train(tree, folder="runs/b", callbacks=[])
    for split in ("test", "validation"):
        assert (project.root / f"runs/b/reports/{split}.png").read_bytes().startswith(b"\x89PNG")


def test_panels_by_kind(tmp_path):
    state = np.random.RandomState(0)
    columns = {
        "target_kind": state.randint(0, 3, 50), "prediction_kind": state.randint(0, 3, 50), "confidence_kind": state.uniform(0.3, 1, 50),
        "target_price": state.normal(size=50), "prediction_price": state.normal(size=50), "prediction_hidden": state.normal(size=(50, 4)),
    }  # fmt: skip
    assert [title for _, title, _ in choose_panels(columns, "_kind")] == [
        "kind: confusion matrix",
        "kind: calibration",
    ]
    assert [title for _, title, _ in choose_panels(columns, "_price")] == ["price: residuals"]
    assert choose_panels(columns, "_hidden") == []
    assert write_row_figure(columns, tmp_path / "all.png")
    assert not write_row_figure({"id": ["a"], "prediction": [1.0]}, tmp_path / "none.png")
