"""The loss of a batch, from the config or from the model."""

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
