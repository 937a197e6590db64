"""Groups that take turns, each with its own settings."""

import time
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.config.schema.run import Train
from manyfit.run.session.side_by_side import make_stream, train_side_by_side, use_stream


def settings(**given):
    return Train(epochs=1, **given)


class Group:
    """A group that yields some values and turns, and notes what happens to it."""

    def __init__(self, number, turns, log, threads=None):
        self.number, self.turns, self.log = number, turns, log
        self.settings = settings(threads=threads, device="cpu")

    def __call__(self):
        self.log.append(("begin", self.number))
        try:
            for turn in self.turns:
                if self.settings.threads is not None:
                    assert torch.get_num_threads() == self.settings.threads
                yield None if turn is None else (self.number, turn)
        finally:
            self.log.append(("end", self.number))


TURNS = st.lists(st.none() | st.integers(0, 9), max_size=6)


def list_open(log):
    """How many groups were open after each event."""
    found, now = [], 0
    for what, _ in log:
        now += 1 if what == "begin" else -1
        found.append(now)
    return found


@given(turns=st.lists(TURNS, max_size=7), streams=st.integers(1, 5))
def test_every_group_yields_everything_in_its_order(turns, streams):
    log = []
    groups = [Group(number, each, log, 1 + number % 3) for number, each in enumerate(turns)]
    before = torch.get_num_threads()
    found = list(train_side_by_side([(each.settings, each) for each in groups], streams))
    for number, each in enumerate(turns):
        assert [value for owner, value in found if owner == number] == [t for t in each if t is not None]
    assert [number for what, number in log if what == "begin"] == list(range(len(turns)))
    assert sorted(number for what, number in log if what == "end") == list(range(len(turns)))
    assert max(list_open(log), default=0) <= streams
    assert torch.get_num_threads() == before


def test_turns():
    groups = [Group(number, [None, "a", None, "b"], []) for number in range(2)]
    found = list(train_side_by_side([(each.settings, each) for each in groups], 2))
    assert found == [(0, "a"), (1, "a"), (0, "b"), (1, "b")]


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("how", ["closed", "failed"])
def test_all_groups_are_closed(streams, how):
    log = []
    groups = [Group(number, [None, "a", None, "b"], log) for number in range(3)]

    def fail():
        yield from Group(3, [None, "a"], log)()
        raise KeyboardInterrupt

    makers = [(each.settings, each) for each in groups]
    if how == "closed":
        with closing(train_side_by_side(makers, streams)) as found:
            next(found)
    else:
        with pytest.raises(KeyboardInterrupt):
            list(train_side_by_side([(settings(device="cpu"), fail), *makers], streams))
    begun = [number for what, number in log if what == "begin"]
    assert sorted(begun) == sorted(number for what, number in log if what == "end")


def test_groups_on_a_cpu_have_no_stream():
    assert make_stream(settings(device="cpu")) is None
    with use_stream(None):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_groups_compute_at_the_same_time():
    """Each turn launches a kernel that waits; two of them take as long as one."""
    stream = make_stream(settings())
    assert stream is not None

    def spin(cycles=200_000_000):
        for _ in range(3):
            torch.cuda._sleep(cycles)
            yield None
        yield torch.cuda.current_stream()

    def measure(streams):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = list(train_side_by_side([(settings(), spin)] * 2, streams))
        torch.cuda.synchronize()
        return time.perf_counter() - began, {each.cuda_stream for each in found}

    measure(2)
    (alone, one), (together, two) = measure(1), measure(2)
    assert len(one) == 1 and len(two) == 2
    assert together < 0.8 * alone
