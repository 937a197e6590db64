"""Runs the lines of a page as a shell would; lines that only call manyfit skip the seconds that imports take."""

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

PRELOADED = ["manyfit.cli", "manyfit.run.train", "manyfit.run.check", "manyfit.run.finish", "manyfit.run.again",
             "manyfit.study.sweep", "manyfit.run.mirror", "tensorboard.summary.writer.event_file_writer",
             "torch._dynamo"]  # fmt: skip
CHILD = "quick_child"
SPECIAL = set("|&;<>$`*?(){}\n~")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(line, folder):
    """Run one line in a folder: in a process of its own, always."""
    words = shlex.split(line) if not SPECIAL & set(re.sub("'[^']*'", "", line)) else []
    if words[:1] != ["manyfit"]:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            line, shell=True, cwd=folder, capture_output=True, text=True, env=environment, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryDirectory() as place:
        files = Path(place) / "out", Path(place) / "err"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        given = {"GIVEN": (words[1:], str(folder), *map(str, files))}
        process = context.Process(target=runpy.run_path, args=(__file__, given, CHILD))
        process.start()
        process.join()
        out, err = (file.read_text() if file.exists() else "" for file in files)
        return Done(process.exitcode, out, err)


def call(words, folder, out, err):
    os.chdir(folder)
    for name, number in ((out, 1), (err, 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sys.argv = ["manyfit", *words]
    from manyfit.cli import main

    try:
        main(words)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


if __name__ == CHILD:
    call(*GIVEN)  # noqa: F821 - given by whoever runs this file
