"""What fault injection broke once: no study hangs, believes a changed ledger, or is made anew elsewhere."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.examples import quick

from manyfit.config.study.study import load_study
from manyfit.study.drive.driver import Driver, StudyMoved
from manyfit.study.drive.inbox import Command, Inbox, send_command
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import Processes
from manyfit.study.executors.simulated import Simulated
from manyfit.study.executors.worker import Place
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.ledger.reader import read_only
from manyfit.study.search.decisions import Board
from manyfit.study.search.stoppers import Asha, Halving, Median, Patience
from manyfit.study.sweep import Wish, execute
from manyfit.study.work.failures import failure_of
from manyfit.study.work.points import Candidate
from manyfit.study.work.records import PointRecord, TrialRecord

STOPS = {
    "none": None,
    "halving": "halving",
    "asha": "asha",
    "median": {"class": "median", "least": 1},
    "patience": {"class": "patience", "epochs": 1},
}


WORK = '''
from manyfit.study.work.units import Outcome


def work(unit, watch, tell):
    """Trials without training: a curve by its rate."""
    until = 9 if unit.until is None else unit.until.epoch
    found = []
    for trial in unit.trials:
        if unit.purpose == "rehearse":
            found.append(Outcome(trial.id, facts={"epoch_seconds": 0.0, "bytes": 0}))
            continue
        rate = trial.values.get("train.optimizer.lr", 0.0)
        curve = tuple((float(e), rate + 1 / e) for e in range(1, until + 1))
        found.append(Outcome(trial.id, until * 4, until, 4, until == 9, curve=curve))
    return found
'''


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "importable").mkdir()
    (tmp_path / "importable" / "made_up_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path / "importable"))
    sys.modules.pop("made_up_work", None)
    return importlib.import_module("made_up_work").work


class Folderless(Processes):
    keeps_folders = False


class FolderlessInline(Inline):
    keeps_folders = False


def engine(work, name, slots):
    if name == "inline":
        return lambda study, _, watch, trials: FolderlessInline(work, watch)
    if name == "processes":
        return lambda *_: Folderless(work, [Place()] * slots)
    return lambda *_: Simulated(slots, epochs=9)


def studied(lab, work, stop, method, trials, seeds, executor, slots):
    search = {"method": method, "seeds": seeds, **({"stop": stop} if stop else {})}
    space = {
        "train.optimizer.lr": {"linear": [0.001, 1.0], **({"points": trials} if method == "grid" else {})}
    }
    lab.write(
        space=space,
        search=search if method == "grid" else {**search, "trials": trials},
        set={"train.epochs": 9},
    )
    (lab.folder / "trials").mkdir()  # for what workers print
    return execute(load_study(lab.folder), Wish(quiet=True), engine(work, executor, slots))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("executor", ["inline", "processes", "simulated"])
@pytest.mark.parametrize(
    ("method", "trials", "seeds"), [("random", 4, 1), pytest.param("grid", 5, 2, marks=pytest.mark.soak)]
)
def test_no_stopper_hangs_on_any_executor(lab, work, stop, executor, method, trials, seeds):
    found = studied(lab, work, STOPS[stop], method, trials, seeds, executor, 2)
    assert len(found.points) == trials
    assert not found.unfinished
    assert any(point.state == "finished" for point in found.points)


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("executor", ["inline", "processes", "simulated"])
@pytest.mark.parametrize("method", ["random", "grid"])
@pytest.mark.parametrize("trials", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_stopper_hangs_on_any_executor_all(lab, work, stop, executor, method, trials, seeds, slots):
    found = studied(lab, work, STOPS[stop], method, trials, seeds, executor, slots)
    assert not found.unfinished


@pytest.mark.timeout(120)
def test_asha_on_processes_ends_with_real_trials(lab):
    """The study that hung: no point reaches its end by itself."""
    lab.write(space={"train.optimizer.lr": {"log": [1e-3, 1e-1]}}, set={"train.epochs": 9}, execute={"workers": 2},
              search={"method": "random", "trials": 4, "stop": "asha"})  # fmt: skip
    found = lab.sweep("execute.on=processes")
    assert sorted(point.state for point in found.points).count("finished") == 1
    assert not found.unfinished


INSISTS = '''
from manyfit.study.search.decisions import Go


class Insists:
    """A stopper that never lets anything end."""

    def pauses(self, epochs: int):
        return [1]

    def decide(self, board):
        return [Go(point.number, 1) for point in board.points]
'''


@pytest.mark.timeout(60)
def test_the_driver_never_waits_with_nothing_busy(lab, monkeypatch):
    lab.write(
        space={"train.optimizer.lr": [0.1, 0.2]},
        search={"method": "grid", "seeds": 1},
        set={"train.epochs": 3},
    )
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "_hand_out", lambda self: None)
        with pytest.raises(RuntimeError, match="none of their trials can be assigned to the executor"):
            execute(load_study(lab.folder), Wish(quiet=True), lambda *_: Simulated(2, epochs=3))
    lab.clear()
    lab.project.write("src/odd.py", INSISTS)
    lab.write(space={"train.optimizer.lr": [0.1, 0.2]}, set={"train.epochs": 3},
              search={"method": "grid", "seeds": 1, "stop": {"class": "odd.Insists"}})  # fmt: skip
    found = execute(load_study(lab.folder), Wish(quiet=True), lambda *_: Simulated(2, epochs=3))
    assert len(found.points) == 2  # a stopper that takes back what was settled does not make it run for ever


# -- the ledger -----------------------------------------------------------------------------------


def trained(lab):
    lab.write(space={"train.optimizer.lr": [0.001, 0.01]}, search={"method": "grid", "seeds": 1})
    lab.sweep()
    return lab


CHANGES = [
    'update points set "values" = \'{"train.optimizer.lr": 0.5}\' where number = 0',
    "update trials set step = step + 1000",
    "update trials set value = 0.0",
    "update trials set curve = '[[1.0, 0.0]]'",
    "update trials set state = 'failed'",
    "update points set state = 'stopped', reason = 'x'",
    "update trials set epoch = 'many'",
    "update trials set seed = 'x'",
    "update trials set failure = '[]'",
    'update trials set failure = \'{"kind": "data"}\'',
    "update trials set id = '../../../escaped' where point = 0",
    "update points set \"values\" = '[1]'",
    "update points set attrs = 'null'",
    "update meta set value = '[]' where key = 'objective'",
    "update meta set value = '\"x\"' where key = 'seeds'",
    "update meta set value = '\"x\"' where key = 'seconds'",
    "update meta set value = '7' where key = 'base_values'",
    "delete from points where number = 0",
    "update points set granted = 'x'",
    "update trials set curve = '{}'",
    "update trials set step = -1",
    "update trials set epoch = 1e400",
]


def changed(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / "ledger.db")
    db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize(
    "statement", [*CHANGES[:8], *(pytest.param(s, marks=pytest.mark.soak) for s in CHANGES[8:])]
)
def test_a_changed_ledger_is_not_believed(lab, cli, statement):
    trained(lab)
    changed(lab.folder, statement)
    for words in (["status", lab.folder], ["status", lab.folder, "--json"], ["sweep", lab.folder]):
        answer = cli(*words)
        assert answer.code == 2, (words, answer.out, answer.err)
        assert "cannot be read" in answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "statement", [*CHANGES[:6], *(pytest.param(s, marks=pytest.mark.soak) for s in CHANGES[6:])]
)
def test_a_received_ledger_gives_no_traceback(lab, cli, statement, monkeypatch, tmp_path_factory):
    """Its seals do not hold here: what it claims is checked as far as it can be."""
    trained(lab)
    changed(lab.folder, statement)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for words in (
        ["status", lab.folder],
        ["status", lab.folder, "--json"],
        ["study", "stop", lab.folder, "0"],
    ):
        answer = cli(*words)
        assert "Traceback" not in answer.err, (statement, answer.err)
        assert answer.code in (0, 2)
    if "step + 1000" in statement:
        assert "does not agree with its run folders" in cli("status", lab.folder).err


MISSING = [
    "delete from trials",
    "delete from trials where point = 1",
    "delete from meta where key = 'base'",
    "delete from trials; delete from seals where row like 'trials%'",
    "delete from seals where row like 'count%'",
    "delete from points where number = 1; delete from trials where point = 1; delete from seals where row = 'points 1'",
    "create table t as select * from trials; delete from t where point = 1; insert into t select * from t where point = 0; "
    "drop table trials; alter table t rename to trials",
]


@pytest.mark.parametrize("statements", MISSING)
def test_rows_that_are_missing_are_missed(lab, cli, statements):
    trained(lab)
    for statement in statements.split(";"):
        changed(lab.folder, statement)
    for words in (["status", lab.folder], ["sweep", lab.folder]):
        answer = cli(*words)
        assert answer.code == 2, (words, answer.out, answer.err)


@pytest.mark.parametrize(
    "statement",
    [
        "update trials set state='finished', is_over=1, epoch=9, step=step, curve='[[2.0, 0.001]]', value=0.001",
        "update trials set value = 0.001",
        "update trials set step = 1000000 where point = 0",
        "update trials set seed = 0 where point = 0",
        "update trials set step = 1, epoch = 0.1 where state in ('finished', 'paused')",
        """update points set "values" = '{"train.optimizer.lr": 5}'""",
        "update trials set (value, curve) = (select lr, '[[1.0, ' || lr || ']]' from"  # which is measured, too
        ' (select json_extract("values", \'$."train.optimizer.lr"\') as lr from points where number = point))',
    ],
)
def test_a_received_ledger_is_compared_with_its_run_folders(lab, cli, statement):
    """Before a sweep believes it, and seals it."""
    trained(lab)
    changed(lab.folder, "drop table seals")
    changed(lab.folder, statement)
    for words in (["status", lab.folder], ["sweep", lab.folder], ["status", lab.folder]):
        assert cli(*words).code == 2, words
    (lab.folder / "ledger.db").unlink()
    lab.sweep()
    assert all(row[0] > 0.01 for row in lab.rows("select value from trials"))


@pytest.mark.parametrize(
    "stop", [None, *(pytest.param(s, marks=pytest.mark.soak) for s in ("halving", "asha"))]
)
def test_an_honest_ledger_from_elsewhere_agrees_with_its_run_folders(lab, cli, stop):
    """Values of every kind, also whole sub-configurations, are found in the folders as they were given."""
    optimizers = [{"class": "sgd", "lr": 0.1, "momentum": 0.9}, {"class": "adamw", "lr": 1e-3}]
    space = {
        "train.optimizer": optimizers,
        "train.scheduler": [None, {"class": "cosine"}],
        "zip": {"train.accumulate": [1, 2], "train.clip_norm": [1.0, 0.5]},
    }
    lab.write(
        space=space, search={"method": "grid", **({"stop": stop} if stop else {})}, set={"train.epochs": 3}
    )
    lab.sweep()
    table = lab.table()
    changed(lab.folder, "drop table seals")
    lab.folder.rename(lab.folder.with_name("moved"))
    lab.folder = lab.folder.with_name("moved")
    for words in (["status", lab.folder], ["sweep", lab.folder], ["status", lab.folder]):
        answer = cli(*words)
        assert answer.code == 0, answer.err
    assert lab.table() == table


@pytest.mark.parametrize(
    "statement",
    [
        "create view v as with recursive c(x) as (select 1 union all select x+1 from c) select * from c",
        "create trigger t after update on trials begin delete from points; end",
    ],
)
def test_what_sqlite_would_execute_in_a_ledger_is_refused(lab, cli, statement):
    trained(lab)
    changed(lab.folder, statement)
    for words in (["status", lab.folder], ["sweep", lab.folder]):
        answer = cli(*words)
        assert answer.code == 2
        assert "which manyfit did not make" in answer.err


def test_a_journal_that_names_another_file_deletes_nothing(lab, cli, tmp_path):
    """SQLite rolls back what a journal says, and deletes the journal of several databases that it names."""
    trained(lab)
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    ledger, name, magic = lab.folder / "ledger.db", str(victim).encode(), bytes.fromhex("d9d505f920a163d7")
    (size,) = struct.unpack(">H", ledger.read_bytes()[16:18])
    head = (magic + struct.pack(">5I", 0, 0, ledger.stat().st_size // size, 512, size)).ljust(512, b"\0")
    tail = struct.pack(">I", 0x40000000 // size + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    (lab.folder / "ledger.db-journal").write_bytes(head + tail)
    for words in (["status"], ["study", "export"], ["track", "sync"], ["sweep"]):
        answer = cli(*words, lab.folder, *(["--csv", tmp_path / "x.csv"] if words[-1] == "export" else []))
        assert answer.code == 2, (words, answer.err)
        assert "names another file" in answer.err
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "statement",
    [
        """update trials set state='failed', failure='{"kind":"user error","message":5,"traceback":"","group":""}'""",
        """update trials set state='failed', failure='{"kind":"user error","message":"","group":[1]}'""",
        """update points set "values"='{"train.epochs":"x"}'""",
        """update points set "values"='{"train.epochs":NaN}'""",
        r"""update points set "values"='{"a":"\ud800"}'""",
    ],
)
def test_strange_values_of_a_received_ledger_are_one_message(lab, cli, statement, tmp_path):
    trained(lab)
    changed(lab.folder, "drop table seals")
    changed(lab.folder, statement)
    for words in (["status", lab.folder], ["study", "export", lab.folder, "--csv", tmp_path / "x.csv"]):
        answer = cli(*words)
        assert answer.code == 2, answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize("name", ["ledger.db", "inbox"])
def test_no_verb_writes_behind_a_link_of_a_study(lab, cli, tmp_path, name):
    trained(lab)
    (lab.folder / "inbox").mkdir(exist_ok=True)
    shutil.move(lab.folder / name, tmp_path / "elsewhere")
    (lab.folder / name).symlink_to(tmp_path / "elsewhere")
    before = [path.name for path in tmp_path.rglob("elsewhere*")]
    answer = cli("study", "stop", lab.folder, "0")
    assert answer.code == 2
    assert "is a link" in answer.err
    if name == "ledger.db":
        assert cli("status", lab.folder).code == 2
    assert [path.name for path in tmp_path.rglob("elsewhere*")] == before
    assert not (tmp_path / "elsewhere").is_dir() or not list((tmp_path / "elsewhere").iterdir())


def test_a_loader_that_is_killed_is_not_the_fault_of_the_code():
    text = "DataLoader worker (pid 123) is killed by signal: Killed. "
    assert failure_of(RuntimeError(text)).kind == "infrastructure"
    text = "DataLoader worker (pid(s) 123, 124) exited unexpectedly"
    assert failure_of(RuntimeError(text)).kind == "infrastructure"
    assert failure_of(RuntimeError("something else")).kind == "user error"


ROGUE = """
import os, resource
import torch
from models import MLP


class Rogue(MLP):
    def __init__(self, hidden: int = 64, dropout: float = 0.0, mode: str = "") -> None:
        super().__init__(hidden, dropout)
        if mode == "dtype":
            torch.set_default_dtype(torch.float64)
        if mode == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        if mode == "folder":
            os.chdir("/")
            os.environ["MANYFIT_ROGUE"] = "1"
            os.umask(0o777)
        self.mode, self.seen = mode, 0

    def forward(self, images):
        self.seen += self.training
        if self.mode == "grad" and self.seen == 7:  # after the rehearsal, which would find it
            torch.set_grad_enabled(False)
        if self.mode == "fork" and self.seen == 14:
            os.fork()
            self.mode = ""
        if self.mode == "base" and self.seen == 14:
            raise type("Own", (BaseException,), {})("mine")
        return super().forward(images)
"""


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_what_a_trial_changes_in_its_process_ends_with_it(lab, executor):
    """The rehearsal comes first, with the modes of all of them."""
    (lab.root / "src/rogue.py").write_text(ROGUE)
    modes = ["", "grad", "dtype", "limit", "folder", "last"]
    lab.write(
        set={"model.class": "rogue.Rogue"}, search={"method": "grid"}, space={"model.mode": modes},
        execute={"on": executor, "workers": 1} if executor == "processes" else {"on": executor},
    )  # fmt: skip
    lab.sweep()
    found = {json.loads(values)["model.mode"]: (state, value) for values, state, value in lab.rows(
        'select "values", trials.state, trials.value from points join trials on trials.point = points.number')}  # fmt: skip
    assert found[""] == found["last"] == found["folder"]
    assert found[""][0] == "finished"
    assert found["grad"] != found[""]


def test_a_trial_that_forks_answers_once(lab):
    (lab.root / "src/rogue.py").write_text(ROGUE)
    lab.write(
        set={"model.class": "rogue.Rogue", "train.epochs": 5}, search={"method": "grid"}, space={"model.mode": ["", "fork", "base"]},
        execute={"on": "processes", "workers": 1},
    )  # fmt: skip
    lab.sweep()
    states = dict(
        lab.rows(
            'select points."values", trials.state from points join trials on trials.point = points.number'
        )
    )
    assert states['{"model.mode": ""}'] == states['{"model.mode": "fork"}'] == "finished"
    assert states['{"model.mode": "base"}'] == "failed"


@pytest.mark.parametrize("name", ["inbox", "base", "inbox/refused"])
def test_strange_things_in_the_place_of_folders(lab, cli, name, tmp_path):
    place = lab.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if name == "inbox/refused":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
        (lab.folder / "inbox/1-x.json").write_text("{}")
    else:
        os.mkfifo(place)
    answer = cli("sweep", lab.folder)
    assert answer.code == (0 if name == "inbox/refused" else 2), answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").iterdir())


FACTS = ("base", "aim", "budget", "stop", "modules", "rehearsed", "rehearsing", "seconds", "isolates", "space", "trials",
         "epochs", "sampler", "objective", "seeds", "base_values")  # fmt: skip
VALUES = ("[1]", '"x"', "{}", "nope", "-5", "null", '{"value": 1}')


@pytest.mark.parametrize("key", [*FACTS[:3], *(pytest.param(f, marks=pytest.mark.soak) for f in FACTS[3:])])
def test_strange_facts_give_no_traceback(lab, cli, key, tmp_path):
    trained(lab)
    shutil.copytree(lab.folder, tmp_path / "whole")
    for value in VALUES:
        shutil.rmtree(lab.folder)
        shutil.copytree(tmp_path / "whole", lab.folder)
        changed(lab.folder, "drop table seals")
        changed(lab.folder, f"insert or replace into meta values ('{key}', '{value}')")
        for words in (["status", lab.folder], ["sweep", lab.folder]):
            answer = cli(*words)
            assert "Traceback" not in answer.err, (key, value, words, answer.err)
            assert answer.code in (0, 2)


@pytest.mark.parametrize(
    "statement", ["drop table meta", "drop table points", "alter table trials drop column failure"]
)
def test_a_ledger_without_some_of_it_gives_no_traceback(lab, cli, statement):
    trained(lab)
    changed(lab.folder, "drop table seals")
    changed(lab.folder, statement)
    for words in (["status", lab.folder], ["sweep", lab.folder]):
        answer = cli(*words)
        assert answer.code == 2, (words, answer.err)
        assert "move it away" in answer.err


def test_a_kill_between_a_row_and_its_seal_loses_neither(lab):
    trained(lab)
    code = (
        "import os, sys; from manyfit.study.ledger.integrity import Seals; from manyfit.study.ledger.ledger import Ledger; "
        "from pathlib import Path; ledger = Ledger(Path(sys.argv[1])); "
        "Seals.put = lambda *a: os.kill(os.getpid(), 9); ledger.set('seconds', 77.0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(lab.folder / "ledger.db")], check=False)
    assert done.returncode == -9
    lab.sweep()
    assert read_only(lab.folder / "ledger.db")[1]["seconds"] != 77.0


@pytest.mark.parametrize("which", ["one", "all"])
def test_a_trial_whose_folder_is_gone_is_trained_again(lab, which):
    """Also one of a point that was given up."""
    lab.write(space={"train.optimizer.lr": [0.3, 0.1, 0.03]}, set={"train.epochs": 3},
              search={"method": "grid", "seeds": 2, "stop": "halving"})  # fmt: skip
    lab.sweep()
    before = lab.table()
    stopped = lab.rows(
        "select id from trials where point in (select number from points where state = 'stopped')"
    )
    gone = (
        [row[0] for row in stopped][:1]
        if which == "one"
        else [p.name for p in (lab.folder / "trials").iterdir()]
    )
    for name in gone:
        shutil.rmtree(lab.folder / "trials" / name)
    lab.sweep()
    assert lab.table() == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "def pauses(self, epochs): return itertools.count(1)\n    def decide(self, board): return []",
            "a sequence of integers",
        ),
        ("def pauses(self, epochs): return None\n    def decide(self, board): return []", "pauses failed"),
        ("def pauses(self, epochs): return [1]\n    def decide(self, board): return None", "decide failed"),
        (
            "def pauses(self, epochs): return [1]\n    def decide(self, board): return ['go']",
            "must return decisions",
        ),
        (
            "def pauses(self, epochs): return [1]\n    def decide(self, board): raise KeyError(1)",
            "decide failed: KeyError",
        ),
    ],
)
def test_a_stopper_that_is_wrong_is_named(lab, cli, code, says):
    lab.project.write("src/odd.py", f"import itertools\nclass Odd:\n    {code}\n")
    lab.write(space={"train.optimizer.lr": [0.1, 0.2]}, set={"train.epochs": 3},
              search={"method": "grid", "seeds": 1, "stop": {"class": "odd.Odd"}})  # fmt: skip
    answer = cli("sweep", lab.folder)
    assert answer.code in (1, 2)
    assert says in answer.err, answer.err
    assert "Traceback" not in answer.err


def test_strange_files_in_the_inbox_end_nothing(lab, cli):
    trained(lab)
    inbox = lab.folder / "inbox"
    (inbox / "refused").mkdir(exist_ok=True)
    deep = "[" * 900 + "]" * 900
    files = {
        "1.json": "junk", "2.json": '{"action": "add", "values": {"\\ud800": 1}}', "x" * 200 + ".json": "junk",
        "3.json": '{"action": "add", "values": {"model.hidden": ' + deep + "}}",
        "4.json": '{"action": "stop", "point": 99}', "5.json": "[]", "6.json": '{"action": "add", "values": 7}',
    }  # fmt: skip
    for name, text in files.items():
        (inbox / name).write_text(text)
    (Path(os.fsdecode(os.fsencode(inbox) + b"/\xff\xfe.json"))).write_text('{"action": "stop", "point": 0}')
    os.mkfifo(inbox / "refused" / "1.json.txt")
    (inbox / "refused" / "4.json").mkdir()
    signal.alarm(60)
    try:
        answer = cli("sweep", lab.folder)
    finally:
        signal.alarm(0)
    assert answer.code == 0, answer.err
    assert "Traceback" not in answer.err


def test_a_pipe_in_the_place_of_the_key(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "odd"))
    (tmp_path / "odd" / "manyfit").mkdir(parents=True)
    os.mkfifo(tmp_path / "odd" / "manyfit" / "key")
    trained(lab)


def test_a_received_study_goes_on_and_is_ones_own_then(lab, cli, monkeypatch, tmp_path_factory):
    trained(lab)
    before = lab.table()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    lab.sweep()
    assert lab.table() == before
    changed(lab.folder, CHANGES[1])
    assert cli("status", lab.folder).code == 2


def test_a_ledger_without_seals_is_read(lab):
    """As an older version has written it."""
    trained(lab)
    changed(lab.folder, "drop table seals")
    assert len(read_only(lab.folder / "ledger.db")[0]) == 2
    lab.sweep()
    assert lab.rows("select count(*) from seals")[0][0] > 4


# -- many points ----------------------------------------------------------------------------------


def large(path: Path, count: int) -> None:
    with Ledger(path) as ledger, ledger.transaction():
        ledger.set("objective", {"metric": "val_loss", "mode": "min"})
        ledger.set("seeds", [0])
        ledger.set("epochs", 9)
        for i in range(count):
            point = ledger.add(
                Candidate(f"{i:012x}", {"model.hidden": i, "train.optimizer.lr": i / 7}, "grid"), None
            )
            trial = ledger.add_trial(point, 0)
            trial.curve = tuple((float(e), (i * 7919 % count) + 1 / e) for e in range(1, 10))
            trial.state, trial.step, trial.epoch, trial.over = "finished", 90, 9.0, True
            trial.value, point.state = trial.curve[-1][1], "finished"
            ledger.save_trial(trial)
            ledger.save_point(point)


@pytest.mark.soak
def test_ten_thousand_trials_are_shown_at_once(tmp_path):
    """In 2 s where nothing else runs; here in little more than ten trials take."""
    took = {}
    for count in (10, 10_000):
        folder = tmp_path / f"{count}" / "studies" / "large"
        folder.mkdir(parents=True)
        large(folder / "ledger.db", count)
        took[count] = min(shown_in(folder, count) for _ in range(2))
    assert took[10_000] - took[10] < 6  # it was over a minute


def shown_in(folder: Path, count: int) -> float:
    words = [sys.executable, "-m", "manyfit", "status", str(folder)]
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{count} finished" in done.stdout
    return time.perf_counter() - began


def board(count: int, epochs: int = 9) -> Board:
    records = []
    for i in range(count):
        trial = TrialRecord(f"{i:012x}", i, 0, "paused", 10, 1.0)
        trial.curve = ((1.0, float(i * 7919 % count)),)
        records.append(PointRecord(i, f"{i:012x}", {}, "grid", granted=1, trials=[trial]))
    return Board(records, 1, epochs)


@pytest.mark.parametrize("stopper", [Asha(), Median(), Halving(), Patience()], ids=lambda s: type(s).__name__)
def test_a_decision_takes_time_linear_in_the_points(stopper):
    def took(count):
        here = board(count)
        stopper.decide(here)
        best = 1e9
        for _ in range(7):
            began = time.thread_time()  # others may use the cores
            stopper.decide(here)
            best = min(best, time.thread_time() - began)
        return best

    assert took(8000) / took(1000) < 24  # linear is 8, quadratic 64


def test_the_median_without_one_is_the_median_of_the_others():
    import random
    import statistics

    from manyfit.study.search.stoppers import median_without

    rng = random.Random(0)
    for count in range(2, 40):
        values = [rng.choice([0.5, 1.0, 2.5, 7.0]) + rng.random() * (count % 3) for _ in range(count)]
        for value in values:
            others = list(values)
            others.remove(value)
            assert median_without(sorted(values), value) == pytest.approx(statistics.median(others))


# -- folders that move, pipes, leftovers ----------------------------------------------------------

SLOW = """
import time
from torch import nn


class Slow(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, 10))

    def forward(self, x):
        time.sleep(0.03)
        return self.layers(x)
"""


def slow(lab):
    lab.project.write("src/slow.py", SLOW)
    lab.project.config(lab.project.changed(model={"class": "slow.Slow", "hidden": 4}))
    lab.write(space={"train.optimizer.lr": [0.001, 0.01, 0.1]}, search={"method": "grid", "seeds": 1},
              set={"train.epochs": 5}, execute={"workers": 2})  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on", ["inline", pytest.param("processes", marks=pytest.mark.soak)])
def test_a_study_that_is_moved_while_it_runs_is_not_made_anew(lab, on):
    slow(lab)
    running = quick.start(["sweep", lab.folder, f"execute.on={on}"], lab.root)
    deadline = time.monotonic() + 60
    while not list(lab.folder.glob("trials/*/checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    moved = lab.folder.with_name("moved")
    lab.folder.rename(moved)
    err = running.stderr.read()
    assert running.wait(timeout=60) == 1, err
    assert "was moved or removed while the study was running" in err
    time.sleep(0.5)
    assert not lab.folder.exists()
    lab.folder = moved
    found = lab.sweep("execute.on=processes")
    assert [point.state for point in found.points] == ["finished"] * 3
    assert all(path.is_dir() for point in found.points for path in point.folders.values())


def test_a_moved_study_is_noticed_by_the_driver(lab):
    class Moves(Simulated):
        keeps_folders = False

        def wait(self, timeout=None, wake=()):
            found = super().wait(timeout, wake)
            if any(outcome.step for outcome in found):
                lab.folder.rename(lab.folder.with_name("moved"))
            return found

    lab.write(space={"train.optimizer.lr": [0.1, 0.2]}, search={"method": "grid", "seeds": 1})
    with pytest.raises(StudyMoved):
        execute(load_study(lab.folder), Wish(quiet=True), lambda *_: Moves(1, epochs=2))
    lab.folder = lab.folder.with_name("moved")
    assert {row[0] for row in lab.rows("select state from trials")} == {"running", "waiting"}


def test_a_study_that_was_killed_before_its_first_point_is_not_finished(lab, cli):
    Ledger(lab.folder / "ledger.db").close()
    answer = cli("status", lab.folder)
    assert answer.code == 0
    assert "is unfinished" in answer.out
    assert "finished" not in answer.out.replace("unfinished", "")


def test_a_finished_study_can_be_copied(lab, tmp_path):
    trained(lab)
    (lab.folder / "inbox").mkdir(exist_ok=True)
    shutil.copytree(lab.folder, tmp_path / "copy")
    assert not (lab.folder / "inbox" / ".bell").exists()


def test_the_pipe_of_an_older_version_is_removed(lab):
    (lab.folder / "inbox").mkdir(parents=True)
    os.mkfifo(lab.folder / "inbox" / ".bell")
    trained(lab)
    assert not (lab.folder / "inbox" / ".bell").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has addresses that are no files")
def test_the_bell_rings(tmp_path):
    import select

    inbox = Inbox(tmp_path / "inbox")
    send_command(tmp_path / "inbox", Command("stop", 3))
    assert inbox.bell is not None
    assert select.select([inbox.bell], [], [], 5)[0]
    assert [command.point for command in inbox.commands()] == [3]
    assert not select.select([inbox.bell], [], [], 0)[0]
    inbox.close()
    send_command(tmp_path / "inbox", Command("stop", 4))  # nobody listens


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "metrics.jsonl", ".lock", "exported/model.json", "checkpoints",
     *(pytest.param(name, marks=pytest.mark.soak) for name in (
         "config.resolved.yaml", "provenance.json", "run.log", "failure.json", "reports/summary.json",
         "reports/test.csv", "exported/model.safetensors"))],
)  # fmt: skip
def test_a_pipe_in_the_place_of_a_file_hangs_no_verb(project, cli, name):
    import manyfit

    manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
    place = project.run / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    os.mkfifo(place)
    for words in (["list"], ["show", "runs/a"], ["predict", "runs/a"], ["evaluate", "runs/a"], ["export", "runs/a"],
                  ["check", "runs/a"], ["config", "show", "runs/a"], ["compare", "runs/a", "runs/a"],
                  ["track", "sync", "runs/a"], ["train", "runs/a"], ["train", "runs/a", "train.epochs=2"]):  # fmt: skip
        signal.alarm(30)
        try:
            answer = cli(*words)
        finally:
            signal.alarm(0)
        assert "Traceback" not in answer.err, (words, answer.err)
        assert answer.code in (0, 1, 2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name", ["ledger.db", "ledger.db-wal", "study.yaml", "study.log", ".lock", "provenance.json", "best"]
)
def test_a_pipe_in_the_place_of_a_file_hangs_no_study(lab, cli, name):
    trained(lab)
    place = lab.folder / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    os.mkfifo(place)
    for words in (["status", lab.folder], ["sweep", lab.folder], ["study", "stop", lab.folder, "0"]):
        signal.alarm(30)
        try:
            answer = cli(*words)
        finally:
            signal.alarm(0)
        assert "Traceback" not in answer.err, (words, answer.err)


def test_leftovers_of_a_process_that_was_killed_go(lab):
    trained(lab)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    pid = int(dead.stdout)
    trial = next((lab.folder / "trials").iterdir())
    left = [
        lab.folder / f".provenance.json.{pid}.tmp",
        lab.folder / "base" / f".x.yaml.{pid}.tmp",
        trial / f".config.resolved.yaml.{pid}.tmp",
        trial / "reports" / f".summary.json.{pid}.tmp",
        trial / ".exported.tmp",
        trial / ".reports.old",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if path.suffix == ".old" or path.name == ".exported.tmp" else path.write_text("x")
    kept = trial / f".mine.{os.getpid()}.tmp"
    kept.write_text("of a process that lives")
    hidden = trial / ".exported.old"
    shutil.rmtree(trial / "exported", ignore_errors=True)
    hidden.mkdir()
    lab.write(
        space={"train.optimizer.lr": [0.001, 0.01]},
        search={"method": "grid", "seeds": 1},
        set={"train.epochs": 3},
    )
    lab.sweep()
    assert not [path for path in left if path.exists()]
    assert kept.exists()
    assert not hidden.exists()
    assert (trial / "exported").is_dir()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("most", "on"),
    [
        (24, "processes"),
        pytest.param(24, "inline", marks=pytest.mark.soak),
        *(
            pytest.param(n, on, marks=pytest.mark.soak)
            for n in (14, 16, 20, 32, 48)
            for on in ("inline", "processes")
        ),
    ],
)
def test_few_open_files_give_one_message(lab, most, on):
    trained_words = f"ulimit -n {most}; exec {sys.executable} -m manyfit sweep {lab.folder} execute.on={on}"
    lab.write(
        space={"train.optimizer.lr": [0.001]}, search={"method": "grid", "seeds": 2}, execute={"workers": 2}
    )
    done = subprocess.run(
        ["bash", "-c", trained_words], capture_output=True, text=True, timeout=100, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2)
    if done.returncode:
        assert "open files" in done.stderr, done.stderr
