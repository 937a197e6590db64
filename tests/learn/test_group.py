"""A group of learners behaves as one learner, and each of its runs as it does alone."""

import numpy as np
import pytest
import torch
from tests.learn.test_torch import Base
from torch import nn

from manyfit.data import Order
from manyfit.data.walk import walk_together
from manyfit.learn.group import GroupLearner, Part
from manyfit.learn.learner import MembersFailed
from manyfit.learn.metrics_by_run import split_by_run


class TestGroup(Base):
    """Three modules of different sizes, one with a rate of its own."""

    is_group = True

    def make(self):
        return GroupLearner([Part(self.single(hidden)) for hidden in (8, 4, 6)])

    def single(self, hidden):
        torch.manual_seed(hidden)
        module = nn.Sequential(
            nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.3), nn.Linear(hidden, 3)
        )
        return self.learner(module)

    def test_each_ends_as_it_does_alone(self):
        group = self.make()
        self.train(group, 0, 2, 5)
        for hidden, state in zip((8, 4, 6), group.state(), strict=True):
            alone = self.single(hidden)
            alone.train(self.source().batches(Order(4, seed=1)), 7)
            (other,) = alone.state()
            assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in state.tensors.items())

    def test_one_that_fails_does_not_keep_the_others(self):
        group = self.make()
        group.models[1].forward = lambda x: 1 / 0
        with pytest.raises(MembersFailed) as failed:
            self.train(group, 0, 3)
        assert [type(error) for error in failed.value.errors.values()] == [ZeroDivisionError]
        assert list(failed.value.errors) == [1]
        group.keep([0, 2])
        self.train(group, 3, 4)
        for hidden, state in zip((8, 6), group.state(), strict=True):
            alone = self.single(hidden)
            alone.train(self.source().batches(Order(4, seed=1)), 7)
            assert all(torch.equal(t, alone.state()[0].tensors[n]) for n, t in state.tensors.items())

    def test_a_metric_that_one_of_them_has_is_not_invented_for_the_others(self):
        group = self.make()
        group._parts[1].learner.metrics = {}
        first, second, third = split_by_run(group.measure(self._pass(group)), 3)
        assert "accuracy" in first
        assert "accuracy" not in second
        assert "accuracy" in third


class Spoiling(nn.Module):
    """Changes its inputs in place."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.mul_(self.factor))


def test_what_a_model_does_to_its_inputs_is_not_seen_by_others():
    base = Base()
    torch.manual_seed(0)
    group = GroupLearner([Part(base.learner(Spoiling(factor))) for factor in (1.5, 2.0, 0.5)])
    alone = []
    torch.manual_seed(0)
    for factor in (1.5, 2.0, 0.5):
        alone.append(base.learner(Spoiling(factor)))
    order = Order(4, seed=1)
    walk = walk_together([base.source()] * 3, [order] * 3)
    group.train(walk, 6)
    for learner, state in zip(alone, group.state(), strict=True):
        learner.train(base.source().batches(order), 6)
        assert all(torch.equal(t, learner.state()[0].tensors[n]) for n, t in state.tensors.items())


def test_a_pass_gives_the_same_means_as_alone():
    base = TestGroup()
    group = base.make()
    found = split_by_run(group.measure(base._pass(group)), 3)
    for hidden, row in zip((8, 4, 6), found, strict=True):
        alone = base.single(hidden).measure(base.source().batches(Order(3, epochs=1)))
        assert row == split_by_run(alone, 1)[0]
        assert all(np.isfinite(value) for value in row.values())
