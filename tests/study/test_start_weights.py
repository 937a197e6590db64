"""The start weights of a cloned point."""

from dataclasses import replace

import pytest
from tests.study.points import points

from manyfit.study.drive.commands import leave_command


def test_a_clone_begins_with_the_weights_of_its_parent(lab):
    points(lab, 1, search__seeds=2, set={"train.epochs": 4})
    first = lab.sweep()
    leave_command(lab.folder, "clone", 0, {"train.optimizer.lr": 1e-6}, True)
    found = lab.sweep()
    clone = found.points[1]
    for seed, value in clone.trials.items():
        assert value == pytest.approx(first.points[0].trials[seed], rel=0.05)
    assert len(lab.sweep().points) == 2 and replace(found.points[0]) == first.points[0]
