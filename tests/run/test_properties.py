"""What must hold for every cadence, plan, log and report, not for three examples."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.config.schema.run import Guard, Stop, Train
from manyfit.config.typed.cadence import Cadence
from manyfit.core.state import State
from manyfit.report.compare import bootstrap
from manyfit.run.build.evaluator import Evaluator
from manyfit.run.evaluation import summary_statistics
from manyfit.run.loop.plan import Plan
from manyfit.run.loop.stopping import ending
from manyfit.store.buffers import Buffers
from manyfit.store.checkpoint import Keep
from manyfit.store.events import Event
from manyfit.store.manifest import Note

amounts = st.one_of(
    st.integers(1, 40).map(str),
    st.integers(1, 400).map(lambda n: str(n / 100)).filter(lambda s: "e" not in s),
)
cadences = st.tuples(amounts, st.sampled_from(["ep", "ba"])).map("".join)


@given(cadences, st.integers(1, 60))
def test_a_cadence_is_due_where_it_says(text, steps_per_epoch):
    cadence = Cadence.parse(text)
    due = [step for step in range(1, 300) if cadence.is_due(step, steps_per_epoch)]
    walked, step = [], 0
    while (step := cadence.next_after(step, steps_per_epoch)) < 300:
        walked.append(step)
    assert walked == due
    interval = cadence.steps(steps_per_epoch)
    assert {math.ceil(k * interval) for k in range(1, math.floor(299 / interval) + 1)} == set(due)


def test_a_tenth_of_an_epoch_is_a_tenth():
    assert Cadence.parse("0.1ep").amount == Fraction(1, 10)
    assert [s for s in range(1, 101) if Cadence.parse("0.1ep").is_due(s, 100)] == list(range(10, 101, 10))


@given(
    st.integers(1, 30),
    st.integers(1, 5),
    cadences,
    cadences,
    cadences,
    st.integers(1, 50),
    st.integers(0, 140),
)
def test_where_a_run_pauses_changes_nothing_that_is_due(per_epoch, epochs, log, validate, save, most, start):
    plan = Plan(
        per_epoch, epochs, Cadence.parse(log), Cadence.parse(validate), (Cadence.parse(save),), auto=False
    )
    start = min(start, plan.total)

    def due(boundaries):
        return [
            (b.step, b.log, b.validate, b.checkpoint)
            for b in boundaries
            if b.log or b.validate or b.checkpoint
        ]

    whole, parts = list(plan.boundaries(start)), list(plan.boundaries(start, most))
    assert due(whole) == due(parts)
    steps = [b.step for b in parts]
    assert steps == sorted(set(steps))
    assert not steps or steps[-1] == plan.total
    assert all(b - a <= most for a, b in zip([start, *steps], steps, strict=False))


values = st.one_of(st.floats(-5, 5), st.just(math.nan))


@given(st.lists(st.tuples(st.integers(0, 50), values), max_size=20, unique_by=lambda t: t[0]), st.sampled_from(["min", "max"]),
       st.integers(1, 4), st.integers(1, 4))  # fmt: skip
def test_what_is_kept(found, mode, last, top):
    notes = [Note(step, 0.0, {"m": value}, 0) for step, value in found]
    keep = Keep("m", mode, last, top)
    kept = keep.select(notes)
    assert {n.step for n in kept} >= set(sorted(n.step for n in notes)[-last:])
    finite = [n for n in notes if math.isfinite(n.metrics["m"])]
    best = keep.best(notes)
    if finite:
        chosen = (min if mode == "min" else max)(n.metrics["m"] for n in finite)
        assert best.metrics["m"] == chosen
        assert best.step == min(n.step for n in finite if n.metrics["m"] == chosen)
        assert best in kept
    else:
        assert best is None
    assert len(kept) <= last + top


def log_of(series, name="val_loss"):
    return [Event(i + 1, (i + 1) / 4, 0.0, {name: value}) for i, value in enumerate(series)]


@given(
    st.lists(st.floats(-3, 3), max_size=25),
    st.sampled_from(["min", "max"]),
    st.integers(1, 8),
    st.floats(0, 0.5),
)
def test_early_stopping_in_either_direction(series, mode, patience, delta):
    stop = Stop(metric="val_loss", mode=mode, patience=f"{patience}ba", min_delta=delta)
    sign = 1 if mode == "min" else -1
    best, since, expected = math.inf, 0, None
    for step, value in enumerate(series, 1):
        if sign * value < best - delta:
            best, since = sign * value, step
        if step - since >= patience and expected is None:
            expected = step
    train = Train(epochs=1, loss=None, optimizer=None, stop=stop)
    found = ending(train, log_of(series), 4)
    assert (found is None) == (expected is None)
    for cut in range(len(series)):
        early = ending(train, log_of(series[:cut]), 4)
        assert (early is not None) == (expected is not None and cut >= expected)


@pytest.mark.parametrize(("series", "kind"), [([1.0, math.nan], "not a number"), ([1.0, math.inf], "not a number"), ([1.0, 0.5, 6.0], "diverged"),
                                              ([1.0, 0.5, 4.0], None), ([5.0], None)])  # fmt: skip
def test_guards(series, kind):
    def judged(guard):
        return ending(Train(epochs=1, loss=None, optimizer=None, guard=guard), log_of(series), 4)

    found = judged(Guard(nan=True, divergence=10.0))
    assert (found.error.kind if found else None) == kind
    assert judged(Guard(nan=False)) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_the_usual_metrics_are_those_of_scikit_learn(pairs):
    sk = pytest.importorskip("sklearn.metrics")
    true, said = (np.array(column) for column in zip(*pairs, strict=True))
    found = summary_statistics.usual(true, said, 6)
    options = {"average": "macro", "zero_division": 0}
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(true, said))
    assert found["macro_recall"] == pytest.approx(sk.recall_score(true, said, **options))
    assert found["macro_precision"] == pytest.approx(sk.precision_score(true, said, **options))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(true, said, **options))
    assert np.array(found["confusion"]).sum() == len(pairs)


def test_segmentation():
    true = np.array([[[0, 1], [1, 1]]])
    said = np.array([[[0, 1], [0, 1]]])
    found = summary_statistics.usual(true, said, 2)
    assert found["pixel_accuracy"] == 0.75
    assert found["mean_iou"] == pytest.approx((0.5 + 2 / 3) / 2)
    assert found["mean_dice"] == pytest.approx((2 / 3 + 0.8) / 2)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_a_distribution(numbers):
    found = summary_statistics.describe_values(np.array(numbers))
    assert found["count"] == len(numbers)
    assert found["min"] <= found["q25"] <= found["median"] <= found["q75"] <= found["max"]
    assert found["min"] - 1e-6 <= found["mean"] <= found["max"] + 1e-6


@pytest.mark.soak
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says():
    state = np.random.RandomState(0)
    hits = 0
    for seed in range(200):
        low, high = bootstrap(state.normal(0.3, 1.0, size=80), 0.9, seed)
        hits += low <= 0.3 <= high
    assert 165 <= hits <= 195


POINTS = {
    "vectorised": lambda output, target: (output - target).abs().max(),
    "branches": lambda output, target: 1.0 if output[0] > 0 else -1.0,
    "python": lambda output, target: float(output.sum()) + target.sum().item(),
    "not the same at once": lambda output, target: output.sum() if output.ndim == 1 else output.flatten()[0],
}


@pytest.mark.parametrize("name", POINTS)
@given(st.integers(1, 30), st.integers(0, 100))
def test_functions_of_one_point_are_called_for_each(name, rows, seed):
    state = np.random.RandomState(seed)
    output, target = (state.normal(size=(rows, 3)) for _ in range(2))
    evaluator = Evaluator({"f": POINTS[name]})
    rows_of = zip(torch.from_numpy(output), torch.from_numpy(target), strict=True)
    expected = [float(POINTS[name](left, right)) for left, right in rows_of]
    assert evaluator(output, target)["f"] == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert evaluator(output[:1], target[:1])["f"] == pytest.approx(expected[:1], rel=1e-5, abs=1e-7)


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=6))
def test_copied_states_do_not_change(shapes):
    """Buffers are used again, and never while somebody still holds what is in them."""
    buffers, held = Buffers(), []
    for number, sizes in enumerate(shapes):
        tensors = {f"t{i}": torch.full((size,), float(number)) for i, size in enumerate(sizes)}
        held.append((number, buffers.copy(State(tensors, {"n": number}))))
        for tensor in tensors.values():
            tensor.fill_(-1)
        if number % 2:
            buffers.give_back(held.pop(0)[1])
        if number > 2 and len(held) > 1:
            buffers.give_back(held.pop(0)[1])
        for kept, state in held:
            assert state.values == {"n": kept}
            assert all((tensor == kept).all() for tensor in state.tensors.values())
