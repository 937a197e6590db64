"""What others have written cannot steer a terminal, and strange names and locales end nothing half-way."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import shlex
import subprocess
import sys

import pytest
from tests.examples.quick import run

import manyfit
from manyfit.cli.log_level import set_log_level
from manyfit.core.quiet import PROGRESS
from manyfit.core.text import printable, printable_line

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\x9b1A"


def harmless(*texts: str) -> bool:
    return not any(c in text for text in texts for c in "\x1b\x07\x9b\u202e\x00\x08")


def test_control_characters_are_written_out():
    assert printable("a\x1b[31m\x07b\n\tc\u202ed\udcff") == "a\\x1b[31m\\x07b\n\tc\\u202ed\\udcff"
    assert printable_line("a\nb\rc\td") == "a\\nb\\rc\\td"
    assert printable("größer → 1 ± 2 …") == "größer → 1 ± 2 …"
    assert harmless(printable("".join(map(chr, range(0x110000 // 16)))))


MODEL = """
from torch import nn


class Talks(nn.Module):
    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.text, self.steps = text, 0

    def forward(self, x):
        self.steps += 1
        if self.steps > 6 and self.text.startswith("raise"):
            raise ValueError(self.text)
        return self.layers(x)
"""


def test_terminal_escapes_do_not_get_through(project, cli):
    """In run names, failure messages, values of configs, unknown keys, class paths, and what was typed."""
    project.write("src/talks.py", MODEL)
    name = f"runs/x{ESCAPE}"
    tree = project.changed(
        model={"class": "talks.Talks", "text": f"raise {ESCAPE}"}, project_name=f"p{ESCAPE}"
    )
    project.config(tree, f"x{ESCAPE}")
    answers = [cli("train", name), cli("show", name), cli("list"), cli("config", "show", name, "--origin")]
    assert answers[0].code == 1
    log = (project.root / name / "run.log").read_text()
    project.config({**tree, f"key{ESCAPE}": 1, "model": {"class": f"talks.X{ESCAPE}"}}, "bad")
    answers += [cli("train", "runs/bad"), cli("check", "runs/bad"), cli("train", f"runs/none{ESCAPE}"),
                cli("train", "runs/a", f"train.{ESCAPE}=1"), cli(f"verb{ESCAPE}"), cli("train", f"--opt{ESCAPE}"),
                cli("predict", name), cli("compare", name, "runs/a"), cli("export", name), cli("check", name),
                cli("submit", name, "--print"), cli("track", "sync", name)]  # fmt: skip
    assert harmless(log, *(answer.out + answer.err for answer in answers))
    assert any("\\x1b[31m" in answer.err for answer in answers)


def test_terminal_escapes_of_a_study(project, cli):
    project.write("src/talks.py", MODEL)
    project.config(project.changed(model={"class": "talks.Talks", "text": ""}))
    study = {"base": "../../runs/a/config.yaml", "objective": {"metric": "val_loss", "mode": "min"}, "search": {"method": "grid"},
             "space": {"model.text": [f"a{ESCAPE}", f"raise {ESCAPE}"]}, "set": {"train.epochs": 1},
             "execute": {"on": "inline"}}  # fmt: skip
    project.write(f"studies/s{ESCAPE}/study.yaml", json.dumps(study))
    place = f"studies/s{ESCAPE}"
    answers = [cli("sweep", place), cli("status", place), cli("status", place, "--traceback", "--all")]
    answers += [cli("status", place, "--format", form) for form in ("md", "latex", "csv")]
    assert answers[0].code == 1, answers[0].err
    assert harmless(*(answer.out + answer.err for answer in answers))


CLOSED = [(["list"], ">&-"), (["--help"], ">&- 2>&-")]
MORE_CLOSED = [(words, where) for words in (["--version"], ["show", "runs/a"], ["completion", "bash"], ["list"])
               for where in (">&-", "2>&-", ">&- 2>&-")]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "where"),
    [*CLOSED, *(pytest.param(*each, marks=pytest.mark.soak) for each in MORE_CLOSED)],
    ids=str,
)
def test_streams_that_are_closed(project, words, where):
    if words[0] == "show":
        manyfit.train("runs/a", callbacks=[])
    line = f"{sys.executable} -m manyfit {' '.join(words)} {where}"
    done = subprocess.run(line, shell=True, cwd=project.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_notes_that_cannot_be_printed_end_nothing(project):
    line = f"{sys.executable} -m manyfit train runs/a train.epochs=1 2>/dev/full"
    assert subprocess.run(line, shell=True, cwd=project.root, check=False).returncode == 0
    assert not (project.run / "failure.json").exists()


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-"])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(project, where):
    line = f"{sys.executable} -m manyfit show nope {where}"
    assert subprocess.run(line, shell=True, cwd=project.root, check=False).returncode == 2


def test_a_script_has_no_lines_of_a_name(project, cli):
    name = "runs/x\ntouch owned\n#"
    project.config(project.changed(), "x\ntouch owned\n#")
    answer = cli("submit", name, "--print")
    assert "touch owned" in answer.out  # inside of quotes alone
    assert "touch" not in shlex.split(answer.out, comments=True)
    assert len([line for line in answer.out.splitlines() if line.startswith("#SBATCH")]) > 3


def test_rows_for_programs_are_as_they_are(project, capsys):
    """What is piped into a file is data; ids are kept as the source gives them."""
    project.write(
        "src/odd.py",
        "import numpy as np\nfrom manyfit.data import ArraySource\nclass Data:\n    batch_size = 4\n"
        "    def source(self, split):\n"
        "        return ArraySource(np.zeros((4, 64), np.float32), np.arange(4), ['=1+1', '@x', '-2', '\\x1b[31m'])\n",
    )
    project.config(project.changed(data={"class": "odd.Data", "allow_overlap": True}))
    manyfit.train("runs/a", ["train.epochs=1"], callbacks=[])
    out = run("manyfit predict runs/a", project.root).stdout
    assert [row[0] for row in csv.reader(io.StringIO(out))] == ["id", "=1+1", "@x", "-2", "\x1b[31m"]
    with (project.run / "reports/test.csv").open(newline="") as file:
        assert [row[0] for row in csv.reader(file)][1:] == ["=1+1", "@x", "-2", "\x1b[31m"]


PLAIN = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [pytest.param("a", marks=pytest.mark.soak), "größe", pytest.param("b\udcff", marks=pytest.mark.soak)],
)
def test_without_unicode_nothing_ends_half_way(project, name):
    """A locale without UTF-8, and names that are not UTF-8."""
    place = os.fsencode(project.root) + b"/runs/" + os.fsencode(name)
    if name != "a":
        os.rename(os.fsencode(project.run), place)  # noqa: PTH104
    for environment in (PLAIN, {}) if "\udcff" in name else (PLAIN,):
        words = [sys.executable, "-m", "manyfit"]
        verbs = [[b"train"], [b"show"], [b"predict"]] if name == "a" else [[b"train"]]
        for verb in verbs:
            done = subprocess.run(
                [*words, *verb, place], env={**os.environ, **environment}, capture_output=True, check=False
            )
            assert b"Traceback" not in done.stderr, (verb, done.stderr.decode(errors="replace"))
            refused = verb != [b"show"] and ("\udcff" in name or (environment and name != "a"))
            assert done.returncode == (2 if refused else 0), (verb, environment, done.stderr)
            assert (b"not UTF-8 here" in done.stderr) == bool(refused and verb == [b"train"])
    if "\udcff" in name:
        assert os.listdir(place) == [b"config.yaml"]  # noqa: PTH208


@pytest.mark.parametrize(("level", "is_terminal", "shown"), [
    ("WARNING", True, True), ("WARNING", False, False), ("ERROR", True, False), ("INFO", False, True),
], ids=str)  # fmt: skip
def test_a_terminal_shows_what_takes_long(level, is_terminal, shown, monkeypatch, capsys):
    log = logging.getLogger("manyfit")
    before = log.handlers[:], log.level, log.propagate
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    try:
        set_log_level(level)
        log.setLevel(logging.INFO)  # as while a run writes its log
        log.info("compiling the step", extra=PROGRESS)
        log.info("something else")
    finally:
        log.handlers[:], log.propagate = before[0], before[2]
        log.setLevel(before[1])
    err = capsys.readouterr().err
    assert ("compiling the step" in err) == shown and ("something else" in err) == (level == "INFO")
