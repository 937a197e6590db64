"""The loss of a batch, from the config or from the model."""

import csv

import numpy as np
import pytest

import manyfit
from manyfit.core.errors import RunFailed


def test_two_losses_are_one_too_many(project):
    project.write(
        "src/own.py",
        """
        from torch.nn import functional as F
        from models import MLP

        class Own(MLP):
            def forward(self, images, target):
                output = super().forward(images)
                return output, F.cross_entropy(output, target)
        """,
    )
    with pytest.raises(RunFailed, match="is set as well"):
        manyfit.train(project.changed(model={"class": "own.Own"}), folder="runs/b", callbacks=[])


def test_weights_of_rows_are_used(forms):
    """Rows of weight 0 teach nothing: their classes are never predicted well."""
    result = manyfit.train(
        forms.changed(data={"class": "sets.Weighted"}, train__epochs=10), folder="runs/b", callbacks=[]
    )
    with (result.folder / "reports/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = {
        low: np.mean([float(r["accuracy"]) for r in rows if (int(r["target"]) < 5) == low])
        for low in (True, False)
    }
    assert right[True] > 0.9
    assert right[False] < 0.5
