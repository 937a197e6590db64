"""Units with several trials, executors of one's own, and how the ledger keeps them."""

from __future__ import annotations

import re
import sqlite3
import zipfile
from pathlib import Path

import pytest
import torch

from manyfit.core.position import Position
from manyfit.store.folder import RunFolder
from manyfit.study import sweep as sweeping
from manyfit.study.drive.driver import Driver
from manyfit.study.ledger.database import FORMAT
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.ledger.reader import read_only

OLD = Path(__file__).parents[1] / "compatibility" / "v0_1.zip"


class Grouped(Driver):
    """Hands out units of three trials each."""

    def _hand_out(self):
        while self.dispatch.has_room() and not self.watch.number:
            items = [item for _ in range(3) if (item := self._next()) is not None]
            alone = [item for item in items if item.trial.id in self.dispatch.alone]
            if alone:
                self._queue.extendleft(item for item in reversed(items) if item is not alone[0])
                items = alone[:1]
            if not items:
                return
            self.dispatch.submit(items, items[0].until)


@pytest.fixture
def grouped(monkeypatch):
    monkeypatch.setattr(sweeping, "Driver", Grouped)


@pytest.mark.parametrize("on", ["inline", "processes"])
def test_several_trials_in_a_unit_end_as_they_do_alone(lab, monkeypatch, on):
    lab.write(search__seeds=2, space={"model.hidden": [4, 8]}, execute={"on": on, "workers": 2})
    lab.sweep()
    alone = lab.table()
    lab.folder.rename(lab.folder.with_name("alone"))
    lab.write(search__seeds=2, space={"model.hidden": [4, 8]}, execute={"on": on, "workers": 2})
    monkeypatch.setattr(sweeping, "Driver", Grouped)
    lab.sweep()
    assert lab.table() == alone
    for path in sorted((lab.folder / "trials").iterdir()):
        other = lab.folder.with_name("alone") / "trials" / path.name
        left, right = RunFolder(other), RunFolder(path)
        assert [e.values for e in left.events()] == [e.values for e in right.events()]
        weights = [run.checkpoints()[-1].load().tensors for run in (left, right)]
        assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    sizes = [row[0] for row in lab.rows("select count(*) from unit_trials join units on number=unit "
                                        "where purpose='train' group by unit")]  # fmt: skip
    assert sizes == [3, 1]
    assert not lab.rows("select * from units where ended is null")


@pytest.mark.parametrize("on", ["inline", "processes"])
def test_one_trial_of_a_unit_fails_alone(lab, grouped, on):
    """It has failed; the others are finished, and nobody else has died."""
    lab.write(
        search__seeds=1,
        space={"list": [{"model.hidden": 4}, {"train.optimizer.lr": 1e30}, {"model.hidden": 8}]},
        execute={"on": on, "workers": 2},
    )
    found = lab.sweep()
    states = dict(lab.rows("select point, state from trials"))
    assert states == {0: "finished", 1: "failed", 2: "finished"}, found.failures
    assert lab.rows("select distinct deaths from trials") == [(0,)]
    outcomes = dict(lab.rows("select t.point, u.outcome from unit_trials u join trials t on t.id=u.trial "
                             "join units on number=unit where purpose='train'"))  # fmt: skip
    assert outcomes == {0: "finished", 1: "not a number", 2: "finished"}


DEADLY = """
import os, signal
from models import MLP


class Deadly(MLP):
    def forward(self, images):
        if self.layers[1].out_features == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)
"""


@pytest.mark.parametrize(
    ("order", "how", "retries"),
    [
        ([6, 4, 8, 10], "os.kill(os.getpid(), signal.SIGKILL)", 0),
        pytest.param([4, 8, 6, 10], "os._exit(3)", 0, marks=pytest.mark.soak),
    ],
)
def test_one_trial_that_kills_its_process_is_the_only_one_that_dies(lab, grouped, order, how, retries):
    """Nobody knows which trial of the unit it was: each is tried alone, and the others finish."""
    lab.project.write("src/deadly.py", DEADLY.replace("os.kill(os.getpid(), signal.SIGKILL)", how))
    lab.write(
        set={"model.class": "deadly.Deadly"},
        search__seeds=1,
        space={"model.hidden": order},
        execute={"on": "processes", "workers": 1, "retries": retries},
    )
    lab.sweep()
    states = dict(lab.rows("select point, state from trials"))
    assert states == {i: "failed" if hidden == 6 else "finished" for i, hidden in enumerate(order)}
    deaths = dict(lab.rows("select point, deaths from trials"))
    assert {i: count for i, count in deaths.items() if order[i] != 6} == {
        i: 0 for i, hidden in enumerate(order) if hidden != 6
    }
    assert ("not begun",) in lab.rows("select outcome from unit_trials")
    assert not lab.rows("select * from units where ended is null")


@pytest.mark.parametrize(("points", "on"), [(1, "inline"), (2, "inline"), (5, "inline"), (2, "processes")])
def test_halving_decides_the_same_about_grouped_trials(lab, monkeypatch, points, on):
    """It is the stopper that does not depend on the order in which trials are trained."""
    changes = {
        "search__seeds": 2,
        "search__stop": "halving",
        "space": {"train.optimizer.lr": [0.001 * 4**i for i in range(points)]},
        "execute": {"on": on, "workers": 2},
        "set": {"train.epochs": 4},
    }
    lab.write(**changes)
    lab.sweep()
    alone = lab.table()
    lab.clear()
    monkeypatch.setattr(sweeping, "Driver", Grouped)
    lab.sweep()
    assert lab.table() == alone


def test_each_trial_keeps_its_own_log_and_output(lab, grouped):
    lab.write(search__seeds=1, space={"model.hidden": [4, 8, 12]}, execute={"on": "processes", "workers": 2})
    lab.sweep()
    for path in (lab.folder / "trials").iterdir():
        others = [other.name for other in (lab.folder / "trials").iterdir() if other != path]
        text = (path / "run.log").read_text() if (path / "run.log").exists() else ""
        assert not any(name in text for name in others)


MINE = '''
from manyfit.executors import Executor, Job, UnitWatch, attempt


class Mine(Executor):
    """One unit after another, in this process; says how often it was asked."""

    isolates = False

    def __init__(self, job: Job, greeting: str = "hello") -> None:
        self._job, self._units, self.greeting = job, [], greeting

    def submit(self, unit):
        self.check_place(unit)
        self._units.append(unit)

    def wait(self, timeout=None, wake=()):
        if not self._units:
            return []
        watch = UnitWatch(self._job.watch)
        return list(attempt(self._job.work, self._units.pop(0), watch, self.tell))

    def interrupt(self, trials=None):
        pass

    def close(self):
        self._units.clear()

    def describe(self):
        return {**super().describe(), "greeting": self.greeting}
'''


def test_an_executor_of_ones_own(lab, cli):
    """Named by its class path, with arguments of its own."""
    (lab.project.src / "mine.py").write_text(MINE)
    lab.write(search__seeds=1, space={"model.hidden": [4, 8]},
              execute={"on": {"class": "mine.Mine", "greeting": "good morning"}})  # fmt: skip
    found = lab.sweep()
    assert [p.state for p in found.points] == ["finished", "finished"]
    assert "good morning" in (lab.folder / "provenance.json").read_text()
    lab.write(execute={"on": {"class": "mine.Mine", "greting": "x"}})
    answer = cli("sweep", lab.folder)
    assert answer.code == 2
    assert "execute.on.greting" in answer.err
    assert "did you mean: greeting" in answer.err


WRONG = """
from manyfit.executors import Executor, Job, Outcome
from mine import Mine


class RaisesInSubmit(Mine):
    def submit(self, unit):
        raise ValueError("no room")


class RaisesInWait(Mine):
    def wait(self, timeout=None, wake=()):
        raise ValueError("no answer")


class AnswersTwice(Mine):
    def wait(self, timeout=None, wake=()):
        return super().wait(timeout, wake) * 2


class AnswersForNobody(Mine):
    def wait(self, timeout=None, wake=()):
        return [Outcome("nobody")]


class AnswersNothing(Mine):
    def wait(self, timeout=None, wake=()):
        return None


class HasNoSlot(Mine):
    slots = 0


class TakesNoJob(Mine):
    def __init__(self):
        pass


class Duck:
    def __init__(self, job):
        pass

    submit = wait = interrupt = close = lambda self, *args: None
"""


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("RaisesInSubmit", 1, "the executor RaisesInSubmit.submit failed: ValueError: no room"),
        ("RaisesInWait", 1, "the executor RaisesInWait.wait failed: ValueError: no answer"),
        ("AnswersTwice", 1, "the executor AnswersTwice returned an outcome for 'rehearsal-"),
        (
            "AnswersForNobody",
            1,
            "the executor AnswersForNobody returned an outcome for 'nobody', which was not submitted",
        ),
        ("AnswersNothing", 1, "the executor AnswersNothing.wait must return a list of outcomes, not None"),
        ("HasNoSlot", 1, "the executor HasNoSlot must have at least one slot, not 0"),
        ("TakesNoJob", 2, "does not accept the parameter job"),
        ("Duck", 2, "expected: an executor: a subclass of manyfit.executors.Executor"),
    ],
)
def test_mistakes_of_an_executor_of_ones_own_are_named(lab, cli, name, code, message):
    (lab.project.src / "mine.py").write_text(MINE)
    (lab.project.src / "wrong.py").write_text(WRONG)
    lab.write(search__seeds=1, space={"model.hidden": [4, 8]}, execute={"on": {"class": f"wrong.{name}"}})
    answer = cli("sweep", lab.folder)
    assert answer.code == code, answer.err
    assert message in answer.err
    assert "bug in manyfit" not in answer.err


def test_a_ledger_of_format_1_is_read_and_migrated(tmp_path):
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(tmp_path)
    file = tmp_path / "studies" / "halving" / "ledger.db"
    database = sqlite3.connect(file)
    before = database.execute(
        "select trial, until, purpose, outcome from assignments order by number"
    ).fetchall()
    database.close()
    read_only(file)
    points = read_only(file)[0]
    with Ledger(file) as ledger:
        assert ledger.get("format") == FORMAT
        assert [(p.id, p.state) for p in ledger.points] == [(p.id, p.state) for p in points]
    database = sqlite3.connect(file)
    after = database.execute(
        "select trial, until, purpose, outcome from units join unit_trials on unit=number order by number"
    ).fetchall()
    assert after == before
    assert not database.execute("select 1 from sqlite_master where name='assignments'").fetchone()
    database.close()
    with Ledger(file) as ledger:
        assert ledger.begin_unit(["a" * 12], Position(3), "train") == len(before) + 1


def test_a_format_of_the_future_is_refused(tmp_path):
    file = tmp_path / "ledger.db"
    with Ledger(file) as ledger:
        ledger.set("format", 4)
    with pytest.raises(Exception, match="it has format 4, but this version reads 1, 2, 3"):
        Ledger(file)


def test_positions_are_ordered_and_know_their_steps():
    assert Position(1) < Position(1, step=3) < Position(1, visit=1) < Position(2)
    assert Position(3, step=2).in_steps(10) == 32
    assert Position(3, visit=1, step=1).in_steps(10, [4, 6]) == 35
    with pytest.raises(Exception, match="an epoch has 2 visits to shards, so it cannot have 3"):
        Position(3, visit=3).in_steps(10, [4, 6])


def test_the_executor_of_the_documentation_is_one_file(lab):
    page = (Path(__file__).parents[2] / "docs/studies.md").read_text()
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "(Executor)" in block
    )
    lab.project.write("src/my_executors.py", code)
    lab.write(search__seeds=1, execute={"on": {"class": "my_executors.Queue", "name": "short"}})
    assert len(lab.sweep().ranked) == 6
    assert {row[0] for row in lab.rows("select state from trials")} == {"finished"}
