"""Sums of losses: means, pauses at any batch, and checkpoints of earlier versions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.learn.metrics_by_run import fetch
from manyfit.learn.packing import pack, unpack
from manyfit.learn.torch.loss_sums import FOLD, Sums

NAMES = st.sets(st.sampled_from(["loss", "critic", "maker"]), min_size=1).map(sorted)
ENTRIES = st.lists(st.tuples(NAMES, st.floats(-1e3, 1e3), st.integers(1, 64)), min_size=1, max_size=12)


def add(sums, names, value, rows):
    losses = {name: torch.tensor(value + i) for i, name in enumerate(names)}
    if len(names) == 2:  # of another precision
        losses[names[1]] = losses[names[1]].to(torch.float64)
    sums.add(losses, rows)


def restart(sums):
    again = Sums(torch.device("cpu"))
    again.load(unpack(pack(sums.state())))
    return again


@given(ENTRIES, st.sets(st.integers(0, 12)), st.integers(1, 60))
def test_pauses_do_not_change_a_bit(entries, pauses, times):
    through, paused = Sums(torch.device("cpu")), Sums(torch.device("cpu"))
    for number in range(times):
        for i, (names, value, rows) in enumerate(entries):
            add(through, names, value + number, rows)
            add(paused, names, value + number, rows)
            if i in pauses and number % 7 == 0:
                paused = restart(paused)
    one, other = through.take(per_row=True), paused.take(per_row=True)
    assert list(one) == list(other)
    assert all(fetch(one[name]).tobytes() == fetch(other[name]).tobytes() for name in one)


def test_means_are_weighted_by_rows_and_cover_batches_of_other_losses():
    sums = Sums(torch.device("cpu"))
    for _ in range(FOLD + 3):
        sums.add({"loss": torch.tensor(1.0), "critic": torch.tensor(2)}, 3)
    sums.add({"critic": torch.tensor(8)}, 3 * (FOLD + 3))
    found = sums.take(per_row=True)
    assert [name for name in found if name.startswith("train_")] == ["train_loss", "train_critic"]
    assert float(fetch(found["train_loss"])[0]) == 1.0
    assert float(fetch(found["train_critic"])[0]) == 5.0
    assert not any(name.startswith("train_") for name in sums.take(per_row=True))


def test_states_of_earlier_versions_are_read():
    critic = {"recent": torch.tensor([4.0]), "rows": [2], "by_row": None, "by_batch": None, "count": 0}
    former = {
        "rate": 0.5, "recent": torch.tensor([1.0, 2.0]), "rows": [2, 2], "count": 2,
        "by_row": torch.tensor(6.0, dtype=torch.float64), "by_batch": torch.tensor(3.0, dtype=torch.float64),
        "named": {"critic": {"rate": 0.0, **critic}},
    }  # fmt: skip
    sums = Sums(torch.device("cpu"))
    sums.load(former)
    found = {name: float(fetch(value)[0]) for name, value in sums.take(per_row=True).items()}
    assert found == {"lr": 0.5, "train_loss": pytest.approx(2.0), "train_critic": 4.0}
    sums.load({"rate": 0.25})
    assert sums.take(per_row=True) == {"lr": 0.25}
