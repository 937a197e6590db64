"""Runs the lines of a page as a shell would; calls of manyfit and of scripts skip the seconds of imports."""

import atexit
import contextlib
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

PRELOADED = ["manyfit.cli", "manyfit.run.train", "manyfit.run.check", "manyfit.run.session.finish", "manyfit.run.reuse",
             "manyfit.study.sweep", "manyfit.run.callbacks.mirrors", "tensorboard.summary.writer.event_file_writer",
             "torch._dynamo"]  # fmt: skip
CHILD = "quick_child"
VARIABLE = re.compile(r"[A-Z_]+=")
KEPT = {"PWD", "OLDPWD", "PYTEST_CURRENT_TEST"}
SPECIAL = set("|&;<>$`*?(){}\n~")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(line, folder):
    """Run one line in a folder: in a process of its own, always."""
    words = shlex.split(line) if not SPECIAL & set(re.sub("'[^']*'", "", line)) else []
    variables = {}
    while words and VARIABLE.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if words[:1] not in (["manyfit"], ["python"]):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            line, shell=True, cwd=folder, capture_output=True, text=True, env=environment, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryDirectory() as place:
        files = Path(place) / "out", Path(place) / "err"
        process = begin(words, variables, folder, *files)
        process.join()
        out, err = (file.read_text() if file.exists() else "" for file in files)
        return Done(process.exitcode, out, err)


def begin(words, variables, folder, out, err, session=False):
    """Start a process for some words, with the environment of this moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    here = {name: value for name, value in os.environ.items() if name not in KEPT}
    given = {"GIVEN": (words, {**here, **variables}, str(folder), str(out), str(err), session)}
    process = context.Process(target=runpy.run_path, args=(__file__, given, CHILD))
    process.start()
    return process


class Started:
    """A command that runs, in a process of its own; used like a `Popen` whose stderr is a pipe."""

    def __init__(self, words, folder, session=False):
        self._place = tempfile.TemporaryDirectory()
        pipe = f"{self._place.name}/err"
        os.mkfifo(pipe)
        self._process = begin(words, {}, folder, os.devnull, pipe, session)
        atexit.register(self.kill)  # which a failed test may have left running
        self.pid = self._process.pid
        self.stderr = open(pipe)  # noqa: PTH123, SIM115

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("manyfit", timeout)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def start(words, folder, session=False):
    """Start `manyfit` with these words in a folder; it may have its own session."""
    return Started(["manyfit", *map(str, words)], folder, session)


def call(words, variables, folder, out, err, session=False):
    if session:
        os.setsid()
    os.chdir(folder)
    os.environ.update(variables)
    for name, number in ((out, 1), (err, 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sys.argv = words
    try:
        if words[0] == "python":
            sys.argv = words[1:]
            sys.path.insert(0, folder)
            runpy.run_path(words[1], run_name="__main__")
        else:
            from manyfit.cli import main

            main(words[1:])
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


if __name__ == CHILD:
    call(*GIVEN)  # noqa: F821 - given by whoever runs this file
