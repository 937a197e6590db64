"""The executor in long-lived processes on this machine, each pinned to cores or to a GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.processes import without_main
from manyfit.study.executors.base import Executor, Work, fail_together
from manyfit.study.executors.messages import receive, send
from manyfit.study.executors.server import DRIVER
from manyfit.study.executors.worker import Place, serve
from manyfit.study.work.units import Failure, Outcome, Progress, Trial, Unit

WORKER: Final = ("manyfit.study.executors.server", "manyfit.study.executors.worker")
"""The modules of a worker; the first one is imported first."""
PRELOADED: Final = (
    *WORKER,
    "manyfit.study.work.training",
    "manyfit.run.trial",
    "manyfit.run.check",
    "torch._dynamo",
)
"""Modules that are slow to import, and are therefore imported once for all workers."""
CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
MOST_STARTS: Final = 5
LOST: Final = 255
"""The exit code that multiprocessing reports if the fork server cannot tell how a process ended."""
FILES: Final = 30
FILES_OF_WORKER: Final = 6
"""Open files that the driver needs for itself, and for each worker."""
GRACE: Final = 60.0
"""Seconds within which a worker that was asked to stop must commit its progress."""

_starting = threading.Lock()


@dataclass(eq=False)
class _Worker:
    place: Place
    process: Any
    pipe: Connection
    unit: Unit | None = None
    left: dict[str, Trial] = field(default_factory=dict)
    """The trials of the unit that have no outcome yet."""
    """Trials that have shown a sign of life."""
    is_poisoned: bool = False
    """Whether it must not execute another unit."""
    seen: float = 0.0
    """When it last showed a sign of life."""
    asked: float | None = None
    """When it was asked to stop."""
    kills: int = 0
    """How many processes the system had killed for lack of memory when the unit was started."""


class Processes(Executor):
    """An executor with one worker per place; a worker that died or ran out of memory is replaced."""

    def __init__(
        self,
        work: Work,
        places: Sequence[Place],
        timeout: float | None = None,
        threads: int = 1,
        preload: Sequence[str] = PRELOADED,
    ) -> None:
        """`timeout` is how long a unit may show no sign of life; `threads` is its number of threads.

        `preload` are modules that are imported once for all workers.
        """
        check_picklable(work)
        check_open_files(len(places))
        self.slots = len(places)
        places = [replace(place, name=f"worker-{i}") for i, place in enumerate(places)]
        self.places = [place.name for place in places]
        self._first = list(places)
        self._work = work
        self._timeout = timeout
        self._threads = threads
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._free = list(places)
        """Places without a worker; workers are started on demand."""
        self._workers: list[_Worker] = []

    def _start(self, place: Place) -> _Worker:
        ours, theirs = self._context.Pipe()
        with _starting, without_main(), few_threads(self._threads), interrupts_held_back():
            # The environment may have changed since the fork server was started.
            here = {name: value for name, value in os.environ.items() if name != DRIVER}
            args = (theirs, self._work, place, here)
            process = self._context.Process(target=serve, args=args, name="manyfit-worker")
            process.start()
        theirs.close()
        return _Worker(place, process, ours, seen=time.monotonic())

    def submit(self, unit: Unit) -> None:
        """Send a unit to a free worker, or to the one that it requests."""
        self.check_place(unit)
        for _ in range(MOST_STARTS):
            worker = next((w for w in self._workers if w.unit is None and _fits(w.place, unit)), None)
            if worker is None:
                place = next(place for place in self._free if _fits(place, unit))
                self._free.remove(place)
                worker = self._start(place)
                self._workers.append(worker)
            try:
                send(worker.pipe, unit)
            except (BrokenPipeError, ConnectionResetError):
                self._end(worker)
                continue
            worker.unit, worker.seen, worker.kills = unit, time.monotonic(), count_memory_kills()
            worker.left = {trial.id: trial for trial in unit.trials}
            return
        raise RunFailed(f"workers exit as soon as they are started ({MOST_STARTS} of them did)")

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Receive outcomes and signs of life from the workers."""
        handles: list[Any] = [worker.pipe for worker in self._workers]
        handles += [worker.process.sentinel for worker in self._workers]
        limits = [limit for w in self._workers if (limit := self._deadline(w)) is not None]
        now = time.monotonic()
        if limits:
            soonest = max(0.0, min(limits) - now)
            timeout = soonest if timeout is None else min(timeout, soonest)
        ready = set(wait([*handles, *wake], timeout))
        outcomes: list[Outcome] = []
        for worker in list(self._workers):
            if worker in self._workers and worker.pipe in ready:
                outcomes += self._heard(worker)
            if worker not in self._workers:
                continue  # it was replaced, or ended by a command
            if worker.process.sentinel in ready:
                outcomes += self._heard(worker)  # messages that it sent before it died
                outcomes += self._collect_dead(worker)
            elif (limit := self._deadline(worker)) is not None and time.monotonic() >= limit:
                outcomes += self._hangs(worker)
        return outcomes

    def _deadline(self, worker: _Worker) -> float | None:
        if worker.unit is None:
            return None
        if worker.asked is not None:
            return worker.asked + GRACE
        return worker.seen + self._timeout if self._timeout is not None else None

    def _heard(self, worker: _Worker) -> list[Outcome]:
        found: list[Outcome] = []
        try:
            while worker.pipe.poll():
                message = receive(worker.pipe)
                worker.seen = time.monotonic()
                if isinstance(message, Progress):
                    self.tell(message)
                elif isinstance(message, Outcome):
                    del worker.left[message.trial]
                    found.append(message)
                    failure = message.failure
                    worker.is_poisoned |= failure is not None and (
                        failure.kind == "out of memory" or worker.place.gpu is not None
                    )
                    if worker.left:
                        continue
                    worker.unit = None
                    if worker.is_poisoned or worker.asked is not None:  # a signal may still be on its way
                        self._end(worker)
                        return found
        except (EOFError, OSError, pickle.UnpicklingError):
            worker.process.join(1.0)  # `wait` handles the death when it sees the sentinel
        return found

    def _collect_dead(self, worker: _Worker) -> list[Outcome]:
        worker.process.join()
        code, left, asked, unit = (
            worker.process.exitcode,
            list(worker.left.values()),
            worker.asked,
            worker.unit,
        )
        self._end(worker)
        if asked:
            failure = Failure("preempted", "stopped on request", process_died=True)
        else:
            failure = death(code, count_memory_kills() > worker.kills)
        return list(fail_together(unit, left, failure)) if unit is not None else []

    def _hangs(self, worker: _Worker) -> list[Outcome]:
        left, asked, unit = list(worker.left.values()), worker.asked, worker.unit
        self._end(worker)
        if asked is not None:
            failure = Failure("preempted", "did not stop when asked to, and was killed", process_died=True)
        else:
            failure = Failure(
                "timeout", f"no sign of life for {self._timeout:g} s", group="timeout", process_died=True
            )
        return list(fail_together(unit, left, failure)) if unit is not None else []

    def _end(self, worker: _Worker) -> None:
        """End a worker; another one is started in its place on demand."""
        worker.pipe.close()
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        worker.process.close()
        self._workers.remove(worker)
        if worker.place.name in self.places:
            self._free.append(worker.place)

    def resize(self, workers: int) -> None:
        """Use this many workers from now on; the trials of those that leave continue on others.

        Those beyond the first ones are not pinned to cores, which others already have.
        """
        check_open_files(workers)
        self.places = [f"worker-{i}" for i in range(workers)]
        self.slots = workers
        known = {place.name for place in (*self._free, *(each.place for each in self._workers))}
        for i, name in enumerate(self.places):
            if name not in known:
                place = self._first[i % len(self._first)]
                cores = place.cores if i < len(self._first) else ()
                self._free.append(replace(place, name=name, cores=cores))
        self._free = [place for place in self._free if place.name in self.places]
        leaving = [worker for worker in self._workers if worker.place.name not in self.places]
        for worker in leaving:
            if worker.unit is None:
                self._end(worker)
        self.interrupt([trial for worker in leaving for trial in worker.left])

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask workers to commit their progress and to stop."""
        for worker in self._workers:
            if worker.unit is None or worker.asked is not None:
                continue
            named = [trial for trial in worker.left if trials is None or trial in trials]
            if len(named) == len(worker.left):
                worker.asked = time.monotonic()
                worker.process.terminate()
            elif named:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `wait` handles its death
                    send(worker.pipe, named)

    def kill(self) -> None:
        """Kill all workers; unlike `close`, this may be called while another thread waits."""
        for worker in list(self._workers):
            with contextlib.suppress(ValueError):  # it was closed meanwhile
                worker.process.kill()

    def close(self) -> None:
        """Let idle workers exit, and kill the others."""
        for worker in self._workers:
            worker.pipe.close()
            if worker.unit is not None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(2.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers.clear()

    def describe(self) -> dict[str, object]:
        """Return the description with the cores or GPUs of the workers."""
        every = [*(worker.place for worker in self._workers), *self._free]
        return {**super().describe(), "places": [list(place.cores) or place.gpu for place in every]}


def death(code: int | None, for_memory: bool) -> Failure:
    """Return the failure that corresponds to the exit code of a process."""
    if code == LOST:
        text = "the process was lost, together with the server from which it was forked"
        return Failure("infrastructure", text, group="lost", process_died=True)
    if code is not None and code >= 0:
        text = f"the code of the trial ended its process with exit code {code}"
        return Failure("user error", text, group=f"exit {code}", process_died=True)
    number = -(code or -signal.SIGKILL)
    name = signal.Signals(number).name
    if number == signal.SIGKILL and for_memory:
        text = "the system killed the process because memory ran out"
        return Failure("out of memory", text, group=name, process_died=True)
    what = "crashed with" if number in CRASHES else "was terminated by"
    return Failure("infrastructure", f"the process of the trial {what} {name}", group=name, process_died=True)


def _fits(place: Place, unit: Unit) -> bool:
    return unit.place in ("", place.name)


def check_picklable(work: Work) -> None:
    """Check that the work can be sent to other processes."""
    try:
        pickle.dumps(work)
    except Exception as error:
        raise UsageError(f"{work!r} cannot be sent to other processes: {error}") from error


def check_open_files(workers: int = 1) -> None:
    """Raise the limit on open files if necessary; refuse a hard limit that is too low for the workers."""
    needed = FILES + FILES_OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        if allowed < needed:
            raise UsageError(
                f"the limit on open files is too low (ulimit -n {hard}): {workers} workers need {needed}; "
                "raise the limit, or train one trial after another: execute.on=inline"
            )


def prepare(threads: int = 1) -> None:
    """Start the server that workers are forked from; it begins its imports in the background."""
    check_open_files()
    forkserver.set_forkserver_preload(list(PRELOADED))
    with _starting, without_main(), few_threads(threads), interrupts_held_back():
        forkserver.ensure_running()


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Block Ctrl-C for the server while it is importing; workers unblock the signal and ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def few_threads(count: int) -> Iterator[None]:
    """Limit the libraries below torch to the threads of a unit.

    They read the variable once, when they are loaded; a later `torch.set_num_threads` does not affect all of
    them, and threads that wait for work on the one core that a worker is pinned to halve its speed.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ |= {"OMP_NUM_THREADS": before or str(count), DRIVER: str(os.getpid())}
    try:
        yield
    finally:
        del os.environ[DRIVER]
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def count_memory_kills() -> int:
    """Return how many processes the system has killed because memory ran out."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError):
        return 0


def places(
    workers: int | None, threads: int, gpus: Sequence[str], memory: int | None, cores: Callable[[], list[int]]
) -> list[Place]:
    """Return the places of workers: one for each GPU, or one for each group of cores."""
    if gpus:
        count = workers or len(gpus)
        return [Place((), gpus[i % len(gpus)], memory) for i in range(count)]
    here = cores()
    count = workers or max(1, len(here) // threads)
    if count * threads > len(here):
        return [Place((), None, memory) for _ in range(count)]
    return [Place(tuple(here[i * threads : (i + 1) * threads]), None, memory) for i in range(count)]


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
