"""Statistics of replicates: intervals and tests."""

import pytest

from manyfit.report.replicates import compare_seeds, mean_of, t_probability, t_quantile


def test_better_needs_evidence(lab):
    assert compare_seeds({1: 0.1}, {1: 0.2}).p is None
    assert compare_seeds({1: 0.1, 2: 0.2}, {1: 0.2, 2: 0.3}).p is None  # the same difference each time
    sure = compare_seeds({1: 0.10, 2: 0.20, 3: 0.15}, {1: 0.50, 2: 0.61, 3: 0.56})
    assert sure.p < 0.05 and sure.verdict.startswith("better, by")
    worse = compare_seeds({1: 0.50, 2: 0.61, 3: 0.56}, {1: 0.10, 2: 0.20, 3: 0.15})
    assert worse.verdict.startswith("not shown")
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
