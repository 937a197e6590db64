"""The loop drives a cohort of any size; each run keeps its own log and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from manyfit import load_config
from manyfit.core.state import State
from manyfit.data import ArraySource, Order
from manyfit.data.walk import walk_together
from manyfit.learn.learner import BaseLearner, Outputs, Weights
from manyfit.run.loop.cohort import Cohort, Member
from manyfit.run.loop.plan import Plan
from manyfit.run.loop.trainer import fit
from manyfit.store.events import EventLog
from manyfit.store.folder import RunFolder
from manyfit.testing import LearnerContract


@dataclass
class Lines(BaseLearner):
    """n straight lines through the origin, trained together: a learner without torch."""

    rates: list[float]
    slopes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    seen: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.slopes = np.zeros(self.n)
        self.loss, self.rows = np.zeros(self.n), 0

    @property
    def n(self):
        return len(self.rates)

    def train(self, batches, steps):
        for _ in range(steps):
            found = next(batches)
            inputs, target = (np.stack([getattr(b, name) for b in found]) for name in ("inputs", "target"))
            error = self.slopes[:, None] * inputs - target
            self.loss = self.loss + (error**2).sum(axis=1)
            self.rows += len(found[0])
            self.slopes = self.slopes - np.array(self.rates) * (error * inputs).mean(axis=1)

    def take(self):
        found = {"lr": np.array(self.rates)}
        if self.rows:
            found["train_loss"] = self.loss / self.rows
        self.loss, self.rows = np.zeros(self.n), 0
        return found

    def evaluate(self, batches):
        for found in batches:
            inputs, target = (np.stack([getattr(b, name) for b in found]) for name in ("inputs", "target"))
            output = self.slopes[:, None] * inputs
            yield Outputs(found[0].index, output, target, {"loss": (output - target) ** 2})

    def describe(self):
        return "lines"

    @property
    def models(self):
        return list(self.slopes)

    def keep(self, indices):
        self.rates = [self.rates[i] for i in indices]
        self.slopes, self.loss = self.slopes[list(indices)], self.loss[list(indices)]

    def predict(self, batch, model=None):
        return self.slopes[0] * batch.inputs

    def weights(self):
        return [Weights({"slope": torch.tensor([slope])}, {}) for slope in self.slopes]

    def observe(self, rows):
        self.seen += [row["val_loss"] for row in rows if row]

    def state(self):
        return [
            State({"slope": torch.tensor([slope]), "loss": torch.tensor([loss])}, {"rows": self.rows})
            for slope, loss in zip(self.slopes, self.loss, strict=True)
        ]

    def load(self, states):
        self.slopes = np.array([float(state.tensors["slope"]) for state in states])
        self.loss = np.array([float(state.tensors["loss"]) for state in states])
        self.rows = states[0].values["rows"]


def source():
    x = np.linspace(1, 2, 12)
    return ArraySource(x, 3 * x)


class TestLines(LearnerContract):
    is_group = True

    def make(self):
        return Lines([0.01, 0.1, 0.2])

    def source(self):
        return source()


@pytest.fixture
def train(project):
    def go(rates, names, epochs=3):
        members = []
        for name in names:
            folder = RunFolder(project.config(project.changed(train__epochs=epochs), run=name).parent)
            members.append(
                Member(
                    load_config(folder.path),
                    folder,
                    EventLog(folder.metrics),
                    validation=source(),
                    batch_size=5,
                )
            )
        order = Order(5, seed=1)
        learner = Lines(rates)
        batches = walk_together([source()] * len(names), [order] * len(names))
        cohort = Cohort(list(members), learner, Plan(order.steps(12), epochs), batches, is_group=True)
        fit(cohort)
        return [member.folder for member in members], learner

    return go


def test_together_is_the_same_as_alone(train):
    rates = [0.01, 0.1, 0.3]
    together, learner = train(rates, ["p", "q", "r"])
    for rate, folder, name in zip(rates, together, ["p1", "q1", "r1"], strict=True):
        (alone,), _ = train([rate], [name])
        assert [e.values for e in folder.events()] == [e.values for e in alone.events()]
        assert [c.step for c in folder.checkpoints()] == [c.step for c in alone.checkpoints()]
        left, right = (f.checkpoints()[-1].load().tensors["slope"] for f in (folder, alone))
        assert torch.equal(left, right)
    assert len({tuple(folder.events()[-1].values.items()) for folder in together}) == 3
    assert len(learner.seen) == 9, "each run is observed at the end of each epoch"


def test_boundaries_are_known_in_advance():
    plan = Plan(steps_per_epoch=120, epochs=2)
    assert [(b.step, b.ends_epoch, b.last) for b in plan.boundaries(0, most=50)] == [
        (50, False, False), (100, False, False), (120, True, False), (170, False, False), (220, False, False), (240, True, True)
    ]  # fmt: skip
    assert [b.step for b in plan.boundaries(130)] == [240]
    assert list(plan.boundaries(240)) == []
    assert [b.step for b in Plan(7, 2).boundaries(0)] == [7, 14]


def test_callbacks_end_even_if_training_does_not(project, train):
    ended = []

    class Stop:
        def on_start(self, cohort):
            pass

        def on_boundary(self, cohort, boundary, rows):
            raise RuntimeError("stop")

        def on_end(self, cohort):
            ended.append(cohort.step)

    folder = RunFolder(project.config(project.changed(), run="s").parent)
    member = Member(
        load_config(folder.path), folder, EventLog(folder.metrics), validation=source(), batch_size=5
    )
    batches = walk_together([source()], [Order(5, seed=1)])
    cohort = Cohort([member], Lines([0.1]), Plan(3, 1), batches, is_group=True)
    with pytest.raises(RuntimeError, match="stop"):
        fit(cohort, [Stop()])
    assert ended == [1]
