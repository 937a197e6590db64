"""ETL on the nodes of a Ray cluster: rows are prepared and kept where models will be trained on them."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import ManyfitError, RunFailed, UsageError
from manyfit.core.tracebacks import user_frame
from manyfit.data.etl.plan import PlannedPart
from manyfit.data.etl.run import Pool, pack_spec, write_done
from manyfit.data.etl.tables import describe_objects
from manyfit.data.etl.worker import Done, EtlPart, RowFailed, WorkerFailed, prepare_rows, prepare_worker
from manyfit.study.executors.node_files import Delivered, NodeFiles, part_key
from manyfit.study.executors.processes import usable_cores
from manyfit.study.executors.ray_cluster import Cluster, find_mismatches, shorten_error
from manyfit.study.executors.ray_worker import NodeFacts, introduce_node, versions_here
from manyfit.study.executors.shipment import list_sources, pack_files

log = logging.getLogger("manyfit")

MOST_FAILED: Final = 5
"""How many workers in a row may fail before they are ready."""
MOST_LOST: Final = 3
"""How many workers may be lost with the same part."""
MISC: Final = ".misc"
"""The folder for `read_misc` on a node, beside the user's code."""
SAY: Final = 5.0
"""Seconds after which it is said that ETL waits for the cluster."""
GRACE: Final = 5.0
"""Seconds within which workers remove their files."""


@dataclass(frozen=True)
class EtlNode:
    """What a worker says about its node, once it is ready."""

    id: str
    facts: NodeFacts
    sees: frozenset[str]
    """The folders of object files that it sees as the driver does."""
    problem: str = ""


@dataclass(frozen=True)
class EtlSupplies:
    """What a worker gets before it prepares rows."""

    spec: bytes
    files: Sequence[Delivered]
    """The user's code, and the files for `read_misc`."""
    objects: Mapping[str, str]
    """The folders of object files, with hashes of what is in them."""
    etl_dir: str
    source: str
    """The folder of the user's code on the driver's machine, for messages."""


@dataclass(frozen=True)
class EtlProblem:
    """Why a part could not be prepared."""

    text: str
    is_row: bool = True
    """Whether a row is the reason, and not the node."""


class EtlWorker:
    """An actor that prepares parts of tables."""

    def __init__(self) -> None:
        self._files = NodeFiles()
        self._folder = self._files.make_folder("worker")
        self._spec: Any = None
        self._paths = ("", "")

    def begin(self, given: EtlSupplies) -> EtlNode:
        """Unpack the user's code, and prepare the worker, once."""
        import ray

        sees = [folder for folder, known in given.objects.items() if _sees(folder, known, given.etl_dir)]
        found = EtlNode(ray.get_runtime_context().get_node_id(), introduce_node(), frozenset(sees))
        try:
            project = self._files.unpack(given.files)
            self._paths = str(project), given.source
            sys.path.insert(0, str(project))
            misc = f"{project / MISC}/" if (project / MISC).is_dir() else ""
            self._spec = prepare_worker(given.spec, misc)
        except ManyfitError as error:
            return replace(found, problem=self._translate(str(error)))
        except Exception as error:  # also those of the user's code, when it is imported
            text = f"{type(error).__name__}: {error}\n  at {user_frame(error)}"
            return replace(found, problem=self._translate(text))
        return found

    def prepare(self, part: EtlPart, objects: Mapping[str, bytes] | None) -> tuple[Done, bytes] | EtlProblem:
        """Return a part that was prepared, and its file; or what is wrong.

        `objects` are the object files of its rows, if the node does not see their folder.
        """
        folder, place = part.object_dir, self._folder / "objects"
        try:
            if objects is not None:
                for name, data in objects.items():
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    (place / name).write_bytes(data)
                folder = f"{place}/"
            done = prepare_rows(self._spec, replace(part, folder=str(self._folder), object_dir=folder))
            return self._take(part, done)
        except RowFailed as error:
            return EtlProblem(self._translate(str(error)))
        except OSError as error:
            return EtlProblem(f"{platform.node()}: {error}", is_row=False)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _take(self, part: EtlPart, done: Done) -> tuple[Done, bytes]:
        """Return a part with its file, which stays here unless this node sees the files of the driver."""
        path = self._folder / part.name
        contents = path.read_bytes() if done.rows else b""
        if contents and not Path(part.folder).is_dir():
            self._files.keep_part(part_key({"digest": done.digest, "bytes": done.bytes}), contents)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        return done, contents

    def _translate(self, text: str) -> str:
        here, there = self._paths
        return text.replace(here, there) if here and there else text

    def close(self) -> None:
        """Remove the files of this worker; prepared rows stay."""
        self._files.remove()


def _sees(folder: str, known: str, etl_dir: str) -> bool:
    try:
        return "://" in folder or describe_objects(folder, Path(etl_dir)) == known
    except OSError:
        return False


def ray_pool(source: Path | None, workers: int | None = None, address: str | None = None) -> Pool:
    """Return what prepares parts on a Ray cluster; `source` is the folder of the user's code."""

    def prepare(spec: Any, todo: Sequence[PlannedPart], misc: str) -> Iterator[tuple[PlannedPart, Done]]:
        if not todo:
            return
        cluster = Cluster(address, max(workers or 1, len(usable_cores())))
        try:
            yield from _Preparation(cluster, spec, todo, misc, source, workers).run()
        finally:
            cluster.close()

    return prepare


@dataclass(eq=False)
class _Worker:
    actor: Any
    number: int
    node: EtlNode | None = None
    part: PlannedPart | None = None


@dataclass
class _Preparation:
    cluster: Cluster
    spec: Any
    todo: Sequence[PlannedPart]
    misc: str
    source: Path | None
    workers: int | None
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: dict[Any, _Worker] = field(default_factory=dict)
    """The open calls."""
    failed: int = 0
    """How many workers in a row have failed before they were ready."""
    requested: int = 0
    """The number of workers, also of those that were lost."""

    def __post_init__(self) -> None:
        self.ray = self.cluster.ray
        self.waiting = {each.key: each for each in self.todo}
        self.owners: dict[str, str] = {}
        """The node on which the files of a shard are prepared, by the first part of their names."""
        self.open: list[_Worker] = []

    def run(self) -> Iterator[tuple[PlannedPart, Done]]:
        """Yield the parts as they are prepared."""
        room = int(sum(node.resources.get("CPU", 0.0) for node in self.cluster.nodes()))
        if not room and self.workers is None:
            raise UsageError(
                "the Ray cluster has no CPU for ETL; if it adds nodes on demand, give the number of workers"
            )
        supplies, said = self._pack(), False
        try:
            for _ in range(min(self.workers or room, max(1, room), len(self.todo))):
                self._request(supplies)
            while self.waiting or any(worker.part is not None for worker in self.open):
                if not self.calls:
                    self._request(supplies)
                is_begun = any(worker.node is not None for worker in self.open)
                ready, _ = self.ray.wait(list(self.calls), timeout=None if is_begun or said else SAY)
                if not ready and not said:
                    said = True
                    log.warning("waiting for a worker on the Ray cluster: each needs 1 CPU")
                for call in ready:
                    yield from self._hear(call, supplies)
        finally:
            self._close()

    def _pack(self) -> Any:
        put, files = self.ray.put, list_sources(self.source) if self.source is not None else {}
        code = pack_files(files, put)
        sent = [Delivered("", code.digest, code.parts)]
        if self.misc:
            paths = {
                f"{MISC}/{path.relative_to(self.misc)}": path
                for path in Path(self.misc).rglob("*")
                if path.is_file()
            }
            misc = pack_files(paths, put)
            sent.append(Delivered(MISC, misc.digest, misc.parts))
        folder = Path(self.todo[0].part.folder).parent.parent
        folders = {_make_absolute(each.part.object_dir) for each in self.todo if each.part.object_dir}
        objects = {
            each: "" if "://" in each else describe_objects(each, folder.resolve()) for each in folders
        }
        source = str(self.source.resolve()) if self.source is not None else ""
        return put(EtlSupplies(pack_spec(self.spec), sent, objects, str(folder.resolve()), source))

    def _request(self, supplies: Any) -> None:
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self.requested += 1
        worker = _Worker(self.ray.remote(EtlWorker).options(**options).remote(), self.requested)
        self.open.append(worker)
        self.calls[worker.actor.begin.remote(supplies)] = worker

    def _hear(self, call: Any, supplies: Any) -> Iterator[tuple[PlannedPart, Done]]:
        worker = self.calls.pop(call)
        try:
            found = self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            raise RunFailed(f"ETL failed on a node of the Ray cluster: {error}") from error
        except self.ray.exceptions.RayError as error:
            self._lose(worker, error)
            for idle in [each for each in self.open if each.node is not None and each.part is None]:
                self._assign(idle)
            if self.waiting:
                self._request(supplies)
            return
        if isinstance(found, EtlNode):
            self._check(found)
            worker.node, self.failed = found, 0
        else:
            part, worker.part = worker.part, None
            assert part is not None
            if isinstance(found, EtlProblem):
                raise RowFailed(found.text) if found.is_row else RunFailed(f"ETL failed on {found.text}")
            done = replace(found[0], worker=worker.number)
            write_done(part.part, done, found[1])
            yield part, done
        self._assign(worker)

    def _check(self, node: EtlNode) -> None:
        host = node.facts.host
        if node.problem:
            raise WorkerFailed(node.problem)
        if wrong := find_mismatches(versions_here(), {host: node.facts.versions}):
            raise UsageError(f"a node of the Ray cluster cannot be used: versions differ: {wrong[0]}")
        for each in self.todo:
            part = each.part
            folder = _make_absolute(part.object_dir)
            if folder and folder not in node.sees and not part.downloads:
                raise UsageError(
                    f"{part.mode}_dir: {part.object_dir} is not on the node {host}; put it where every node "
                    "sees it, use a URL, or set is_feature_download, so that the files of each row are sent"
                )

    def _lose(self, worker: _Worker, error: BaseException) -> None:
        """Let others prepare the part of a worker that is gone."""
        self.open.remove(worker)
        text = shorten_error(error)
        log.warning("a worker of ETL was lost: %s", text)
        if worker.node is None:
            self.failed += 1
            if self.failed >= MOST_FAILED:
                raise RunFailed(
                    f"{MOST_FAILED} workers of ETL in a row failed on the Ray cluster: {text}"
                ) from error
        if worker.part is None:
            return
        self.lost[worker.part.key] += 1
        if self.lost[worker.part.key] >= MOST_LOST:
            raise RunFailed(
                f"{MOST_LOST} workers of ETL ended while they prepared {worker.part.part.mode}/"
                f"{worker.part.part.name}, perhaps because memory ran out, or because row_prep ended them; "
                "everything prepared so far is kept"
            ) from error
        self.waiting[worker.part.key] = worker.part

    def _assign(self, worker: _Worker) -> None:
        """Give a worker the next part: of a shard of its node, of one that no node has, or any."""
        if not self.waiting:
            return
        assert worker.node is not None
        here = worker.node.id
        left = [(each.part.name.partition("-")[0], each) for each in self.waiting.values()]
        mine = (each for shard, each in left if self.owners.get(shard) == here)
        new = (each for shard, each in left if shard not in self.owners)
        part = next(mine, None) or next(new, None) or left[-1][1]
        self.owners.setdefault(part.part.name.partition("-")[0], here)
        worker.part = self.waiting.pop(part.key)
        filled = replace(part.fill(), object_dir=_make_absolute(part.part.object_dir))
        objects = None
        if filled.object_dir and filled.object_dir not in worker.node.sees:
            objects = read_objects(filled)
        self.calls[worker.actor.prepare.remote(filled, objects)] = worker

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone, and its actors with it
            idle = [
                worker.actor.close.remote() for worker in self.open if worker.part is None and worker.node
            ]
            self.ray.wait(idle, num_returns=len(idle), timeout=GRACE) if idle else None
        for worker in self.open:
            with contextlib.suppress(Exception):
                self.ray.kill(worker.actor)


def read_objects(part: EtlPart) -> dict[str, bytes]:
    """Return the object files that the rows of a part name; `row_prep` fails for those that are not there."""
    found: dict[str, bytes] = {}
    for row in part.rows:
        for name in (os.path.normpath(str(row[column])) for column in part.downloads):
            path = Path(part.object_dir) / name
            if not Path(name).is_absolute() and not name.startswith("..") and path.is_file():
                found[name] = path.read_bytes()
    return found


def _make_absolute(folder: str) -> str:
    return folder if not folder or "://" in folder else f"{Path(folder).resolve()}/"
