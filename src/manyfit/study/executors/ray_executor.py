"""The executor on a Ray cluster: workers are actors, and trials travel to them.

Workers come and go: actors wait in Ray's queue until their resources are free, and one that is lost is
requested again. Each actor has one call open that returns when it has something to report, so nothing polls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any, ClassVar, Final

from manyfit.core.errors import Interrupted, RunFailed, UsageError
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor, Work, fail_together
from manyfit.study.executors.node_files import Delivered
from manyfit.study.executors.part_supply import PartRequest
from manyfit.study.executors.processes import check_picklable
from manyfit.study.executors.ray_cluster import Cluster, Share, find_mismatches, shorten_error
from manyfit.study.executors.ray_worker import Equipment, NodeFacts, RayWorker, WorkerReport, versions_here
from manyfit.study.executors.shipment import Shipment
from manyfit.study.executors.state_transfer import Freight, MachineProbe
from manyfit.study.work.units import Failure, FailureKind, Outcome, Progress, Trial, Unit

log = logging.getLogger("manyfit")

THREADS: Final = 4
"""Calls of an actor at once: one waits for reports, others submit, interrupt and supply rows."""
MOST_FAILED: Final = 5
"""How many actors in a row may fail before they are ready."""
BACK_OFF: Final = 60.0
"""Seconds until another one is requested then, if other workers are ready."""
SILENT: Final = ("submit", "interrupt", "supply")
"""Calls whose results say nothing, unless they fail."""
SETTLING: Final = 10.0
"""Seconds to wait for the workers for which there is room, once the first one is ready."""
SAY: Final = 5.0
"""Seconds after which it is said that the study waits for the cluster."""
GRACE: Final = 5.0
"""Seconds within which actors remove their files when the executor is closed."""


@dataclass(eq=False)
class _Worker:
    actor: Any
    name: str = ""
    """Empty until it is ready."""
    facts: NodeFacts | None = None
    unit: Unit | None = None
    left: dict[str, Trial] = field(default_factory=dict)
    """The trials of the unit that have no outcome yet."""
    units: int = 0
    """How many units it has got."""
    is_heard: bool = False
    """Whether a call is open that returns what it reports."""
    is_leaving: bool = False
    """Whether it must not get another unit."""


class RayExecutor(Executor):
    """An executor with one actor per worker. Crashes are those of a process that the actor supervises."""

    travels: ClassVar[bool] = True

    def __init__(
        self,
        work: Work,
        cluster: Cluster,
        share: Share,
        shipment: Shipment | None = None,
        equipment: Equipment | None = None,
        environment: Mapping[str, str] | None = None,
        replicas: int = 1,
        watch: Watch | None = None,
    ) -> None:
        """`environment` has variables that workers get, and nobody else: they may be secrets."""
        check_picklable(work)
        self.replicas = replicas
        self._is_begun = False
        """Whether a worker was ever ready: before that, a node that cannot be used is an error."""
        self._outcomes: list[Outcome] = []
        """Outcomes that were not returned yet."""
        self._lock = threading.Lock()
        self._probe = MachineProbe()
        self._cluster = cluster
        self._ray = cluster.ray
        self._share = share
        self._shipment = shipment or Shipment()
        self._equipment = replace(equipment or Equipment(b""), work=pickle.dumps(work))
        self._environment = dict(environment or {})
        self._watch = watch or Watch()
        self._events: queue.SimpleQueue[tuple[str, _Worker, Any]] = queue.SimpleQueue()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._workers: list[_Worker] = []
        self._names: dict[str, _Worker] = {}
        self._failed = 0
        """How many actors in a row have failed before they were ready."""
        self._resting_until = 0.0
        """When to request workers again, after some have failed."""
        self._has_told = False
        self._is_closed = False
        try:
            if not share.may_wait:
                cluster.check_feasible(share.need)
            room = share.need.fits(cluster.free())
            self._fill(room)
            most = sum(share.need.fits(node.resources) for node in cluster.nodes())
            self._wait_for_workers(min(room if share.workers is None else most, share.wanted))
        except BaseException:
            self.close()
            raise

    # -- workers ----------------------------------------------------------------------------------

    @property
    def slots(self) -> int:  # type: ignore[override]
        """The number of workers that are ready."""
        return sum(not worker.is_leaving for worker in self._names.values())

    @property
    def places(self) -> Sequence[str]:  # type: ignore[override]
        """Their names, in order."""
        ready = [name for name, worker in self._names.items() if not worker.is_leaving]
        return sorted(ready, key=lambda name: int(name.rpartition("-")[2]))

    def _fill(self, room: int = 0) -> None:
        """Request the workers of a given share; otherwise as many as have room, and one that waits for it."""
        if self._names and time.monotonic() < self._resting_until:
            return
        have = [worker for worker in self._workers if not worker.is_leaving]
        wanted = self._share.wanted - len(have)
        if self._share.workers is None:
            wanted = min(wanted, room + 1 - sum(not worker.name for worker in have))
        for _ in range(max(0, wanted)):
            self._request()

    def _request(self) -> None:
        need = self._share.need
        options = {
            "num_cpus": need.cpus,
            "num_gpus": need.gpus,
            "resources": dict(need.custom) or None,
            "max_concurrency": THREADS,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        worker = _Worker(self._ray.remote(RayWorker).options(**options).remote())
        self._workers.append(worker)
        self._call(worker, "introduce", self._shipment.marks, self._probe.handle)

    def _call(self, worker: _Worker, method: str, *given: Any) -> None:
        """Call a method of an actor; its result is an event."""
        reference = getattr(worker.actor, method).remote(*given)
        reference.future().add_done_callback(lambda found: self._note(method, worker, found))

    def _note(self, method: str, worker: _Worker, found: Any) -> None:
        """Note the result of a call. Ray calls this from a thread of its own."""
        error = found.exception()
        if error is None and method in SILENT:
            return
        self._events.put((method, worker, error if error is not None else found.result()))
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it is rung already
            if not self._is_closed:
                os.write(self._writing, b"!")

    def _wait_for_workers(self, expected: int) -> None:
        """Wait until the first worker is ready, and a little for the others for which there is room."""
        began, said, limit = time.monotonic(), False, float("inf")
        while not self._names or (time.monotonic() < limit and len(self._names) < expected):
            if self._names and limit == float("inf"):
                limit = time.monotonic() + SETTLING
            self._pause(min(1.0, max(0.0, limit - time.monotonic())))
            self._take_events()
            if self._watch.number:
                raise Interrupted("interrupted while waiting for the cluster", self._watch.number)
            if not self._names and not said and time.monotonic() - began > SAY:
                said = True
                log.warning("waiting for a worker on the Ray cluster: each needs %s", self._share.need)

    def _pause(self, timeout: float | None, wake: Sequence[int] = ()) -> bool:
        """Block until an event arrives; return whether a descriptor of `wake` is readable instead."""
        ready = wait([self._reading, *wake], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 65536)
        return any(descriptor in ready for descriptor in wake)

    # -- events -----------------------------------------------------------------------------------

    def _take_events(self) -> list[Outcome]:
        """Process what actors have reported; return outcomes. None is lost if an event raises an error."""
        while True:
            try:
                method, worker, found = self._events.get_nowait()
            except queue.Empty:
                outcomes, self._outcomes = self._outcomes, []
                return outcomes
            if worker not in self._workers:
                continue  # it was given up
            if isinstance(found, BaseException):
                self._outcomes += self._lose(worker, found)
            elif method == "introduce":
                self._equip(worker, found)
            elif method == "equip":
                self._welcome(worker, found)
            elif method in ("receive", "work_on"):
                worker.is_heard = False
                self._outcomes += self._hear(worker, found)

    def _equip(self, worker: _Worker, facts: NodeFacts) -> None:
        worker.facts = facts
        wrong = find_mismatches(versions_here(), {facts.host: facts.versions})
        missing = self._shipment.find_missing(facts.sees)
        if wrong or missing:
            self._refuse(worker, f"versions differ: {wrong[0]}" if wrong else f"{facts.host}: {missing}")
            return
        files: list[Delivered] = self._shipment.deliver(facts.sees, self._ray.put)
        self._call(worker, "equip", replace(self._equipment, files=files), self._environment)

    def _refuse(self, worker: _Worker, reason: str) -> None:
        """Give up a worker whose node cannot be used: at the start of a study, that is an error."""
        self._give_up(worker)
        if not self._is_begun:
            raise UsageError(f"a node of the Ray cluster cannot be used: {reason}")
        log.warning("a node of the Ray cluster is not used: %s", reason)
        self._count_failure(reason)
        self._fill()  # it may be placed on another node

    def _count_failure(self, reason: str) -> None:
        """Count an actor that has failed before it was ready: one node may be the reason, or all of them."""
        self._failed += 1
        if self._failed < MOST_FAILED:
            return
        if not self._names:
            raise RunFailed(f"{MOST_FAILED} workers in a row failed on the Ray cluster: {reason}")
        self._resting_until = time.monotonic() + BACK_OFF

    def _welcome(self, worker: _Worker, problem: str) -> None:
        if problem:
            host = worker.facts.host if worker.facts is not None else "a node"
            self._refuse(worker, f"{host}: {problem}")
            return
        self._failed, self._is_begun = 0, True
        number = next(i for i in range(len(self._names) + 1) if f"worker-{i}" not in self._names)
        worker.name = f"worker-{number}"
        self._names[worker.name] = worker
        made = worker.facts.made if worker.facts is not None else ()
        self.holds = {**self.holds, worker.name: self._shipment.find_shards(made)}
        self._fill()

    def _hear(self, worker: _Worker, messages: Sequence[WorkerReport]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for message in messages:
            if isinstance(message, PartRequest):
                self._call(worker, "supply", message, *self._shipment.supply(message, self._ray.put))
                continue
            parcel = message.parcel
            if isinstance(parcel, Freight):
                message = replace(message, parcel=parcel.open())
            if isinstance(message, Progress):
                self._has_told = True
                self.tell(message)
                continue
            del worker.left[message.trial]
            outcomes.append(message)
            if not worker.left:
                worker.unit = None
        if worker.is_leaving and worker.unit is None:
            self._dismiss(worker)
        return outcomes

    def _listen(self) -> None:
        """Let every worker have one call open that returns when it has something to report."""
        for worker in self._names.values():
            if not worker.is_heard:
                worker.is_heard = True
                self._call(worker, "receive")

    def _lose(self, worker: _Worker, error: BaseException) -> list[Outcome]:
        """Return outcomes for the unit of an actor that is gone, and request another one."""
        was_ready, unit, left = bool(worker.name), worker.unit, list(worker.left.values())
        text = shorten_error(error)
        self._give_up(worker)
        is_ours = isinstance(error, self._ray.exceptions.RayTaskError)  # an error in the code of the actor
        host = worker.facts.host if worker.facts is not None else "a node"
        if was_ready:
            log.warning("%s on %s was lost: %s", worker.name, host, text)
        if not was_ready or is_ours:
            self._count_failure(text)
        if not worker.is_leaving:
            self._fill()
        kind: FailureKind = "infrastructure" if is_ours else "preempted"
        if isinstance(error, self._ray.exceptions.OutOfMemoryError) or "memory pressure" in str(error):
            kind = "out of memory"
        text = f"its worker on {host} was lost: {text}"
        failure = Failure(kind, text, str(error), "lost", process_died=True)
        if kind == "preempted" or unit is None:  # as any node may be: its trials go on together
            return [Outcome(trial.id, failure=failure) for trial in left]
        return list(fail_together(unit, left, failure))

    def _dismiss(self, worker: _Worker) -> None:
        """Give up a worker, after it has removed its files."""
        with contextlib.suppress(Exception):  # it is dead already, or the cluster is
            self._ray.wait([worker.actor.close.remote()], timeout=GRACE)
        self._give_up(worker)

    def _give_up(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._names.pop(worker.name, None)
        with contextlib.suppress(Exception):  # it is dead already, or the cluster is
            self._ray.kill(worker.actor)

    # -- the interface of executors ---------------------------------------------------------------

    def submit(self, unit: Unit) -> None:
        """Send a unit to a free worker, or to the one that it requests."""
        self.check_place(unit)
        free = [self._names[name] for name in self.places if self._names[name].unit is None]
        worker = next(each for each in free if unit.place in ("", each.name))
        worker.unit, worker.left = unit, {trial.id: trial for trial in unit.trials}
        worker.units += 1
        is_near = worker.facts is not None and self._probe.is_answered_by(worker.facts.answer)
        is_near = is_near and not self._cluster.is_client  # whose server opens arguments, elsewhere
        luggage: Any = Freight.pack(dict(unit.luggage), is_near) if unit.luggage else {}
        # A worker that has just reported an outcome has no call open: one call is enough for both.
        method, worker.is_heard = "submit" if worker.is_heard else "work_on", True
        self._call(worker, method, worker.units, replace(unit, luggage=luggage))

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Receive outcomes and signs of life from the workers."""
        limit = None if timeout is None else time.monotonic() + timeout
        before, self._has_told = self.places, False
        if self._failed >= MOST_FAILED:
            self._fill()
        while True:
            outcomes = self._take_events()
            if outcomes or self._has_told or self.places != before:
                return outcomes
            self._listen()
            left = None if limit is None else max(0.0, limit - time.monotonic())
            if left == 0.0 or self._pause(left, wake):
                return self._take_events()

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Ask trials to commit their progress and to stop."""
        for worker in self._names.values():
            named = [trial for trial in worker.left if trials is None or trial in trials]
            if named:
                whole = len(named) == len(worker.left)
                self._call(worker, "interrupt", worker.units, None if whole else named)

    def resize(self, workers: int) -> None:
        """Use this many workers from now on; the trials of those that leave continue on others."""
        self._share = replace(self._share, workers=workers)
        ready = [self._names[name] for name in self.places]
        coming = [worker for worker in self._workers if not worker.name]
        extra = len(ready) + len(coming) - self._share.wanted
        for worker in coming[: max(0, extra)]:
            self._give_up(worker)
            extra -= 1
        for worker in sorted(ready, key=lambda each: each.unit is not None)[: max(0, extra)]:
            if worker.unit is None:
                self._dismiss(worker)
            else:
                worker.is_leaving = True
                self._call(worker, "interrupt", worker.units, None)
        self._fill()

    def close(self) -> None:
        """End all actors, and the cluster, if it is a local one."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        workers, self._workers = self._workers, []
        self._names.clear()
        with contextlib.suppress(Exception):  # the cluster may be gone, and its actors with it
            done = [worker.actor.close.remote() for worker in workers if worker.facts is not None]
            self._ray.wait(done, num_returns=len(done), timeout=GRACE) if done else None
        for worker in workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker.actor)
        self._cluster.close()
        os.close(self._reading)
        os.close(self._writing)

    def describe(self) -> dict[str, object]:
        """Return the description with the nodes of the workers."""
        nodes = [worker.facts.host for worker in self._names.values() if worker.facts is not None]
        return {"executor": "ray", "slots": self.slots, "nodes": nodes}
