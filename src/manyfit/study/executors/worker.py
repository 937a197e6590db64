"""A worker process: it takes units from a pipe, works on them, and answers, until the pipe closes."""

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
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Outcome, Trial, Unit

MOST_CLEANED: Final = 1 << 26
"""The most bytes of output that are looked through."""
OUTPUT: Final = "output.log"
"""In the folder of a trial: what its code has printed."""


@dataclass(frozen=True)
class Place:
    """Where a worker may compute, and how much it may use."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None
    """The value of CUDA_VISIBLE_DEVICES; None leaves it as it is."""
    memory: int | None = None
    name: str = ""
    """What a unit calls it that must be executed here."""


def serve(pipe: Connection, work: Work, place: Place, environment: Mapping[str, str]) -> None:
    """Work until nobody wants anything any more, with the environment variables of the driver."""
    for name in server.BEGAN.keys() - environment.keys():
        os.environ.pop(name, None)
    os.environ.update(environment.items() - server.BEGAN.items())
    die_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the driver, which asks its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    settle(place)
    gc.freeze()  # what was imported stays; looking through it after every unit would take long
    try:
        pipe.send("ready")
        while True:
            unit = pipe.recv()
            if not isinstance(unit, Unit):
                continue  # a request to trials that have ended meanwhile
            is_full = False
            for outcome in work_on(unit, work, pipe):
                pipe.send(outcome)
                is_full |= outcome.failure is not None and outcome.failure.kind == "out of memory"
            if is_full:
                return  # what memory is left, and in which state, nobody knows
            gc.collect()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def work_on(unit: Unit, work: Work, pipe: Connection) -> Iterator[Outcome]:
    """Work on one unit; signals ask it to end, and its output goes into the folders of its trials.

    With its last outcome, the driver may send the next unit: until then nobody else reads the pipe.
    """
    last: Outcome | None = None
    with watch_signals() as signals:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = UnitWatch(signals)
        around = functools.partial(capture_output, unit)
        with listening(unit, watch, pipe):
            for count, outcome in enumerate(attempt(work, unit, watch, pipe.send, around), 1):
                if count == len(unit.trials):
                    last = outcome
                else:
                    yield outcome
    assert last is not None
    yield last


@contextlib.contextmanager
def listening(unit: Unit, watch: UnitWatch, pipe: Connection) -> Iterator[None]:
    """Hear which trials of a unit shall end, while the others are trained; one alone is ended by a signal."""
    if len(unit.trials) == 1:
        yield
        return
    reading, writing = os.pipe()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while reading not in wait([pipe, reading]):
                watch.asked.update(pipe.recv())

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
    """Send what is printed, also by C code and by a crash, into the trial's folder."""
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
    folder.mkdir(exist_ok=True)  # not those above it: a study may have been moved away
    with _into(folder):
        yield


@contextlib.contextmanager
def _into(folder: Path) -> Iterator[None]:
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
        with contextlib.suppress(OSError):
            tidy_output(folder)


def tidy_output(folder: Path) -> None:
    """Remove what was not written to, and clean what code has printed of the secrets that it was given."""
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
    """Take the cores, the GPU and the memory that this worker was given."""
    if place.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place.gpu
    if place.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    if place.memory is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (place.memory, hard))
