"""A worker process: it receives units from a pipe and sends their outcomes, until the pipe closes."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from manyfit.core.files import check_file
from manyfit.core.processes import die_with_server
from manyfit.core.redaction import clean_bytes
from manyfit.core.signals import watch_signals
from manyfit.study.executors import server
from manyfit.study.executors.base import Work, attempt
from manyfit.study.executors.messages import receive, send
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Outcome, Trial, Unit

MOST_CLEANED: Final = 1 << 26
"""The largest output, in bytes, that is searched for secrets."""
OUTPUT: Final = "output.log"
"""The file in the folder of a trial with the output of its code."""


@dataclass(frozen=True)
class Place:
    """The resources of a worker: cores, GPU and memory."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None
    """The value of CUDA_VISIBLE_DEVICES; None leaves it unchanged."""
    memory: int | None = None
    name: str = ""
    """The name by which a unit requests this worker."""


def serve(pipe: Connection, work: Work, place: Place, environment: Mapping[str, str]) -> None:
    """Execute units until the pipe closes, with the environment variables of the driver."""
    for name in server.BEGAN.keys() - environment.keys():
        os.environ.pop(name, None)
    os.environ.update(environment.items() - server.BEGAN.items())
    die_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which asks its workers to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    settle(place)
    gc.freeze()  # imported objects stay; scanning them after every unit would be slow
    is_first = True
    try:
        send(pipe, "ready")
        while True:
            unit = receive(pipe)
            if not isinstance(unit, Unit):
                continue  # a stop request for trials that have ended meanwhile
            is_full = False
            for outcome in work_on(unit, work, pipe):
                send(pipe, outcome)
                is_full |= outcome.failure is not None and outcome.failure.kind == "out of memory"
            if is_full:
                return  # the state of the memory is unknown; a new worker takes over
            gc.collect()
            if is_first:
                gc.freeze()  # what the first unit has imported
                is_first = False
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def work_on(unit: Unit, work: Work, pipe: Connection) -> Iterator[Outcome]:
    """Execute one unit; signals ask it to stop, and its output goes to the folders of its trials.

    After the last outcome, the driver may send the next unit: `listening`, which also reads the pipe, must
    have ended by then.
    """
    last: Outcome | None = None
    with watch_signals() as signals:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = UnitWatch(signals)
        around, tell = functools.partial(capture_output, unit), functools.partial(send, pipe)
        with listening(unit, watch, pipe):
            for count, outcome in enumerate(attempt(work, unit, watch, tell, around), 1):
                if count == len(unit.trials):
                    last = outcome
                else:
                    yield outcome
    assert last is not None
    for trial in unit.trials if len(unit.trials) > 1 and unit.purpose != "rehearse" else ():
        # Not after each turn: a child process of a trial may still write to the file.
        with contextlib.suppress(OSError):
            tidy_output(Path(trial.folder))
    yield last


@contextlib.contextmanager
def listening(unit: Unit, watch: UnitWatch, pipe: Connection) -> Iterator[None]:
    """Receive stop requests for some trials of a unit while others train; a single one is sent a signal."""
    if len(unit.trials) == 1:
        yield
        return
    reading, writing = os.pipe()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while reading not in wait([pipe, reading]):
                watch.asked.update(receive(pipe))

    thread = threading.Thread(target=listen, name="manyfit-listener", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(writing, b"!")
        thread.join()
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def capture_output(unit: Unit, trial: Trial) -> Iterator[None]:
    """Redirect output, including that of C code and of a crash, to the trial's folder."""
    if unit.purpose == "rehearse":  # it has no folder
        with tempfile.TemporaryDirectory(prefix="manyfit-") as place:
            try:
                with _into(Path(place)):
                    yield
            finally:
                file = Path(place) / OUTPUT
                print(file.read_text(errors="replace") if file.exists() else "", end="", file=sys.stderr)
        return
    folder = Path(trial.folder)
    folder.mkdir(exist_ok=True)  # without parents: the study may have been moved away
    with _into(folder, tidy=len(unit.trials) == 1):
        yield


@contextlib.contextmanager
def _into(folder: Path, tidy: bool = True) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    check_file(folder / OUTPUT)
    file = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        faulthandler.enable(2)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        for number, before in zip((1, 2), saved, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(file)
        if tidy:
            with contextlib.suppress(OSError):
                tidy_output(folder)


def tidy_output(folder: Path) -> None:
    """Remove the output file if it is empty, and redact secrets in it."""
    file = folder / OUTPUT
    check_file(file)
    if not file.stat().st_size:
        file.unlink()
        return
    if file.stat().st_size <= MOST_CLEANED:
        data = file.read_bytes()
        cleaned = clean_bytes(data)
        if cleaned != data:
            file.write_bytes(cleaned)


def settle(place: Place) -> None:
    """Apply the cores, the GPU and the memory limit of this worker."""
    if place.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place.gpu
    if place.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    if place.memory is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (place.memory, hard))
