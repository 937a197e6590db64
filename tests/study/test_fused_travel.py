"""Trials without their folders on their worker train in one pass as they train alone."""

from dataclasses import replace

import pytest
import torch
from tests.study.test_fusing import check_tables, fused, states

from manyfit.core.errors import Interrupted
from manyfit.learn.torch.fused.step import StackedStep
from manyfit.study.executors.inline import Inline
from manyfit.study.status import status

GRID = {"train.optimizer.lr": [0.003, 0.01, 0.03, 0.1], "train.optimizer.weight_decay": [0.0, 0.01]}


@pytest.fixture
def hopping(lab):
    """A study of eight trials that hop over the shards of its data."""

    def write(shards=2, dropout=0.0, space=GRID, search=None, base=(), **settings):
        tree = lab.project.changed(
            data__shards=shards,
            **{
                "train__epochs": 3,
                "train__metrics": ["accuracy"],
                **({"model__dropout": dropout} if "model" not in dict(base) else {}),
                **dict(base),
            },
        )
        lab.project.config(tree)
        lab.write(
            space=space,
            search=search or {"method": "grid", "seeds": 1},
            execute={"hop": True, "on": "inline", **settings},
        )
        return lab

    return write


def run(lab):
    study = lab.sweep()
    assert not study.failures
    return lab.table(), states(lab)


def units(lab):
    return lab.rows("select count(*) from units where purpose = 'train'")[0][0]


@pytest.mark.parametrize("execute", [
    {"shards": 2}, {"shards": 2, "on": "processes", "workers": 2}, {"shards": 3, "order": "free"},
    {"shards": 2, "fuse": 3}, {"shards": 2, "fuse": "auto"},
], ids=str)  # fmt: skip
def test_a_group_that_hops_ends_as_its_trials_alone(hopping, execute):
    lab = hopping(**{**execute, "fuse": "off"})
    alone, _ = run(lab)
    visits = units(lab)
    lab.clear()
    lab = hopping(**{"fuse": 64, **execute})
    together, _ = run(lab)
    check_tables(alone, together)
    if execute.get("fuse") != "auto":
        assert fused(lab) >= 6  # a group of three may leave one
        assert units(lab) < visits / 1.9


def test_bits_do_not_depend_on_the_group_that_hops(hopping):
    lab = hopping(fuse=64, dropout=0.2)
    table, tensors = run(lab)
    assert fused(lab) == 8
    lab.clear()
    others, other_tensors = run(hopping(fuse=2, dropout=0.2))
    assert fused(lab) == 8
    assert table == others
    for name, state in tensors.items():
        assert all(torch.equal(tensor, other_tensors[name][key]) for key, tensor in state.items())


def test_a_random_search_asks_ahead_for_groups(hopping):
    space = {"train.optimizer.lr": {"log": [0.003, 0.03]}}
    lab = hopping(space=space, search={"method": "random", "trials": 6}, fuse=64)
    run(lab)
    assert fused(lab) == 6


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), ValueError("a bad row")], ids=str)
def test_a_step_that_fails_for_a_group_does_not_fail_its_trials(hopping, error, monkeypatch):
    """They go on in the same visit, from the last state that was saved in it."""
    monkeypatch.setattr("manyfit.run.travel.visit.BETWEEN", 0.0)
    every = {"train__every": {"checkpoint": "1ba"}}
    alone, _ = run(hopping(base=every))
    lab = hopping(base=every, fuse=64)
    lab.clear()
    step, sizes = StackedStep.train, []

    def fails(self, *args):
        sizes.append(count := len(self.update.runs))
        if count > 1 and self.base.step + args[-1].number >= 5:
            raise error
        return step(self, *args)

    monkeypatch.setattr(StackedStep, "train", fails)
    together, _ = run(lab)
    check_tables(alone, together)
    is_full = isinstance(error, torch.OutOfMemoryError)
    assert 4 in sizes
    assert (2 in sizes) == is_full


def test_trials_that_diverge_leave_and_the_others_stay_as_they_are(hopping):
    good = [0.003, 0.01, 0.03]
    lab = hopping(shards=1, fuse=64, dropout=0.2, space={"train.optimizer.lr": good})
    _, alone = run(lab)
    assert fused(lab) == 3
    lab.clear()
    hopping(shards=1, fuse=64, dropout=0.2, space={"train.optimizer.lr": [1e30, *good, 1e32]})
    lab.sweep()
    assert fused(lab) == 5
    assert [failure["kind"] for failure in status(lab.folder)["failures"]] == ["not a number"]
    now = states(lab)
    for name, tensors in alone.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items())


def test_a_worker_that_is_killed_takes_no_trial_with_it(hopping):
    lab = hopping()
    lab.project.write("src/deadly.py", """
        import os
        from pathlib import Path
        import torch
        from torch import nn

        class Deadly(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

            def forward(self, x):
                place = Path("once")
                if self.training and place.exists() and torch._C._functorch.is_batchedtensor(self.layers[1].weight):
                    place.unlink()
                    os._exit(9)
                return self.layers(x)
    """)  # fmt: skip
    base = {"model": {"class": "deadly.Deadly"}}
    alone, _ = run(hopping(base=base, on="processes", workers=2))
    lab.clear()
    hopping(base=base, on="processes", workers=2, fuse=64)
    lab.project.write("once", "")
    together, _ = run(lab)
    assert not (lab.root / "once").exists()
    check_tables(alone, together)


class Stops(Inline):
    """Is stopped by a signal in the visit of this number."""

    def __init__(self, work, watch, visits):
        super().__init__(work, watch)
        self.left = visits

    def wait(self, timeout=None, wake=()):
        self.left -= any(unit.purpose == "train" for unit in self._waiting)
        if self.left == 0:
            self._watch.number = 15
        return super().wait(timeout, wake)


def test_a_study_of_groups_that_hop_is_resumed(hopping):
    """It was stopped after some visits, so that its trials stand at different places."""
    lab = hopping(fuse=64, dropout=0.2)
    whole, tensors = run(lab)
    assert fused(lab) == 8
    for visits in (1, 4):
        lab.clear()
        with pytest.raises(Interrupted):
            lab.execute(lambda study, work, watch, trials, visits=visits: Stops(work, watch, visits))
        assert 0 < units(lab) < 12
        together, now = run(lab)
        assert together == whole
        for name, state in tensors.items():
            assert all(torch.equal(tensor, now[name][key]) for key, tensor in state.items())


def test_a_trial_that_is_stopped_leaves_the_others_as_they_are(hopping, monkeypatch):
    """By a person, in the middle of a visit."""
    monkeypatch.setattr("manyfit.study.work.training.BETWEEN", 0.0)
    lab = hopping(fuse=64, dropout=0.2, base={"train__every": {"log": "1ba"}})
    _, undisturbed = run(lab)
    assert fused(lab) == 8
    lab.clear()
    stopped, asked = sorted(undisturbed)[2], []

    class Asks(Inline):
        def _report_progress(self, progress):
            if progress.step > 5 and progress.trial == stopped and not asked:
                asked.append(progress.step)
                self.interrupt([stopped])
            super()._report_progress(progress)

    lab.execute(lambda study, work, watch, trials: Asks(work, watch))
    assert asked
    now = states(lab)
    for name, tensors in undisturbed.items():
        assert all(torch.equal(tensor, now[name][key]) for key, tensor in tensors.items()), name
    outcomes = lab.rows(f"select outcome from unit_trials where trial = '{stopped}'")
    assert ("preempted",) in outcomes


def test_the_reason_for_training_alone_is_kept(hopping, monkeypatch):
    """Later visits know only that a trial was begun alone."""
    from manyfit.learn.torch.fused import learner

    check = learner.check_group
    slow = lambda *args: replace(check(*args), together=2.0, alone=1.0)  # noqa: E731
    monkeypatch.setattr(learner, "check_group", slow)
    lab = hopping(fuse="auto")
    run(lab)
    (reason,) = status(lab.folder)["trained"]
    assert "it would not be faster" in reason
