"""The worker of a Ray cluster: an actor that supervises one worker process on its node."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, Final, TypeAlias

from manyfit.core.errors import ManyfitError
from manyfit.core.redaction import find_secrets, remember
from manyfit.core.version import __version__
from manyfit.study.executors.base import Work
from manyfit.study.executors.node_files import Delivered, NodeFiles, list_made, same_file
from manyfit.study.executors.part_supply import PartRequest, PartSupply
from manyfit.study.executors.processes import PRELOADED, WORKER, Processes
from manyfit.study.executors.state_transfer import Freight, Handle, answer_probe
from manyfit.study.executors.worker import OUTPUT, Place
from manyfit.study.work.unit_watch import Tell, UnitWatch
from manyfit.study.work.units import Failure, Outcome, Progress, Trial, Unit

WorkerReport: TypeAlias = Progress | Outcome | PartRequest
"""What a worker tells the driver."""
LONGEST_FOLDER: Final = 60
"""Characters of a folder for sockets, whose whole names may have about 100."""
MOST_OUTPUT: Final = 1 << 20
"""The last bytes of the output of a trial that are sent to the driver."""


@dataclass(frozen=True)
class NodeFacts:
    """What a worker says about its node."""

    host: str
    versions: Mapping[str, str]
    sees: frozenset[str]
    """The files of the driver that the node has at the same place."""
    made: frozenset[str] = frozenset()
    """The keys of prepared rows that ETL has made on the node."""
    answer: bytes = b""
    """The answer to a probe of the driver: whether it is on the same machine."""


@dataclass(frozen=True)
class Equipment:
    """What a worker needs before it can execute units."""

    work: bytes
    """The pickled work, which only the worker process opens."""
    files: Sequence[Delivered] = ()
    """The files of the project, and data that the node does not have."""
    base: str = ""
    """The base config, relative to the project."""
    cwd: str = ""
    """The working directory, relative to the project."""
    project: str = ""
    """The folder of the project on the driver's machine, for messages."""
    memory: int | None = None
    timeout: float | None = None
    threads: int = 1

    def for_units(self, memory: int | None, timeout: float | None, threads: int) -> Equipment:
        """Return it with the limits of a unit."""
        return replace(self, memory=memory, timeout=timeout, threads=threads)


def versions_here() -> dict[str, str]:
    """Return the versions that must be the same on every node."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "manyfit": __version__}
    for package in ("torch", "ray"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package).partition("+")[0]
    return found


def introduce_node(wanted: Sequence[tuple[str, int, int]] = (), probe: Handle | None = None) -> NodeFacts:
    """Return facts about the node of this process; `wanted` are files of the driver, with sizes and times."""
    sees = frozenset(path for path, size, changed in wanted if same_file(Path(path), size, changed))
    host = platform.node() or socket.gethostname()
    return NodeFacts(host, versions_here(), sees, list_made(), answer_probe(probe))


@dataclass(frozen=True)
class AwayWork:
    """The work of a worker process on a node: it opens what arrives, and packs what it returns."""

    work: bytes
    base: str = ""
    """The file with the base config on this node."""
    paths: tuple[str, str] = ("", "")
    """The folder of the project on this node and on the driver's machine."""
    secrets: tuple[str, ...] = ()
    """The environment variables whose values are hidden in everything that is written."""
    _opened: list[Work] = field(default_factory=list, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _open(self) -> Work:
        if not self._opened:
            for name in self.secrets:
                remember(name, os.environ[name])
            if self.base:
                activate_sources(self.base)  # classes in the work may refer to modules there
            work = pickle.loads(self.work)
            self._opened.append(replace(work, base=self.base) if self.base else work)
        return self._opened[0]

    @property
    def enters_scopes(self) -> bool:
        """As the work itself."""
        return bool(getattr(self._open(), "enters_scopes", False))

    def __call__(self, unit: Unit, watch: UnitWatch, tell: Tell) -> Iterator[Outcome]:
        """Do the work on a unit."""

        def pack(progress: Progress) -> None:
            parcel = progress.parcel
            tell(progress if parcel is None else replace(progress, parcel=Freight.pack(parcel)))

        if isinstance(unit.luggage, Freight):
            unit = replace(unit, luggage=unit.luggage.open())
        for outcome in self._open()(unit, watch, pack):
            parcel = None if outcome.parcel is None else Freight.pack(outcome.parcel)
            yield replace(outcome, parcel=parcel, failure=self._translate(outcome.failure))

    def _translate(self, failure: Failure | None) -> Failure | None:
        """Return a failure with the paths of the driver's machine, where the user's files are."""
        here, there = self.paths
        if failure is None or not here:
            return failure
        text, trace = failure.message.replace(here, there), failure.traceback.replace(here, there)
        return replace(failure, message=text, traceback=trace)


def keep_sockets_in(folder: Path) -> None:
    """Let multiprocessing create its sockets in a folder that is removed, also if this process is killed."""
    if len(str(folder)) > LONGEST_FOLDER:
        return
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        get_temp_dir()  # created once for each process
    finally:
        tempfile.tempdir = before


def activate_sources(base: str) -> None:
    """Put the source folders of a config on the import path."""
    from manyfit.config.typed.class_paths import activate
    from manyfit.study.work.training import base_config

    for source in reversed(base_config(base).sources):
        activate(source)


class RayWorker:
    """An actor with one worker process. Methods are called from several threads; `receive` alone works."""

    def __init__(self) -> None:
        self._engine: Processes | None = None
        self._parts: PartSupply | None = None
        self._told: list[Progress] = []
        self._requests: deque[Unit | tuple[int, tuple[str, ...] | None]] = deque()
        self._interrupted: dict[int, tuple[str, ...] | None] = {}
        """Requests to stop units that have not arrived yet: calls of an actor may overtake each other."""
        self._unit = 0
        """The number of the last unit that has arrived."""
        self._lock = threading.Lock()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._files = NodeFiles()
        self._scratch = self._files.make_folder("worker")
        keep_sockets_in(self._scratch)

    def introduce(
        self, wanted: Sequence[tuple[str, int, int]] = (), probe: Handle | None = None
    ) -> NodeFacts:
        """Return facts about this node; see `introduce_node`."""
        return introduce_node(wanted, probe)

    def equip(self, equipment: Equipment, environment: Mapping[str, str]) -> str:
        """Unpack the files of the project and prepare to execute units; return what is wrong, or ''."""
        os.environ.update(environment)
        os.environ["OMP_NUM_THREADS"] = str(equipment.threads)
        base, paths = "", ("", "")
        try:
            if equipment.files:
                project = self._files.unpack(equipment.files)
                os.chdir(project / equipment.cwd if (project / equipment.cwd).is_dir() else project)
                base, paths = str(project / equipment.base), (str(project), equipment.project)
                self._parts = PartSupply(self._files, project, equipment.files)
        except (OSError, ManyfitError, tarfile.TarError) as error:
            return f"{type(error).__name__}: {error}"
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES") or None
        place = Place((), gpu, equipment.memory)
        work = AwayWork(equipment.work, base, paths, find_secrets(environment))
        preload = PRELOADED if base else WORKER
        self._engine = Processes(work, [place], equipment.timeout, equipment.threads, preload)
        self._engine.tell = self._told.append
        return ""

    def submit(self, number: int, unit: Unit) -> None:
        """Accept a unit. Its number counts the units of this worker, from 1."""
        self._ask(replace(unit, number=number))

    def work_on(self, number: int, unit: Unit) -> list[WorkerReport]:
        """Accept a unit, and return what there is to report first."""
        self.submit(number, unit)
        return self.receive()

    def interrupt(self, number: int, trials: Collection[str] | None) -> None:
        """Ask some or all trials of a unit to stop."""
        self._ask((number, None if trials is None else tuple(trials)))

    def _ask(self, request: Unit | tuple[int, tuple[str, ...] | None]) -> None:
        self._requests.append(request)
        os.write(self._writing, b"!")

    def supply(self, request: PartRequest, sent: Delivered | None, problem: str = "") -> None:
        """Take over prepared rows that were requested."""
        if self._parts is not None:
            self._parts.supply(request, sent, problem)

    def receive(self) -> list[WorkerReport]:
        """Block until there is something to report, and return it."""
        assert self._engine is not None
        pipes = self._parts.descriptors if self._parts is not None else []
        with self._lock:
            while True:
                while self._requests:
                    self._obey(self._engine, self._requests.popleft())
                ended = self._engine.wait(None, [self._reading, *pipes])
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reading, 1024)
                found: list[WorkerReport] = [*self._told, *map(self._add_output, ended)]
                found += self._parts.take_requests() if self._parts is not None else []
                self._told.clear()
                if found:
                    return found

    def _obey(self, engine: Processes, request: Unit | tuple[int, tuple[str, ...] | None]) -> None:
        if isinstance(request, Unit):
            self._unit = request.number
            engine.submit(replace(request, place="", trials=tuple(map(self._settle, request.trials))))
            if request.number in self._interrupted:
                engine.interrupt(self._interrupted.pop(request.number))
        elif request[0] == self._unit:
            engine.interrupt(request[1])
        elif request[0] > self._unit:
            self._interrupted[request[0]] = request[1]

    def _settle(self, trial: Trial) -> Trial:
        """Return a trial with a folder on this node, for its output."""
        return replace(trial, folder=str(self._scratch / trial.id))

    def _add_output(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the output of the trial, also of one whose process has died."""
        folder = self._scratch / outcome.trial
        with contextlib.suppress(OSError):
            folder.rmdir()  # usually, there is no output
            return outcome
        try:
            with (folder / OUTPUT).open("rb") as file:
                left = max(0, file.seek(0, os.SEEK_END) - MOST_OUTPUT)
                file.seek(left)
                output = file.read().decode(errors="replace")
                output = f"[{left} bytes of output were left out]\n{output}" if left else output
        except FileNotFoundError:
            return outcome
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return replace(outcome, output=output)

    def close(self) -> None:
        """End the worker process, and remove what is on the disk of this node, unless others use it."""
        if self._engine is not None:
            self._engine.kill()
        if self._parts is not None:
            self._parts.close()
        self._files.remove()
