"""Groups of several structures that train side by side have the results of groups one after another."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.study.test_fusing import check_tables, states

from manyfit.core.errors import ConfigError
from manyfit.study.drive.planner import Execution, Way, apply_plan
from manyfit.study.status import status
from manyfit.study.work.groups import (
    MOST,
    MOST_OPEN,
    ROUNDS,
    choose_mates,
    choose_neighbors,
    divide_trials,
    group_of,
    join_groups,
    structure_of,
)
from manyfit.study.work.records import PointRecord, TrialRecord
from manyfit.study.work.schedule import Ready
from manyfit.study.work.units import Trial

SPACE = {"model.hidden": [4, 8, 12, 16, 20], "train.optimizer.lr": [0.003, 0.03]}


def write(lab, streams, execute=None, space=SPACE, **settings):
    lab.write(
        space=space,
        search={"method": "grid", "seeds": 1},
        set={"train.epochs": 3, "train.device": "auto", **settings},
        execute={"on": "inline", "fuse": 8, "streams": streams, **(execute or {})},
    )


def check_same(lab, alone, table):
    assert lab.table() == table
    found = states(lab)
    assert found.keys() == alone.keys()
    for name, tensors in alone.items():
        for key, tensor in tensors.items():
            assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(found[name][key])), (name, key)


@pytest.fixture
def alone(lab):
    """A study whose groups train one after another: its states and its table."""
    write(lab, 1)
    lab.sweep()
    found = states(lab), lab.table()
    assert len(found[0]) == 10
    lab.clear()
    return found


def count_units(lab):
    return lab.rows("select count(*) from units where purpose = 'train'")[0][0]


@pytest.mark.parametrize("execute", [
    {}, {"fuse": "auto"}, {"on": "processes", "workers": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("streams", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_the_results_are_those_of_one_after_another(lab, alone, streams, execute):
    if execute.get("fuse") == "auto":  # which decides by measured times whether groups pay
        lab.clear()
        write(lab, 1, {"fuse": "off"}, space={"model.hidden": SPACE["model.hidden"]})
        lab.sweep()
        alone = states(lab), lab.table()
        lab.clear()
        write(lab, streams, execute, space={"model.hidden": SPACE["model.hidden"]})
    else:
        write(lab, streams, execute)
    lab.sweep()
    if torch.cuda.is_available() and execute.get("fuse") == "auto":
        return  # runs alone are launched with a fused learner
    check_same(lab, *alone)
    assert status(lab.folder)["state"] == "finished"


def test_a_unit_has_several_groups(lab, caplog):
    write(lab, 3)
    lab.sweep()
    assert count_units(lab) == 1
    assert ("groups only take turns" in caplog.text) == (not torch.cuda.is_available())
    lab.clear()
    write(lab, 1)
    lab.sweep()
    assert count_units(lab) == 5


CHOOSY = """
    from models import MLP

    class Choosy(MLP):
        def __init__(self, hidden: int = 4) -> None:
            super().__init__(hidden)
            self.hidden, self.count = hidden, 0

        def forward(self, images):
            self.count += self.training
            if self.hidden == 8 and self.count > 12:
                raise RuntimeError("twelve are enough")
            return super().forward(images)
"""


def test_groups_fail_by_themselves(lab):
    lab.project.write("src/choosy.py", CHOOSY)
    write(lab, 3, **{"model.class": "choosy.Choosy", "train.epochs": 6})
    lab.sweep()
    rows = lab.rows('select trials.state, points."values" from trials join points on points.number = point')
    assert {state for state, values in rows if '"model.hidden": 8' in values} == {"failed"}
    assert {state for state, values in rows if '"model.hidden": 8' not in values} == {"finished"}


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL],
    ids=lambda each: each.name,
)
def test_a_study_that_was_ended_goes_on(lab, alone, number):
    write(lab, 3)
    child = subprocess.Popen(
        [sys.executable, "-m", "manyfit", "sweep", str(lab.folder)],
        cwd=lab.project.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not list(lab.folder.glob("trials/*/checkpoints")) and child.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.1)
    if child.poll() is None:
        os.kill(child.pid, number)
    child.wait(60)
    lab.sweep()
    if number == signal.SIGTERM:
        check_same(lab, *alone)
    else:  # a trial whose mates have left the group with their last checkpoints goes on alone
        check_tables(alone[1], lab.table())


def item(number, hidden, until=None):
    point = PointRecord(number, str(number), {"model.hidden": hidden}, "grid", granted=until)
    trial = TrialRecord(f"{number}", number, 0)
    return Ready(point, trial)


@given(
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=150),
    fuse=st.sampled_from(["auto", 2, 16]),
    slots=st.integers(1, 4),
    streams=st.integers(1, 4),
)
def test_neighbors(hidden, fuse, slots, streams):
    items = [item(number, each, until=None) for number, each in enumerate(hidden)]
    first, others = items[0], items[1:]
    mates = choose_mates(first, others, fuse, slots)
    found = choose_neighbors(first, mates, others, fuse, slots, streams)
    names = [each.trial.id for each in (first, *mates, *found)]
    assert len(set(names)) == len(names) <= MOST_OPEN
    counts = {}
    for each in found:
        assert group_of(each) != group_of(first)
        counts[group_of(each)] = counts.get(group_of(each), 0) + 1
    assert all(count <= (MOST if fuse == "auto" else fuse) for count in counts.values())
    structures = len(set(hidden))
    assert len(counts) <= max(0, min(-(-structures // slots), streams * ROUNDS) - 1)
    assert bool(found) == (streams > 1 and structures > slots)


def test_neighbors_have_the_same_goal():
    first, others = item(0, 1, until=2), [item(1, 2, until=3), item(2, 3, until=2)]
    assert [each.trial.id for each in choose_neighbors(first, [], others, "auto", 1, 2)] == ["2"]


@pytest.mark.parametrize(("execute", "text"), [
    ({"fuse": "off"}, "only if trials are fused"),
    ({"on": "ray"}, "one group at a time"),
    ({"hop": True}, "one group at a time"),
    ({"streams": 0}, "greater than 0"),
], ids=str)  # fmt: skip
def test_streams_that_are_not_used_are_refused(lab, execute, text):
    write(lab, 2, execute)
    with pytest.raises(ConfigError, match=text) as error:
        lab.sweep()
    assert "execute.streams" in str(error.value)


def test_planned_streams_are_used_unless_the_study_names_them(lab):
    from manyfit.config.study.study import load_study

    ways = [Way(1, 8, 1.0, 4)]
    for given_, expected in (("auto", 4), (2, 2)):
        write(lab, given_)
        planned = apply_plan(load_study(lab.folder), Execution(1, "auto", ways, [], 4))
        assert planned.execute.streams == expected
    assert "4 groups side by side" in ways[0].describe()


def test_ways_with_streams(monkeypatch):
    """Short studies have a second stream without measuring it; others have what was fastest."""
    from manyfit.core.signals import Watch
    from manyfit.run.session import measuring_streams
    from manyfit.run.session.measuring_streams import StreamTime
    from manyfit.study.drive.planner import LONG, _add_streams

    monkeypatch.setattr(
        measuring_streams, "measure_streams", lambda *given: [StreamTime(2, 0.7), StreamTime(4, 0.5)]
    )
    short, long = Way(1, 8, LONG / 2), Way(1, 8, 2 * LONG)
    assert _add_streams([short], [], None, Watch())[0] == Way(1, 8, LONG / 2, 2)
    assert [way.streams for way in _add_streams([long], [], None, Watch())] == [4, 2, 1]
    assert _add_streams([long], [], None, Watch())[0].seconds == LONG
    monkeypatch.setattr(measuring_streams, "measure_streams", lambda *given: [StreamTime(2, 1.01)])
    assert _add_streams([long], [], None, Watch())[0] == long

    def fail(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring_streams, "measure_streams", fail)
    assert _add_streams([long], [], None, Watch()) == [long]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_streams_are_measured(lab):
    from manyfit.config import load_config
    from manyfit.run.build.shared_data import SharedData
    from manyfit.run.session.measuring_streams import measure_streams

    changed = {"train__device": "auto", "train__epochs": 2000}
    groups = [
        [load_config(lab.project.changed(model__hidden=hidden, **changed))] * 4 for hidden in (4, 8, 12, 16)
    ]
    before = torch.cuda.memory_allocated()
    found = measure_streams(groups, SharedData())
    assert [each.streams for each in found] == [2, 4] and all(0.1 < each.share < 1.5 for each in found)
    assert torch.cuda.memory_allocated() <= before + 2**26  # a workspace of cuBLAS


STOP = {"metric": "val_loss", "patience": "1ep", "mode": "min"}


@pytest.mark.parametrize(("study", "is_exact"), [
    ({"search__stop": "halving"}, True),
    pytest.param({"search__stop": "asha"}, False, marks=pytest.mark.soak),
    pytest.param({"search__stop": "median"}, False, marks=pytest.mark.soak),
    ({"search__folds": 2}, True),
    pytest.param({"search": {"method": "random", "trials": 7}}, True, marks=pytest.mark.soak),
    ({"set": {"train.epochs": 3, "train.stop": STOP, "train.optimizer.lr": 0.3}, "space": {"model.hidden": [4, 8]}}, True),
    pytest.param({"execute__evaluate": "all", "execute__keep": 1}, True, marks=pytest.mark.soak),
], ids=["halving", "asha", "median", "folds", "random", "early stop", "evaluate all"])  # fmt: skip
def test_combinations(lab, study, is_exact):
    """Stoppers that do not wait decide by what has arrived, so their decisions may differ."""
    tables = []
    for streams in (1, 3):
        lab.clear()
        base = {"space": SPACE, "search": {"method": "grid", "seeds": 1}, "set": {"train.epochs": 3}}
        base["execute"] = {"on": "inline", "fuse": 8, "streams": streams}
        for key, value in study.items():
            section, _, name = key.partition("__")
            base[section] = {**base[section], name: value} if name else value
        lab.write(**base)
        lab.sweep()
        assert status(lab.folder)["state"] == "finished"
        tables.append(lab.table())
    assert len(tables[0]) == len(tables[1])
    if is_exact:
        assert tables[0] == tables[1]


@given(
    hidden=st.lists(st.integers(1, 6), max_size=150),
    fuse=st.sampled_from(["off", "auto", 2, 16]),
    streams=st.integers(1, 4),
)
def test_the_units_of_a_share(hidden, fuse, streams):
    trials = [Trial(str(number), "", {"model.hidden": each}, 7) for number, each in enumerate(hidden)]
    groups = divide_trials(trials, fuse)
    units = join_groups(groups, streams)
    assert [trial for unit in units for trial in unit] == [trial for group in groups for trial in group]
    if streams == 1:
        assert units == groups
    for unit in units:
        structures = [structure_of(trial.values) for trial in unit]
        assert len(set(structures)) <= streams * ROUNDS and len(unit) <= MOST_OPEN
        most = {"off": 1, "auto": MOST}.get(fuse, fuse)
        assert all(structures.count(each) <= most for each in structures)


def test_shares_train_side_by_side(lab, alone):
    """The results of `manyfit study share`, as `sweep` reads them afterwards."""
    from manyfit.study.job_array import train_share

    write(lab, 3)
    assert len(train_share(lab.folder, 0, 1)) == 10
    lab.sweep()
    check_same(lab, *alone)
