"""Spans that are timed, and functions that are wrapped while they are."""

import threading
import types
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core import stopwatch
from manyfit.core.stopwatch import Stopwatch, TimedCall, TimedIterator, timing

TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 9), st.just([])),
    lambda inner: st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 9), st.lists(inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@contextmanager
def fake_clock():
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(stopwatch, "time", clock)
        yield clock


def spend(watch, clock, tree, inside_whole=False):
    """Spend time in a tree of spans; return the seconds that each phase should have."""
    phase, is_whole, own, inner = tree
    expected = {}
    with watch.measure(phase, is_whole):
        clock.now += own
        for each in inner:
            for name, seconds in spend(watch, clock, each, inside_whole or is_whole).items():
                name = phase if is_whole else name
                expected[name] = expected.get(name, 0) + seconds
    expected[phase] = expected.get(phase, 0) + own
    return expected


@given(tree=TREES)
def test_all_time_is_counted_once(tree):
    with fake_clock() as clock:
        watch = Stopwatch()
        expected = spend(watch, clock, tree)
        assert {n: t for n, t in watch.seconds.items() if t} == {n: t for n, t in expected.items() if t}
        assert sum(watch.seconds.values()) == clock.now


class Base:
    def inherited(self):
        return 2

    def fails(self):
        raise ZeroDivisionError


class Thing(Base):
    def own(self, by=1):
        return self.inherited() + by


def test_functions_are_wrapped_for_a_while():
    module = types.SimpleNamespace(add=lambda a, b: a + b)
    places = [TimedCall(Thing, "own", "a"), TimedCall(Thing, "inherited", "b"), TimedCall(module, "add", "c"), TimedCall(Thing, "fails", "d")]  # fmt: skip
    before, watch = (vars(Thing)["own"], module.add), Stopwatch()
    with timing(places, watch):
        assert Thing().own(by=3) == 5
        assert module.add(1, 2) == 3
        with pytest.raises(ZeroDivisionError):
            Thing().fails()
    assert (vars(Thing)["own"], module.add) == before
    assert "inherited" not in vars(Thing)
    assert sorted(span.phase for span in watch.spans) == ["a", "b", "c", "d"]
    Thing().own()
    assert len(watch.spans) == 4


def test_a_place_that_does_not_exist():
    with (
        pytest.raises(AttributeError, match="nothing"),
        timing([TimedCall(Thing, "nothing", "a")], Stopwatch()),
    ):
        pass
    assert "nothing" not in vars(Thing)


def test_other_threads_are_not_timed():
    watch = Stopwatch()
    with timing([TimedCall(Thing, "own", "a")], watch):
        thread = threading.Thread(target=Thing().own)
        thread.start()
        thread.join()
    assert not watch.spans


def test_items_that_are_waited_for():
    items, watch = TimedIterator(iter(range(3)), "data"), Stopwatch()
    assert next(items) == 0
    items.watch = watch
    assert list(items) == [1, 2]
    assert [span.phase for span in watch.spans] == ["data"] * 3  # the last one finds that there are no more
