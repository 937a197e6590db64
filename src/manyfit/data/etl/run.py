"""ETL: from tables and object files to shards of prepared rows, in parallel, with every row accounted for."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from manyfit.core.code_hash import hash_code
from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.methods import check_methods
from manyfit.core.names import pluralize
from manyfit.core.processes import without_main
from manyfit.core.seeds import derive
from manyfit.data.etl.spec import EXPECTED, NEEDED
from manyfit.data.etl.tables import Table, check_features, describe_objects, downloads
from manyfit.data.etl.worker import (
    Done,
    EtlPart,
    RowFailed,
    begin_worker,
    prepare_part,
    prepare_rows,
    prepare_worker,
    sum_ids,
)
from manyfit.data.prepared import FORMAT, LAYOUT, read_layout
from manyfit.data.row_files import digest_file
from manyfit.store import durable
from manyfit.store.lock import hold_lock

log = logging.getLogger("manyfit")

Policy: TypeAlias = Literal["stop", "skip", "quarantine"]
MOST_ROWS: Final = 4096
"""The most rows of one file."""
LEAST_ROWS: Final = 64
QUARANTINE: Final = "quarantine.csv"
Report: TypeAlias = Callable[[int, int, int], None]
"""Called with the process, and with how many rows of how many are done."""


@dataclass(frozen=True)
class EtlOptions:
    """How tables are divided and prepared."""

    fraction: float = 1.0
    """The share of the rows of each table that are used, chosen at random."""
    seed: int = 0
    shards: int = 2
    capacities: Sequence[float] = ()
    """The relative sizes of the shards; equal by default."""
    workers: int | None = None
    """The number of processes; by default, one per core."""
    on_error: Policy = "stop"
    """What to do if a row cannot be prepared: stop, leave it out, or also write it to a file."""


@dataclass(frozen=True)
class EtlResult:
    """Prepared data."""

    folder: Path
    rows: Mapping[str, int]
    """By split: the rows that were prepared."""
    failed: Mapping[str, int]
    """By split: the rows that could not be prepared."""
    is_reused: bool = False
    proof: Sequence[str] = field(default_factory=tuple)
    """By split: one line that accounts for every row."""


def run_etl(
    spec: Any,
    tables: Sequence[Table],
    etl_dir: Path,
    options: EtlOptions | None = None,
    misc_path: str = "",
    report: Report = lambda worker, done, total: None,
) -> EtlResult:
    """Prepare the rows of tables, or return what an earlier call with the same spec and data has prepared.

    An interrupted call is continued by the next one.
    """
    options = options or EtlOptions()
    check_options(options)
    check_methods(spec, EXPECTED, NEEDED)
    spec.set_features()
    check_features(spec, tables)
    folder = etl_dir / make_key(spec, tables, options, misc_path)
    etl_dir.mkdir(parents=True, exist_ok=True)
    if (folder / LAYOUT).is_file():
        return summarize(folder, is_reused=True)
    with hold_lock(folder):
        parts = [part for table in tables for part in plan_parts(spec, table, folder, options)]
        done = prepare_all(spec, parts, options, misc_path, report)
        layout = make_layout(tables, parts, done, options)
        write_quarantine(folder, tables, parts, done, options)
        durable.write_file(folder / LAYOUT, json.dumps(layout, indent=1) + "\n")
    return summarize(folder)


def check_options(options: EtlOptions) -> None:
    """Raise an error for impossible options."""
    if not 0 < options.fraction <= 1:
        raise UsageError(f"fraction must be greater than 0 and at most 1, not {options.fraction}")
    if options.shards < 1:
        raise UsageError(f"shards must be at least 1, not {options.shards}")
    given = options.capacities
    if given and (len(given) != options.shards or min(given) <= 0 or not all(map(math.isfinite, given))):
        raise UsageError(
            f"capacities must be {options.shards} positive numbers, one for each shard, not {list(given)}"
        )


def make_key(spec: Any, tables: Sequence[Table], options: EtlOptions, misc_path: str) -> str:
    """Return the name of the folder for this spec, these tables and these options."""
    described = {
        "spec": hash_code(spec),
        "tables": {t.mode: [t.digest, describe_objects(t.object_dir)] for t in tables},
        "misc": digest_misc(misc_path),
        "options": [
            options.fraction, options.seed, options.shards, list(options.capacities),
            options.on_error == "stop",
        ],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def digest_misc(folder: str) -> str:
    """Return a hash of the contents of further files."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")) if folder else ():
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {digest_file(path)}\n".encode())
    return digest.hexdigest()


# -- planning -----------------------------------------------------------------------------------------


def plan_parts(spec: Any, table: Table, folder: Path, options: EtlOptions) -> Iterator[EtlPart]:
    """Yield the parts of a table: each row is in exactly one. It does not depend on the number of workers."""
    place = folder / table.mode
    place.mkdir(exist_ok=True)
    rows = choose_rows(table, options)
    size = max(LEAST_ROWS, min(MOST_ROWS, len(rows) // 64))
    columns = downloads(spec)
    begin = 0
    for shard, count in enumerate(divide(len(rows), options)):
        for number, at in enumerate(range(begin, begin + count, size)):
            index = rows[at : min(at + size, begin + count)]
            yield EtlPart(
                str(place), f"{shard:05d}-{number:05d}.arrow", table.mode, table.object_dir,
                [table.ids[i] for i in index],
                [{name: values[i] for name, values in table.columns.items()} for i in index],
                columns, options.on_error == "stop", derive(options.seed, "etl", table.mode),
            )  # fmt: skip
        begin += count


def choose_rows(table: Table, options: EtlOptions) -> list[int]:
    """Return the rows of a table that are used: shuffled for training, in their order otherwise."""
    seed = derive(options.seed, "rows", table.mode)
    order = np.random.RandomState(np.random.MT19937(seed)).permutation(len(table))
    chosen = order[: max(1, round(options.fraction * len(table)))]
    return [int(row) for row in (chosen if table.mode == "train" else np.sort(chosen))]


def divide(rows: int, options: EtlOptions) -> list[int]:
    """Return the sizes of the shards, in proportion to their capacities; fewer than planned for few rows.

    >>> divide(10, EtlOptions(shards=3, capacities=(2, 1, 1)))
    [5, 3, 2]
    """
    count = min(options.shards, rows)
    weights = np.asarray(options.capacities or [1.0] * options.shards, dtype=float)[:count]
    exact = weights / weights.sum() * rows
    sizes = np.floor(exact).astype(int)
    for i in np.argsort(sizes - exact, kind="stable")[: rows - int(sizes.sum())]:
        sizes[i] += 1
    while sizes.min() < 1:
        sizes[sizes.argmin()] += 1
        sizes[sizes.argmax()] -= 1
    return [int(size) for size in sizes]


# -- preparing ----------------------------------------------------------------------------------------


def prepare_all(
    spec: Any, parts: Sequence[EtlPart], options: EtlOptions, misc_path: str, report: Report
) -> dict[tuple[str, str], Done]:
    """Prepare all parts that are not there yet; return what became of each."""
    done = {(part.mode, part.name): found for part in parts if (found := read_done(part)) is not None}
    todo = [part for part in parts if (part.mode, part.name) not in done]
    total, finished = sum(len(part.ids) for part in parts), 0
    misc = misc_path if not misc_path or misc_path.endswith("/") else f"{misc_path}/"
    if done:
        log.info("%s were prepared before the interruption", pluralize(len(done), "file"))
    finished = sum(each.rows + len(each.failed) for each in done.values())
    report(0, finished, total)
    workers = min(options.workers or len(os.sched_getaffinity(0)), len(todo))
    for part, found in _results(spec, todo, workers, misc):
        done[part.mode, part.name] = found
        finished += len(part.ids)
        report(found.worker, finished, total)
    return done


def _results(spec: Any, todo: Sequence[EtlPart], workers: int, misc: str) -> Iterator[tuple[EtlPart, Done]]:
    """Yield the parts as they are prepared."""
    try:
        if workers <= 1:
            made = prepare_worker(spec, misc) if todo else spec
            yield from ((part, prepare_rows(made, part)) for part in todo)
            return
        context = multiprocessing.get_context("spawn")
        arguments = (pack_spec(spec), misc)
        with ProcessPoolExecutor(workers, context, begin_worker, arguments) as pool:
            with without_main():
                futures = {pool.submit(prepare_part, part): part for part in todo}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except RowFailed as error:
        raise RunFailed(
            f"{error}\n  everything prepared so far is kept: correct the row or row_prep, or leave such rows "
            "out with on_error='skip' or 'quarantine'"
        ) from None
    except BrokenProcessPool:
        raise RunFailed(
            "a process of ETL has ended unexpectedly, perhaps because memory ran out, or because "
            "initialize_worker or read_misc failed; everything prepared so far is kept"
        ) from None


def pack_spec(spec: Any) -> bytes:
    """Return a spec for other processes: by value, unless they can import its class."""
    cloudpickle = import_optional("cloudpickle", "etl")
    name = type(spec).__module__
    module = sys.modules.get(name)
    is_importable = name == "__main__" or PathFinder.find_spec(name.partition(".")[0]) is not None
    if module is None or is_importable:
        return bytes(cloudpickle.dumps(spec))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(spec))
    finally:
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


# -- accounting ---------------------------------------------------------------------------------------


def make_layout(
    tables: Sequence[Table],
    parts: Sequence[EtlPart],
    done: Mapping[tuple[str, str], Done],
    options: EtlOptions,
) -> dict[str, Any]:
    """Return the layout, after checking that each row is in exactly one place."""
    splits: dict[str, Any] = {}
    for table in tables:
        mine = [(part, done[part.mode, part.name]) for part in parts if part.mode == table.mode]
        expected = [table.ids[i] for i in choose_rows(table, options)]
        out = sum(found.rows for _, found in mine)
        failed = {id_: text for _, found in mine for id_, text in found.failed.items()}
        total = sum(int(found.ids, 16) for _, found in mine) % (1 << 128)
        if out + len(failed) != len(expected) or f"{total:032x}" != sum_ids(expected):
            raise RunFailed(
                f"{table.mode}: {len(expected)} rows were read, but {out} prepared and {len(failed)} failed: "
                "rows are missing or repeated"
            )
        check_forms(table.mode, [found for _, found in mine])
        shards: dict[str, list[dict[str, Any]]] = {}
        for _, found in mine:
            entry = {"name": found.name, "rows": found.rows, "bytes": found.bytes, "sha256": found.sha256}
            shards.setdefault(found.name.partition("-")[0], []).append(entry)
        splits[table.mode] = {
            "rows_in": len(expected), "rows": out, "failed": len(failed), "ids": sum_ids(expected),
            "shards": [shards[key] for key in sorted(shards)],
        }  # fmt: skip
    return {"format": FORMAT, "seed": options.seed, "fraction": options.fraction, "splits": splits}


def check_forms(mode: str, parts: Sequence[Done]) -> None:
    """Raise an error unless all rows of a split have the same shapes and types."""
    known = [part for part in parts if part.form is not None]
    for part in known[1:]:
        if part.form != known[0].form:
            raise RunFailed(
                f"{mode}: row_prep returned other shapes or types for the rows of {part.name} than for those "
                f"of {known[0].name}: {part.form} and {known[0].form}"
            )


def write_quarantine(
    folder: Path,
    tables: Sequence[Table],
    parts: Sequence[EtlPart],
    done: Mapping[tuple[str, str], Done],
    options: EtlOptions,
) -> None:
    """Write the rows that could not be prepared, with the reasons."""
    found = [
        (part.mode, id_, text, row)
        for part in parts
        for id_, row in zip(part.ids, part.rows, strict=True)
        if (text := done[part.mode, part.name].failed.get(id_)) is not None
    ]
    if not found or options.on_error != "quarantine":
        return
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["split", "row", "error", *names])
    for mode, id_, text, row in found:
        writer.writerow([mode, id_, text, *(row.get(name, "") for name in names)])
    durable.write_file(folder / QUARANTINE, file.getvalue())


def summarize(folder: Path, is_reused: bool = False) -> EtlResult:
    """Return what a folder of prepared data has."""
    splits = read_layout(folder)["splits"]
    proof = [
        f"{mode}: {split['rows_in']} rows in = {split['rows']} rows out + {split['failed']} failed, in "
        f"{pluralize(len(split['shards']), 'shard')}"
        for mode, split in splits.items()
    ]
    return EtlResult(
        folder,
        {mode: split["rows"] for mode, split in splits.items()},
        {mode: split["failed"] for mode, split in splits.items()},
        is_reused,
        proof,
    )


def collect_misc(files: Sequence[str], folder: Path) -> str:
    """Copy further files, local or remote, into one folder; return its path, which ends in a slash."""
    fsspec = import_optional("fsspec", "etl")
    folder.mkdir(parents=True, exist_ok=True)
    names = [Path(file).name for file in files]
    if len(set(names)) != len(names):
        raise UsageError(f"misc: the names of the files must be distinct: {', '.join(names)}")
    for file, name in zip(files, names, strict=True):
        try:
            with fsspec.open(file, "rb") as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)
        except FileNotFoundError:
            raise UsageError(f"misc: there is no file {file}") from None
    return f"{folder}/"
