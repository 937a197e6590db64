"""ETL: from tables and object files to shards of prepared rows, in parallel, with every row accounted for."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, TypeAlias

from manyfit.core.code_hash import hash_code
from manyfit.core.errors import ComponentFailed, RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.methods import check_methods
from manyfit.core.names import pluralize
from manyfit.core.processes import without_main
from manyfit.data.etl.accounting import (
    QUARANTINE,
    EtlResult,
    make_layout,
    summarize,
    write_hashes,
    write_quarantine,
)
from manyfit.data.etl.plan import EtlOptions, PlannedPart, check_options, plan_parts
from manyfit.data.etl.spec import EXPECTED, NEEDED
from manyfit.data.etl.tables import EtlTable, check_features, describe_objects, downloads
from manyfit.data.etl.worker import (
    Done,
    EtlPart,
    RowFailed,
    WorkerFailed,
    begin_worker,
    call_user,
    describe,
    describe_failure,
    prepare_part,
    prepare_row,
    prepare_rows,
    prepare_worker,
    sum_ids,
)
from manyfit.data.prepared import LAYOUT, find_missing
from manyfit.data.row_files import digest_file
from manyfit.store import durable
from manyfit.store.lock import hold_lock

log = logging.getLogger("manyfit")

AHEAD: Final = 3
"""Parts that wait or are prepared at once, for each process: the others are rows of a table still."""
Report: TypeAlias = Callable[[int, int, int], None]
"""Called with the process, and with how many rows of how many are done."""
Pool: TypeAlias = Callable[[Any, Sequence[PlannedPart], str], Iterator[tuple[PlannedPart, Done]]]
"""Prepares parts, in any order: called with the spec, the parts, and the folder for `read_misc`."""


def run_etl(
    spec: Any,
    tables: Sequence[EtlTable],
    etl_dir: Path,
    options: EtlOptions | None = None,
    misc_path: str = "",
    report: Report = lambda worker, done, total: None,
    pool: Pool | None = None,
) -> EtlResult:
    """Prepare the rows of tables, or return what an earlier call with the same spec and data has prepared.

    An interrupted call is continued by the next one. By default, processes of this machine prepare them.
    """
    options = options or EtlOptions()
    check_options(options)
    check_spec(spec, tables)
    folder = etl_dir / make_key(spec, tables, options, misc_path, etl_dir)
    etl_dir.mkdir(parents=True, exist_ok=True)
    if (known := find_prepared(folder, options)) is not None:
        return known
    with hold_lock(folder):
        parts = [part for table in tables for part in plan_parts(spec, table, folder, options)]
        done = prepare_all(spec, parts, options, misc_path, report, pool)
        layout = make_layout(tables, parts, done, options)
        write_hashes(folder, parts, done)
        if options.on_error == "quarantine":
            write_quarantine(folder, tables, done)
        durable.write_file(folder / LAYOUT, json.dumps(layout, indent=1) + "\n")
    return summarize(folder)


def check_first_rows(spec: Any, tables: Sequence[EtlTable], place: Path, misc_path: str = "") -> list[str]:
    """Prepare the first row of each table, and describe what it becomes; `place` is for temporary files."""
    check_spec(spec, tables)
    made, lines = prepare_worker(pack_spec(spec), misc_path), []
    for table in tables:
        part = EtlPart(str(place), "", table.mode, table.object_dir, table.ids[:1], downloads=downloads(spec))
        try:
            form, _ = prepare_row(made, part, table.take([0])[0], None)
        except Exception as error:
            raise RunFailed(describe_failure(part, table.ids[0], error)) from None
        lines.append(f"{table.mode}: {pluralize(len(table), 'row')}; {describe(form)}")
    return lines


def check_spec(spec: Any, tables: Sequence[EtlTable]) -> None:
    """Raise an error for methods that do not fit, and for features that are not columns."""
    check_methods(spec, EXPECTED, NEEDED)
    call_user(spec.set_features)
    check_features(spec, tables)


def find_prepared(folder: Path, options: EtlOptions) -> EtlResult | None:
    """Return what was prepared earlier; None if it is not complete, or if failed rows are to be written."""
    if not (folder / LAYOUT).is_file():
        return None
    found = summarize(folder, is_reused=True)
    if missing := find_missing(folder):
        log.warning("%s is missing or damaged, and is prepared again", missing)
        (folder / LAYOUT).unlink()
        return None
    failed = sum(found.failed.values())
    if failed and options.on_error == "quarantine" and not (folder / QUARANTINE).is_file():
        return None
    if failed and options.on_error == "stop":
        raise RunFailed(
            f"{pluralize(failed, 'row')} could not be prepared in an earlier call, which left them out: see "
            f"{folder}; on_error='skip' uses the others, and 'quarantine' also writes these to a file"
        )
    return found


def make_key(
    spec: Any, tables: Sequence[EtlTable], options: EtlOptions, misc_path: str, etl_dir: Path
) -> str:
    """Return the name of the folder for this spec, these tables and these options."""
    described = {
        "spec": hash_code(spec),
        "tables": {t.mode: [t.digest, describe_objects(t.object_dir, etl_dir.resolve())] for t in tables},
        "misc": digest_folder(misc_path),
        "options": [options.fraction, options.seed, options.shards, list(options.capacities)],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def digest_folder(folder: str) -> str:
    """Return a hash of the names and contents of the files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")) if folder else ():
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {digest_file(path)}\n".encode())
    return digest.hexdigest()


# -- preparing ----------------------------------------------------------------------------------------


def prepare_all(
    spec: Any,
    parts: Sequence[PlannedPart],
    options: EtlOptions,
    misc_path: str,
    report: Report,
    pool: Pool | None = None,
) -> dict[tuple[str, str], Done]:
    """Prepare all parts that are not there yet; return what became of each."""
    done = {each.key: found for each in parts if (found := read_done(each.part)) is not None}
    todo = [each for each in parts if each.key not in done]
    total = sum(len(each.index) for each in parts)
    misc = misc_path if not misc_path or misc_path.endswith("/") else f"{misc_path}/"
    if done:
        log.info("%s were prepared before the interruption", pluralize(len(done), "file"))
    finished = sum(each.rows + len(each.failed) for each in done.values())
    report(0, finished, total)
    workers = min(options.workers or len(os.sched_getaffinity(0)), len(todo))
    for each, found in _results(spec, todo, misc, pool or local_pool(workers)):
        done[each.key] = found
        finished += len(each.index)
        report(found.worker, finished, total)
    return done


def local_pool(workers: int) -> Pool:
    """Return what prepares parts in processes of this machine; in this one, if one is enough."""

    def prepare(spec: Any, todo: Sequence[PlannedPart], misc: str) -> Iterator[tuple[PlannedPart, Done]]:
        if workers <= 1:
            made = prepare_worker(pack_spec(spec), misc) if todo else spec
            yield from ((each, prepare_rows(made, each.fill())) for each in todo)
            return
        context = multiprocessing.get_context("spawn")
        arguments = (pack_spec(spec), misc, os.getpid())
        with ProcessPoolExecutor(workers, context, begin_worker, arguments) as pool:
            waiting, futures = deque(todo), dict[Future[Done], PlannedPart]()
            try:
                while waiting or futures:
                    with without_main():  # submitting may start a process
                        while waiting and len(futures) < AHEAD * workers:
                            each = waiting.popleft()
                            futures[pool.submit(prepare_part, each.fill())] = each
                    for future in wait(futures, return_when=FIRST_COMPLETED).done:
                        yield futures.pop(future), future.result()
            except BaseException:
                for process in list((pool._processes or {}).values()):
                    process.kill()  # a row may hang
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return prepare


def _results(
    spec: Any, todo: Sequence[PlannedPart], misc: str, pool: Pool
) -> Iterator[tuple[PlannedPart, Done]]:
    """Yield the parts as they are prepared."""
    try:
        yield from pool(spec, todo, misc)
    except RowFailed as error:
        raise RunFailed(
            f"{error}\n  correct the row or row_prep, or leave such rows out with on_error='skip' or "
            "'quarantine' (--on-error on the command line); rows that are prepared are kept as long as the "
            "code and the files stay the same"
        ) from None
    except WorkerFailed as error:
        raise ComponentFailed(str(error)) from None
    except BrokenProcessPool:
        raise RunFailed(
            "a process of ETL has ended unexpectedly, perhaps because memory ran out, or because row_prep "
            "ended it; everything prepared so far is kept"
        ) from None


def pack_spec(spec: Any) -> bytes:
    """Return a spec for other processes: by value, unless they can import its class."""
    cloudpickle = import_optional("cloudpickle", "etl")
    name = type(spec).__module__
    module = sys.modules.get(name)
    is_importable = name == "__main__" or PathFinder.find_spec(name.partition(".")[0]) is not None
    by_value = module is not None and not is_importable
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(spec))
    except Exception as error:
        raise UsageError(
            f"{type(spec).__name__} cannot be passed to other processes: {type(error).__name__}: {error}; "
            "create what cannot be pickled in initialize_worker"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def read_done(part: EtlPart) -> Done | None:
    """Return a part that was prepared earlier; None if it was not, or if its file is not complete."""
    path = Path(part.folder) / part.name
    try:
        found = Done(**json.loads(path.with_suffix(".json").read_text()))
        if found.rows and path.stat().st_size != found.bytes:
            return None
        if found.ids != sum_ids(part.ids) or (part.stops and found.failed):
            return None
    except (OSError, ValueError, TypeError):
        return None
    return found


def write_done(part: EtlPart, done: Done, contents: bytes) -> None:
    """Write a part that another machine has prepared; see `prepare_rows`."""
    path = Path(part.folder) / part.name
    if done.rows:
        durable.write_file(path, contents)
    durable.write_file(path.with_suffix(".json"), json.dumps(asdict(done)))


def collect_misc(files: Sequence[str], folder: Path) -> str:
    """Copy further files, local or remote, into one folder; return its path, which ends in a slash.

    The folder is below the given one and is named after the contents, so that other files are elsewhere.
    """
    fsspec = import_optional("fsspec", "etl")
    names = [Path(file).name for file in files]
    if len(set(names)) != len(names) or not all(names):
        raise UsageError(f"misc: the names of the files must be distinct: {', '.join(map(repr, names))}")
    temporary = folder / f".{os.getpid()}.tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        for file, name in zip(files, names, strict=True):
            with fsspec.open(file, "rb") as source, (temporary / name).open("wb") as target:
                shutil.copyfileobj(source, target)
        final = folder / digest_folder(str(temporary))[:16]
        if not final.is_dir():
            temporary.rename(final)
        return f"{final}/"
    except (OSError, ImportError, ValueError) as error:
        raise UsageError(f"misc: {file} cannot be read: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
