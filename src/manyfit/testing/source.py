"""The contract of data sources."""

from __future__ import annotations

from itertools import islice

import numpy as np

from manyfit.data import Batch, Order, Source, once


class SourceContract:
    """Tests of a data source. Implement `make`: it returns a new source with at least three rows."""

    def make(self) -> Source:
        """Return a new source."""
        raise NotImplementedError

    def test_every_row_once(self) -> None:
        """An epoch holds each row exactly once, shuffled or not."""
        source = self.make()
        for order in (Order(2), Order(3, seed=1), Order(len(source) + 5, seed=2)):
            batches = islice(source.batches(order), order.steps(len(source)))
            found = np.concatenate([batch.index for batch in batches])
            assert sorted(found) == list(range(len(source)))
        assert sum(len(batch) for batch in once(source, 2)) == len(source)

    def test_ids_are_unique_and_stable(self) -> None:
        """Every row has a stable, unique ID."""
        rows = np.arange(len(self.make()), dtype=np.int64)
        ids = self.make().ids(rows)
        assert len(set(ids)) == len(rows)
        assert self.make().ids(rows[::-1]) == ids[::-1]

    def test_any_step_can_be_found_again(self) -> None:
        """Starting at step s yields the same batch as reading from the beginning up to s, in every epoch."""
        source = self.make()
        order = Order(2, seed=5)
        steps = 2 * order.steps(len(source)) + 1
        walked = list(islice(source.batches(order), steps))
        for start in range(steps):
            assert same(next(iter(source.batches(order, start))), walked[start])

    def test_order_is_a_function_of_seed_and_epoch(self) -> None:
        """The same seed yields the same order; another epoch or seed yields another one."""
        source, rows = self.make(), len(self.make())
        assert np.array_equal(Order(2, seed=1).epoch(rows, 0), Order(3, seed=1).epoch(rows, 0))
        many = [tuple(Order(2, seed=seed).epoch(rows, epoch)) for seed in range(5) for epoch in range(5)]
        assert len(set(many)) > 1
        assert same(
            next(iter(source.batches(Order(2, seed=1)))), next(iter(self.make().batches(Order(2, seed=1))))
        )

    def test_the_fingerprint_is_stable(self) -> None:
        """Equal content has the same fingerprint, also after it was read."""
        source = self.make()
        before = source.fingerprint()
        list(once(source, 2))
        assert source.fingerprint() == before == self.make().fingerprint()


def same(left: Batch, right: Batch) -> bool:
    """Return whether two batches are equal bit for bit."""
    return np.array_equal(left.index, right.index) and all(
        np.array_equal(a, b) for a, b in zip(_arrays(left), _arrays(right), strict=True)
    )


def _arrays(batch: Batch) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    inputs = batch.inputs
    columns = (
        list(inputs.values())
        if isinstance(inputs, dict)
        else list(inputs)
        if isinstance(inputs, tuple)
        else [inputs]
    )
    return columns if batch.target is None else [*columns, batch.target]
