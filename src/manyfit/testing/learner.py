"""The contract of learners."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from manyfit.core.state import State
from manyfit.data import Order, Source, once
from manyfit.data.nested import named_arrays
from manyfit.data.walk import walk_together
from manyfit.learn.learner import Learner
from manyfit.learn.metrics_by_run import fetch


class LearnerContract:
    """Tests of a learner. Implement `make` and `source`; every call of `make` returns an equal learner.

    A learner that trains whole epochs is trained for as many of them, instead of steps; its epochs must have
    as many steps as `source` has batches of `batch_size` rows.
    """

    is_group: ClassVar[bool] = False
    """Whether the learner takes a walk over several streams, also when one run is left."""
    batch_size: ClassVar[int] = 4
    """Rows per batch of training."""

    def make(self) -> Learner:
        """Return an untrained learner."""
        raise NotImplementedError

    def source(self) -> Source:
        """Return rows to train on."""
        raise NotImplementedError

    def train(self, learner: Learner, start: int, *segments: int) -> None:
        """Train segments of steps, or of epochs, one after another."""
        batches = self._batches(learner, Order(self.batch_size, seed=1), start * learner.grain)
        for steps in segments:
            learner.train(batches, steps * learner.grain)

    def _batches(self, learner: Learner, order: Order, start: int = 0) -> Any:
        """Return what a learner is trained with: batches, or a walk where it has several runs."""
        if not self.is_group and learner.n == 1:
            return self.source().batches(order, start)
        return walk_together([self.source()] * learner.n, [order] * learner.n, start)

    def _pass(self, learner: Learner, rows: int = 3) -> Any:
        return self._batches(learner, Order(rows, epochs=1))

    def test_training_changes_the_state(self) -> None:
        """Training changes the state."""
        learner = self.make()
        before = copy_states(learner.state())
        self.train(learner, 0, 3)
        assert not equal(before, learner.state())

    def test_metrics_have_a_leading_n(self) -> None:
        """The mean loss and the learning rate have one value per run; taking them resets the means."""
        learner = self.make()
        self.train(learner, 0, 2)
        metrics = learner.take()
        assert {"train_loss", "lr"} <= set(metrics)
        assert all(tuple(value.shape) == (learner.n,) for value in metrics.values())
        assert "train_loss" not in learner.take()

    def test_where_it_pauses_does_not_change_its_means(self) -> None:
        """Neither a pause nor a restart changes a mean, bit for bit."""
        whole, parts, again = self.make(), self.make(), self.make()
        self.train(whole, 0, 6)
        self.train(parts, 0, 2, 1)
        again.load(copy_states(parts.state()))
        self.train(again, 3, 3)
        left, right = whole.take()["train_loss"], again.take()["train_loss"]
        assert [float(value) for value in left] == [float(value) for value in right]

    def test_where_it_pauses_does_not_matter(self) -> None:
        """Six steps at once equal two, one and three steps."""
        whole, parts = self.make(), self.make()
        self.train(whole, 0, 6)
        self.train(parts, 0, 2, 1, 3)
        assert equal(whole.state(), parts.state())

    def test_it_goes_on_from_its_state(self) -> None:
        """After stopping, rebuilding and loading, the result is the same."""
        whole, first, second = self.make(), self.make(), self.make()
        self.train(whole, 0, 7)
        self.train(first, 0, 3)
        second.load(copy_states(first.state()))
        assert equal(first.state(), second.state())
        self.train(second, 3, 4)
        assert equal(whole.state(), second.state())

    def test_means_are_those_of_the_rows(self) -> None:
        """`measure` returns the means of the rows of `evaluate`, and does not change the state."""
        learner = self.make()
        self.train(learner, 0, 2)
        before = copy_states(learner.state())
        found = learner.measure(self._pass(learner))
        assert equal(before, learner.state())
        rows = list(learner.evaluate(self._pass(learner)))
        own = learner.whole()
        for name, values in found.items():
            means = fetch(values)
            assert means.shape == (learner.n,)
            for i in range(learner.n):
                each = np.concatenate([o.rows[name][i] for o in rows]) if name in rows[0].rows else None
                wanted = own[i][name] if name in own[i] else float(np.mean(np.asarray(each)))
                assert np.isclose(means[i], wanted, rtol=1e-6)
        assert "loss" in found

    def test_runs_can_leave(self) -> None:
        """The remaining runs end as if no run had left."""
        whole, parts = self.make(), self.make()
        stays = [i for i in range(whole.n) if i != 1]
        self.train(whole, 0, 5)
        self.train(parts, 0, 2)
        parts.keep(stays)
        assert parts.n == len(stays)
        self.train(parts, 2, 3)
        assert equal([whole.state()[i] for i in stays], parts.state())
        assert tuple(parts.take()["train_loss"].shape) == (len(stays),)

    def test_everything_that_is_asked_is_answered_for_each_run(self) -> None:
        """Weights, models, reasons to stop and metrics of the model have one value per run."""
        learner = self.make()
        self.train(learner, 0, 2)
        for found in (
            learner.models,
            learner.stop_reasons(),
            learner.whole(),
            learner.weights(),
            learner.state(),
        ):
            assert len(found) == learner.n
        assert learner.describe()
        assert learner.hardware()
        assert learner.grain >= 1
        learner.set_options(learner.options())

    def test_a_prediction_is_what_an_evaluation_says(self) -> None:
        """`predict` returns the outputs of the first run."""
        learner = self.make()
        self.train(learner, 0, 2)
        batch = next(once(self.source(), 4))
        outputs = next(learner.evaluate(self._pass(learner, 4)))
        found = [np.asarray(value) for _, value in named_arrays(learner.predict(batch))]
        assert np.allclose(found[0], outputs.output[0], rtol=1e-5, atol=1e-6)

    def test_evaluation_gives_every_row_and_learns_nothing(self) -> None:
        """Every row has one output and one loss for any batch size, and the state does not change."""
        learner, source = self.make(), self.source()
        self.train(learner, 0, 2)
        before = copy_states(learner.state())
        found = list(learner.evaluate(self._pass(learner)))
        assert equal(before, learner.state())
        assert np.concatenate([outputs.index for outputs in found]).tolist() == list(range(len(source)))
        assert all(values.shape == (learner.n, len(o.index)) for o in found for values in o.rows.values())
        assert all(o.output.shape[:2] == (learner.n, len(o.index)) for o in found)
        single = np.concatenate(
            [outputs.rows["loss"] for outputs in learner.evaluate(self._pass(learner, 1))], axis=1
        )
        assert np.allclose(
            single, np.concatenate([o.rows["loss"] for o in found], axis=1), rtol=1e-4, atol=1e-5
        )


def copy_states(states: Sequence[State]) -> list[State]:
    """Return copies of states, independent of further training."""
    return [
        State({name: tensor.clone() for name, tensor in state.tensors.items()}, copy.deepcopy(state.values))
        for state in states
    ]


def equal(left: Sequence[State], right: Sequence[State]) -> bool:
    """Return whether states are equal bit for bit."""
    return len(left) == len(right) and all(
        a.values == b.values and a.tensors.keys() == b.tensors.keys()
        and all(bool((a.tensors[name] == b.tensors[name]).all()) for name in a.tensors)
        for a, b in zip(left, right, strict=True)
    )  # fmt: skip
