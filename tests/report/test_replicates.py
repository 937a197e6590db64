"""Statistics of replicates: intervals and tests."""

import json
import math

import numpy as np
import pytest

from manyfit.report.replicates import (
    compare_seeds,
    count_needed,
    holm,
    mean_of,
    mean_of_winner,
    t_probability,
    t_quantile,
)


def test_better_needs_evidence(lab):
    assert compare_seeds({1: 0.1}, {1: 0.2}).p is None
    assert compare_seeds({1: 0.1, 2: 0.2}, {1: 0.2, 2: 0.3}).p is None  # the same difference each time
    sure = compare_seeds({1: 0.10, 2: 0.20, 3: 0.15}, {1: 0.50, 2: 0.61, 3: 0.56})
    assert sure.p < 0.05 and sure.verdict.startswith("better, by")
    worse = compare_seeds({1: 0.50, 2: 0.61, 3: 0.56}, {1: 0.10, 2: 0.20, 3: 0.15})
    assert worse.verdict.startswith("worse, by")
    assert compare_seeds({1: 1.0}, {2: 1.0}) is None
    always = compare_seeds({1: 0.5, 2: 0.75}, {1: 0.25, 2: 0.5})
    assert always.verdict == "0.25 worse on every seed; without variance, no test is possible"


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 30])
def test_students_t(degrees):
    scipy = pytest.importorskip("scipy.stats")
    for t in (0.1, 1.0, 2.5, 12.0):
        assert t_probability(t, degrees) == pytest.approx(scipy.t.cdf(t, degrees), abs=1e-12)
    assert t_quantile(0.975, degrees) == pytest.approx(scipy.t.ppf(0.975, degrees), rel=1e-9)
    values = [1.0, 2.0, 4.0]
    low, high = scipy.t.interval(0.95, 2, loc=7 / 3, scale=scipy.sem(values))
    assert mean_of(values).half == pytest.approx((high - low) / 2)


NOISE = {
    "normal": (lambda state, shape: state.normal(size=shape), 0.0),
    "unequal": (lambda state, shape: state.normal(size=shape) * np.linspace(0.3, 3, shape[0])[:, None], 0.0),
    "log-normal": (lambda state, shape: np.exp(state.normal(size=shape)), math.exp(0.5)),
}


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize(("points", "seeds"), [(2, 2), (2, 5), (10, 2), (10, 5)])
@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_the_interval_of_the_winner_covers_its_mean(kind, points, seeds, gap):
    """Simulated studies, in both directions; a naive interval covers 19% of log-normal studies at worst."""
    draw, mean = NOISE[kind]
    covered = []
    for number in range(600):
        state = np.random.RandomState(number)
        sign = 1 if number % 2 else -1
        true = sign * (mean + gap * np.arange(points))
        values = sign * (draw(state, (points, seeds)) + gap * np.arange(points)[:, None])
        order = values.mean(axis=1).argsort()
        found = mean_of_winner(values[order[0]].tolist(), values[order[1:]].tolist())
        covered.append(abs(found.mean - true[order[0]]) <= found.half)
    assert np.mean(covered) >= 0.93


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize(("points", "seeds"), [(2, 3), (5, 5), (10, 5)])
def test_better_is_rare_without_an_effect(kind, points, seeds):
    draw, _ = NOISE[kind]
    said = 0
    for number in range(1500):
        values = draw(np.random.RandomState(number), (points, seeds))
        first, second, *_ = values[values.mean(axis=1).argsort()]
        found = compare_seeds(dict(enumerate(first.tolist())), dict(enumerate(second.tolist())))
        said += found.verdict.startswith("better")
    assert said / 1500 <= 0.062


def test_holm_is_that_of_the_book():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_how_many_more_seeds():
    """With that many seeds, a test of the same difference has a power of 80%."""
    state = np.random.RandomState(0)
    for effect in (0.5, 1.0, 2.0):
        total = 3 + count_needed(effect, 1.0, 3)
        shown = 0
        for _ in range(800):
            noise = state.normal(effect, 1.0, size=total).tolist()
            found = compare_seeds(dict.fromkeys(range(total), 0.0), dict(enumerate(noise)))
            shown += found.p is not None and found.p < 0.05
        assert 0.72 <= shown / 800 <= 0.92
    assert count_needed(0.001, 1.0, 3) > 1000


def test_folds_are_less_certain_than_seeds():
    """Folds of the same rows with a learner that only adds noise: the corrected test stays at its level."""
    values = [0.1, 0.4, 0.2, 0.3, 0.5]
    assert mean_of(values, folds=5).half == pytest.approx(
        mean_of(values).half * math.sqrt((1 / 5 + 1 / 4) * 5)
    )
    first, second = dict(enumerate(values)), dict(enumerate([0.3, 0.5, 0.5, 0.5, 0.6]))
    assert compare_seeds(first, second, 5).p > compare_seeds(first, second).p


def test_an_ablation_is_compared_with_its_base(lab, cli):
    lab.write(search__seeds=3, space={"ablate": {"model.hidden": 4, "train.optimizer.lr": 0.1}})
    lab.sweep()
    answer = cli("status", lab.folder)
    assert "against the base" in answer.out and "corrected for choosing it among 3 points" in answer.out
    found = json.loads(cli("study", "compare", lab.folder, "--json").out)
    assert [(row["point"], row["against"]) for row in found] == [(1, 0), (2, 0)]
    assert all(row["seeds"] == 3 for row in found)
    assert "Holm-corrected" in cli("study", "compare", lab.folder).out
    direct = json.loads(cli("study", "compare", lab.folder, "0", "2", "--json").out)
    assert direct[0]["p"] <= found[1]["p"]
    for words, text in ((["7", "0"], "has no point '7'"), (["0"], "two or more points")):
        answer = cli("study", "compare", lab.folder, *words)
        assert answer.code == 2 and text in answer.err
