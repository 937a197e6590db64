"""Per-row evaluation with a loss, a metric and a function of one data point, compared with a forward pass."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import compare, where

from manyfit import load_config
from manyfit.run.build.builder import build
from manyfit.run.build.evaluator import Evaluator
from manyfit.run.evaluation.row_report import evaluate_rows

torch.set_num_threads(1)
SOURCE = Path(__file__).resolve().parent
ROUNDS = 7


def margin(output, target):
    """Return the difference between the score of the target and the mean score."""
    return output.gather(0, target[None])[0] - output.mean()


class Case:
    def __init__(self, model, data, batch):
        tree = {
            "src_code_path": ".",
            "data": {"class": f"models.{data}", "batch_size": batch},
            "model": {"class": f"models.{model}"},
            "train": {"epochs": 1, "loss": "cross_entropy", "metrics": ["accuracy"], "optimizer": None, "device": "cpu"},
            "export": {"metric": "train_loss"},
        }  # fmt: skip
        self.built = build(load_config(tree, project=SOURCE))
        self.batch = batch
        self.evaluator = Evaluator({"margin": margin})
        self.name = f"{model}, {len(self.built.train)} rows, batch {batch}"

    def ours(self):
        report = evaluate_rows(self.built.learner, self.built.train, self.batch, evaluator=self.evaluator)
        assert len(report) == len(self.built.train)

    def written(self):
        with tempfile.TemporaryDirectory() as folder:
            report = evaluate_rows(self.built.learner, self.built.train, self.batch, evaluator=self.evaluator)
            report.write(Path(folder) / "report.csv")

    @torch.no_grad()
    def bare(self):
        module = self.built.learner.module.eval()
        inputs, target = torch.from_numpy(self.built.train.inputs), torch.from_numpy(self.built.train.target)
        for begin in range(0, len(inputs), self.batch):
            part = slice(begin, begin + self.batch)
            F.cross_entropy(module(inputs[part]), target[part], reduction="none")


if __name__ == "__main__":
    print(where(), f"torch {torch.__version__}, 1 thread")
    good = True
    for case in (Case("LeNet", "Images", 128), Case("MLP", "Digits", 32), Case("MLP", "Digits", 256)):
        at_least = 0.5 if case.batch < 256 else 0.0
        good &= compare(
            f"{case.name}: bare forward / manyfit", case.bare, case.ours, ROUNDS, at_least=at_least,
            beside={"manyfit, with the report written as CSV": case.written},
        )  # fmt: skip
    sys.exit(not good)
