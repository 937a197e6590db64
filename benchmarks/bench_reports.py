"""The report of 20,000 data points of five components, compared with `predict` through the same preprocessor."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import five_components
from bench_keras import CONFIG, SOURCE
from timing import compare, where

ROWS, BATCH = int(os.environ.get("ROWS", "20000")), 32
ROUNDS = int(os.environ.get("ROUNDS", "5"))
five_components.COUNTS["test"] = ROWS


class Case:
    """The report of the test split, as written at the end of a run."""

    def __init__(self, style: str) -> None:
        from manyfit import load_config
        from manyfit.run.build.builder import build

        tree = {
            **CONFIG,
            "batch_size": BATCH,
            "data_loader_class": f"five_components.Loader{style}",
            "preprocessor_class": f"five_components.Preprocessor{style}",
        }
        self.built = build(load_config(tree, project=SOURCE))

    def ours(self) -> None:
        from manyfit.run.evaluation.row_report import evaluate_rows

        source = self.built.split("test")
        assert source is not None
        report = evaluate_rows(self.built.learner, source, BATCH, evaluator=self.built.evaluator)
        assert len(report) == ROWS
        with tempfile.TemporaryDirectory() as folder:
            report.write(Path(folder) / "test.csv")
            report.write_points(Path(folder), "test", self.built.evaluator.points)

    def bare(self) -> None:
        source = self.built.split("test")
        rows, count = source.loader.create_test_generator()
        batches, steps = source.preprocessor.add_preprocess(rows, count)
        if not hasattr(batches, "element_spec"):
            batches = ((x,) for x, _, _ in batches)
        found = self.built.learner.model.predict(batches, steps=steps, verbose=0)
        assert len(found) >= ROWS


if __name__ == "__main__":
    print(f"a report of {ROWS} data points, {where()}")
    results = []
    for style in ("TF", ""):
        case = Case(style)
        name = "a pipeline of TensorFlow" if style else "a generator"
        results.append(compare(name, case.ours, case.bare, ROUNDS, at_most=1.5))
    sys.exit(0 if all(results) else 1)
