"""Studies that leave it open how they are executed."""

import functools
import json
import logging
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.study.test_fusing import GRID, check_tables

from manyfit.config import load_config
from manyfit.core.errors import Interrupted, ManyfitError
from manyfit.learn.torch.launching import COMPILING, COMPILING_LEAF, SAVED, Launching
from manyfit.run.build.shared_data import SharedData
from manyfit.run.session import measuring
from manyfit.run.session.measuring import Measured, StepTime, measure_steps
from manyfit.study.drive.planner import OPENING, OPENING_RUN, Way, compare_ways, describe_measured
from manyfit.study.status import status

OPEN = {"on": "auto", "fuse": "auto"}
TIMES = st.floats(1e-4, 1.0)


@st.composite
def measurements(draw):
    sizes = sorted(draw(st.sets(st.integers(2, 64), max_size=4)))
    seconds = sorted(draw(st.lists(TIMES, min_size=len(sizes), max_size=len(sizes))))
    together = [StepTime(*pair) for pair in zip(sizes, seconds, strict=True)]
    return Measured(draw(st.integers(1, 10_000)), draw(st.floats(0, 0.1)), draw(TIMES), together, "")


@given(known=st.lists(st.tuples(st.integers(1, 300), measurements()), min_size=1, max_size=3),
       rest=st.integers(0, 50), counts=st.sampled_from([[1], [1, 2], [4]]))  # fmt: skip
def test_the_first_way_is_the_fastest(known, rest, counts):
    ways = compare_ways(known, rest, counts)
    assert ways == sorted(ways, key=lambda way: way.seconds)
    assert {way.workers for way in ways} == set(counts)
    share = {count: max(-(-trials // count) for trials, _ in known) for count in counts}
    assert all(1 <= way.fuse <= share[way.workers] for way in ways)
    assert len({(way.workers, way.fuse) for way in ways}) == len(ways)
    # A group that is hardly faster than its runs alone is never formed, so larger limits cost nothing.
    for count in counts:
        alone = next(way for way in ways if way.workers == count and way.fuse == 1)
        assert min(way.seconds for way in ways if way.workers == count) <= alone.seconds


@pytest.mark.parametrize(
    ("measured", "trials", "expected"),
    [
        (Measured(10_000, 0.01, 1e-3, [StepTime(8, 3.8e-3), StepTime(16, 4e-3)], ""), 16, (1, 16)),
        (Measured(10_000, 0.01, 10e-3, [StepTime(4, 60e-3)], ""), 16, (2, 1)),
        (Measured(10, 0.01, 10e-3, [StepTime(4, 60e-3)], ""), 8, (1, 1)),
        (Measured(100_000, 0.01, 1e-3, [StepTime(4, 2e-3), StepTime(16, 7.9e-3)], ""), 64, (2, 16)),
        (Measured(250, 0.01, 24e-3, [StepTime(4, 77e-3)], ""), 12, (2, 1)),
        (Measured(250, 0.01, 30e-3, [StepTime(4, 80e-3)], "", saves=5e-3), 12, (2, 1)),
    ],
    ids=[
        "small models fuse",
        "large ones do not",
        "a short study starts no processes",
        "both",
        "hardly faster",
        "too good to be true",
    ],
)
def test_ways(measured, trials, expected):
    best = compare_ways([(trials, measured)], 0, [1, 2])[0]
    assert (best.workers, best.fuse) == expected


GPU = torch.device("cuda")


@given(seconds=st.floats(0, 1e5), leaves=st.integers(1, 300))
def test_compiling_is_predicted_where_it_pays(seconds, leaves):
    cost = COMPILING + COMPILING_LEAF * leaves
    assert Launching().predict(GPU, leaves, seconds) <= seconds
    assert Launching(compile="default").predict(GPU, leaves, seconds) == pytest.approx(
        cost + (1 - SAVED) * seconds
    )
    assert Launching(compile="off").predict(GPU, leaves, seconds) == seconds
    assert Launching(capture="off").predict(GPU, leaves, seconds) == seconds
    assert Launching().predict(torch.device("cpu"), leaves, seconds) == seconds


def test_ways_include_compiling():
    """It is counted for each group, and for none whose steps are too short, besides opening the groups."""
    steps, together = 100_000, [StepTime(4, 0.2e-3), StepTime(64, 0.5e-3)]
    compiling = functools.partial(Launching().predict, GPU, 4)
    plain, compiled = (
        {way.fuse: way.seconds for way in compare_ways([(64, measured)], 0, [1])}
        for measured in (
            Measured(steps, 0.0, 0.1e-3, together, ""),
            Measured(steps, 0.0, 0.1e-3, together, "", compiling),
        )
    )
    opening = {size: 64 // size * OPENING + 64 * OPENING_RUN for size in compiled}
    cost = COMPILING + 4 * COMPILING_LEAF
    assert compiled[64] == pytest.approx(cost + (1 - SAVED) * plain[64] + opening[64])
    assert compiled[4] == pytest.approx(16 * cost + (1 - SAVED) * plain[4] + opening[4])
    assert compiled[1] == pytest.approx(plain[1] + opening[1])


def test_what_cannot_be_measured_has_no_ways():
    assert compare_ways([(3, Measured(1, 0.0, float("inf"), [], "whole epochs"))], 0, [1, 2]) == []
    assert compare_ways([], 3, [1, 2]) == []


def test_steps_are_measured_without_a_trace(project, monkeypatch):
    """Neither random numbers nor settings of torch change, and what is measured is described."""
    monkeypatch.setattr(measuring, "LEAST_SAVED", 0.0)  # on a busy machine, steps seem long
    config = load_config(project.changed())
    before = torch.get_rng_state(), torch.get_num_threads()
    found = measure_steps([config] * 8, SharedData(), lambda seconds: 60.0)
    assert torch.equal(before[0], torch.get_rng_state()) and torch.get_num_threads() == before[1]
    assert found.alone > 0 and [each.runs for each in found.together] == [4, 8] and not found.end
    assert all(each.seconds > 0 for each in found.together)
    (line,) = describe_measured(8, found)
    assert "8 in one pass" in line
    stopped = measure_steps([config] * 64, SharedData(), lambda seconds: 0.0)
    assert not stopped.together and "longer" in stopped.end


def test_groups_are_not_measured_if_they_could_save_little(project, monkeypatch):
    monkeypatch.setattr(measuring, "_time_alone", lambda built, check: 1.0)
    config = load_config(project.changed(train__device="cpu"))
    found = measure_steps([config] * 8, SharedData(), lambda seconds: 60.0)
    assert not found.together and "save little" in found.end and 0 < found.saves < 0.25


LOOP = """
import torch
from torch import nn

class Loop(nn.Module):
    def __init__(self, hidden: int = 16):
        super().__init__()
        self.read, self.go, self.out = nn.Linear(8, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 10)

    def forward(self, images):
        state = torch.zeros(len(images), self.go.in_features)
        for part in images.flatten(1).unflatten(1, (8, 8)).repeat(1, 4, 1).unbind(1):
            state = torch.tanh(self.read(part) + self.go(state))
        return self.out(state)
"""


def test_groups_of_models_with_few_parameters_and_many_operations_are_measured(project):
    project.write("src/loop.py", LOOP)
    config = load_config(project.changed(model={"class": "loop.Loop"}, train__device="cpu"))
    found = measure_steps([config] * 4, SharedData(), lambda seconds: 60.0)
    assert [each.runs for each in found.together] == [4]
    assert found.saves > 200 * measuring.LAUNCHING


def test_steps_that_are_launched_are_measured_too(project, monkeypatch):
    """As on a GPU, where compiling is foreseen."""
    monkeypatch.setattr(Launching, "is_wanted", lambda self, device: self.capture != "off")
    config = load_config(project.changed())
    found = measure_steps([config] * 4, SharedData(), lambda seconds: 60.0)
    assert found.alone > 0 and [each.runs for each in found.together] == [4]


def test_memory_limits_what_is_measured(project, monkeypatch):
    config = load_config(project.changed())
    monkeypatch.setattr(measuring, "find_free_memory", lambda device: 1e5)
    found = measure_steps([config] * 64, SharedData(), lambda seconds: 60.0)
    assert "may not fit into memory" in found.end and len(found.together) < 3

    def fill(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring, "_time_together", fill)
    found = measure_steps([config] * 4, SharedData(), lambda seconds: 60.0)
    assert found.end or not found.together


def test_a_planned_study(lab, caplog):
    search = {"method": "grid", "seeds": 1}
    lab.write(space=GRID, search=search, set={"train.epochs": 3})
    lab.sweep()
    alone = lab.table()
    lab.clear()
    lab.write(space=GRID, search=search, set={"train.epochs": 3}, execute=OPEN)
    with caplog.at_level(logging.INFO, "manyfit"):
        lab.sweep()
    check_tables(alone, lab.table())
    planned = status(lab.folder)["execution"]
    ways = [Way(**each) for each in planned["ways"]]
    assert planned["workers"] == ways[0].workers and ways[0].seconds == min(way.seconds for way in ways)
    assert "planned, by steps that were measured" in caplog.text and "alone" in planned["measured"][0]
    found = status(lab.folder)["trained"].get("in one pass", 0)
    assert found == (8 if ways[0].fuse > 1 else 0)


def test_a_study_resumes_as_it_was_planned(lab, monkeypatch):
    lab.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 2}, execute=OPEN)
    lab.sweep()
    before = status(lab.folder)["execution"]

    def refuse(*given):
        raise AssertionError("measured again")

    monkeypatch.setattr(measuring, "measure_steps", refuse)
    lab.sweep()
    assert status(lab.folder)["execution"] == before


def write_open(lab, **settings):
    lab.write(
        space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 1, **settings}, execute=OPEN
    )


def test_a_process_that_ended_while_measuring(lab, caplog):
    """It may end again, so it is not measured the next time."""
    lab.project.write("src/deadly.py", """
        import os
        from models import MLP

        class Deadly(MLP):
            def forward(self, images):
                if self.training and os.path.exists("deadly"):
                    os._exit(7)
                return super().forward(images)
    """)  # fmt: skip
    write_open(lab, **{"model.class": "deadly.Deadly"})
    (lab.project.root / "deadly").touch()
    command = [sys.executable, "-m", "manyfit", "sweep", str(lab.folder)]
    assert subprocess.run(command, cwd=lab.project.root, check=False, capture_output=True).returncode == 7
    (lab.project.root / "deadly").unlink()
    lab.sweep()
    assert "the process has ended before while steps were measured" in caplog.text
    assert status(lab.folder)["execution"] is None and status(lab.folder)["state"] == "finished"
    caplog.clear()
    write_open(lab, **{"model.class": "deadly.Deadly", "train.epochs": 2})
    lab.sweep()
    assert status(lab.folder)["execution"] is not None and "has ended before" not in caplog.text


def test_a_signal_ends_the_measurement(lab):
    """And the next start measures again."""
    lab.project.write("src/slow.py", """
        import os, signal
        from models import MLP

        class Slow(MLP):
            def forward(self, images):
                if self.training and os.path.exists("signal"):
                    os.unlink("signal")
                    os.kill(os.getpid(), signal.SIGTERM)
                return super().forward(images)
    """)  # fmt: skip
    write_open(lab, **{"model.class": "slow.Slow"})
    (lab.project.root / "signal").touch()
    with pytest.raises(Interrupted, match="ended by SIGTERM before anything was trained"):
        lab.sweep()
    assert status(lab.folder)["execution"] is None
    lab.sweep()
    assert status(lab.folder)["execution"] is not None


def test_a_model_that_exits_is_reported(lab, cli):
    lab.project.write("src/exiting.py", """
        import sys
        from models import MLP

        class Exiting(MLP):
            count = 0

            def forward(self, images):
                Exiting.count += self.training
                if Exiting.count == 3:
                    sys.exit(5)
                return super().forward(images)
    """)  # fmt: skip
    write_open(lab, **{"model.class": "exiting.Exiting"})
    answer = cli("sweep", lab.folder)
    assert answer.code != 5 and "SystemExit: 5" in answer.err


def test_what_is_left_is_planned(lab):
    """Trials that are complete do not count, and those with fewer epochs than the study now has in part."""
    write_open(lab, **{"train.epochs": 2})
    lab.sweep()
    lab.write(space=GRID, search={"method": "grid", "seeds": 2}, set={"train.epochs": 2}, execute=OPEN)
    lab.sweep()
    assert "(8 trials)" in status(lab.folder)["execution"]["measured"][0]
    before = status(lab.folder)["execution"]
    lab.write(space=GRID, search={"method": "grid", "seeds": 2}, set={"train.epochs": 3}, execute=OPEN)
    lab.sweep()
    after = status(lab.folder)["execution"]
    assert after != before and "(16 trials)" in after["measured"][0]
    lab.sweep()
    assert status(lab.folder)["execution"] == after


def test_an_error_of_the_model_is_reported_once(lab, cli):
    lab.project.write("src/broken.py", """
        from models import MLP

        class Broken(MLP):
            def forward(self, images):
                raise RuntimeError("no forward today")
    """)  # fmt: skip
    lab.write(
        space=GRID, search={"method": "grid", "seeds": 1}, set={"model.class": "broken.Broken"}, execute=OPEN
    )
    with pytest.raises(ManyfitError, match="no forward today"):
        lab.sweep()


LSTM = """
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self, hidden: int = 8):
            super().__init__()
            self.lstm, self.last = nn.LSTM(8, hidden, batch_first=True), nn.Linear(hidden, 10)

        def forward(self, images):
            return self.last(self.lstm(images.view(-1, 8, 8))[0][:, -1])
"""


def test_models_that_cannot_be_fused_are_planned_too(lab, cli):
    lab.project.write("src/recurrent.py", LSTM)
    lab.write(space=GRID, search={"method": "grid", "seeds": 1},
              set={"model.class": "recurrent.Recurrent", "train.epochs": 1}, execute=OPEN)  # fmt: skip
    lab.sweep()
    planned = status(lab.folder)["execution"]
    assert planned["fuse"] == "off" and all(way["fuse"] == 1 for way in planned["ways"])
    answer = cli("status", lab.folder)
    assert "one run at a time" in answer.out and answer.code == 0
    assert json.loads(cli("status", lab.folder, "--json").out)["execution"]["measured"]


@pytest.mark.parametrize(
    "execute", [{"on": "inline", "fuse": "auto"}, {"on": "auto", "fuse": 4}, {"on": "auto"}]
)
def test_what_is_decided_is_not_planned(lab, execute):
    lab.write(space=GRID, search={"method": "grid", "seeds": 1}, set={"train.epochs": 1}, execute=execute)
    lab.sweep()
    assert status(lab.folder)["execution"] is None


class Slow:
    """A learner that takes long where something is done for the first time, such as to capture steps."""

    def __init__(self, step, first):
        self.now, self.step, self.first, self.known, self.trained = 0.0, step, first, set(), 0

    def train(self, batches, steps):
        self.now += steps * self.step
        for size in {1 << i for i in range(16) if steps >> i & 1} - self.known:
            self.known.add(size)
            self.now += self.first
        if self.trained < 2:  # allocation
            self.now += self.first
        self.trained += steps

    def take(self):
        return {}


@given(step=st.floats(1e-6, 0.5), first=st.floats(0, 2), most=st.integers(1, 3000))
def test_the_time_of_a_step_is_that_of_later_ones(step, first, most):
    """Also if the first launch of each length takes long; and no more steps are trained than there are."""
    learner = Slow(step, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring.time, "perf_counter", lambda: learner.now)
        found = measuring.time_steps(learner, iter(()), most, lambda: None)
    assert learner.trained <= most
    if most >= 4:
        assert found == pytest.approx(step, rel=1e-6, abs=1e-9)
    assert found >= step * 0.999
