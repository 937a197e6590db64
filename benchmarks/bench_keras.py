"""Keras: training of five components compared with `model.fit`, and row reports compared with plain loops.

Without KERAS_BACKEND, both backends are measured, each in a separate process.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
EPOCHS = int(os.environ.get("EPOCHS", "8"))
ROWS, BATCH = 1000, 8
SOURCE = Path(__file__).resolve().parent

CONFIG = {
    "project_name": "bench",
    "src_code_path": ".",
    "data_dir": ".",
    "model_builder_class": "five_components.Builder",
    "evaluator_class": "five_components.Evaluator",
    "epochs": EPOCHS,
    "batch_size": BATCH,
    "export": {"metric": "val_loss", "mode": "min"},
}


def built(style, evaluator="Evaluator"):
    from manyfit import load_config
    from manyfit.run.build.builder import build

    tree = {
        **CONFIG,
        "data_loader_class": f"five_components.Loader{style}",
        "preprocessor_class": f"five_components.Preprocessor{style}",
        "evaluator_class": f"five_components.{evaluator}",
    }
    config = load_config(tree, project=SOURCE)
    return config, build(config)


class Steps:
    """Some epochs of training, after one epoch of warm-up."""

    def __init__(self, style):
        self.style = style

    def ours(self):
        from manyfit.run.callbacks.progress import PlainProgress
        from manyfit.run.loop.cohort import Cohort, Member
        from manyfit.run.loop.trainer import fit
        from manyfit.store.events import EventLog
        from manyfit.store.folder import RunFolder

        config, made = built(self.style)
        made.learner.train(made.train.batches(made.order), made.plan.steps_per_epoch)
        made.learner.take()
        made.learner.step = 0
        with tempfile.TemporaryDirectory() as folder:
            run = RunFolder(Path(folder) / "run")
            with EventLog(run.metrics) as events:
                batches = made.train.batches(made.order)
                cohort = Cohort([Member(config, run, events)], made.learner, made.plan, batches)
                yield
                fit(cohort, [PlainProgress(io.StringIO())])
                yield

    def bare(self):
        _, made = built(self.style)
        source = made.train
        data, steps = source.pipeline(source.endless())
        made.learner.model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
        yield
        made.learner.model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, verbose=0)
        yield


class Rows:
    """The report of 500 rows, with one of several forms of the same metric."""

    def __init__(self, evaluator):
        import numpy as np

        _, self.made = built("", evaluator)
        self.evaluator = evaluator
        batches = list(self.made.validation.batches(self.order()))
        self.inputs = np.concatenate([batch.inputs for batch in batches])
        self.target = np.concatenate([batch.target for batch in batches])
        self.output = self.made.learner.model.predict(self.inputs, verbose=0)

    def order(self):
        from manyfit.data import Order

        return Order(BATCH, epochs=1)

    def values(self):
        found = self.made.evaluator(self.output, self.target)
        assert len(next(iter(found.values()))) == len(self.target)

    def loop(self):
        from five_components import as_in_the_guide

        return [float(as_in_the_guide(y, p)) for y, p in zip(self.target, self.output, strict=True)]

    def with_prediction(self):
        for start in range(0, len(self.inputs), 128):
            part = slice(start, start + 128)
            output = self.made.learner.model.predict_on_batch(self.inputs[part])
            self.made.evaluator(output, self.target[part])

    def prediction(self):
        for start in range(0, len(self.inputs), 128):
            self.made.learner.model.predict_on_batch(self.inputs[start : start + 128])


def report(evaluator):
    """Return functions for the complete report of manyfit and for batched prediction of the same rows by Keras."""
    from manyfit.run.evaluation.row_report import evaluate_rows

    _, made = built("TF", evaluator)
    inputs = Rows(evaluator).inputs

    def ours():
        assert len(evaluate_rows(made.learner, made.validation, BATCH, evaluator=made.evaluator)) == len(
            inputs
        )

    def bare():
        made.learner.model.predict(inputs, batch_size=BATCH, verbose=0)

    return ours, bare


def main():
    import keras
    from timing import compare, where

    backend = keras.backend.backend()
    print(f"{where()}, Keras {keras.__version__} on {backend}")
    styles = {"TF": "tf.data", "": "generator"} if backend == "tensorflow" else {"": "generator"}
    good = True
    for style, name in styles.items():
        case = Steps(style)
        good &= compare(f"{backend}, {name}: fit / manyfit", case.bare, case.ours, ROUNDS, at_least=0.95)
    if backend == "tensorflow":
        case = Rows("Guide")
        good &= compare("the guide's function, loop / report", case.loop, case.values, ROUNDS, at_least=0.95)
        for evaluator, name in {"Named": "by name", "Batched": "batched function"}.items():
            fast = Rows(evaluator)
            good &= compare(f"{name}, loop / report", case.loop, fast.values, ROUNDS, at_least=100)
            ours, bare = report(evaluator)
            good &= compare(f"{name}, bare predict / whole report", bare, ours, ROUNDS, at_least=0.3)
    return good


if __name__ == "__main__":
    if "KERAS_BACKEND" in os.environ:
        sys.exit(not main())
    codes = [
        subprocess.run([sys.executable, __file__], env={**os.environ, "KERAS_BACKEND": name}, check=False)
        for name in ("tensorflow", "torch")
    ]
    sys.exit(any(code.returncode for code in codes))
