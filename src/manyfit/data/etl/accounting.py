"""Accounting for every row of ETL: the layout, rows that failed, and the proof that none is missing."""

from __future__ import annotations

import base64
import csv
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import RunFailed
from manyfit.core.names import pluralize
from manyfit.data.etl.plan import EtlOptions, PlannedPart, choose_rows
from manyfit.data.etl.tables import EtlTable
from manyfit.data.etl.worker import Done, sum_ids
from manyfit.data.prepared import FORMAT, HASHES, read_layout
from manyfit.store import durable

log = logging.getLogger("manyfit")

QUARANTINE: Final = "quarantine.csv"


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


def make_layout(
    tables: Sequence[EtlTable],
    parts: Sequence[PlannedPart],
    done: Mapping[tuple[str, str], Done],
    options: EtlOptions,
) -> dict[str, Any]:
    """Return the layout, after checking that each row is in exactly one place."""
    splits: dict[str, Any] = {}
    for table in tables:
        mine = [done[each.key] for each in parts if each.table is table]
        expected = [table.ids[i] for i in choose_rows(table, options)]
        out = sum(found.rows for found in mine)
        failed = {id_: text for found in mine for id_, text in found.failed.items()}
        total, known = sum(int(found.ids, 16) for found in mine) % (1 << 128), sum_ids(expected)
        if out + len(failed) != len(expected) or f"{total:032x}" != known:
            raise RunFailed(
                f"{table.mode}: {len(expected)} rows were read, but {out} prepared and {len(failed)} failed: "
                "rows are missing or repeated"
            )
        check_forms(table.mode, mine)
        shards: dict[str, list[dict[str, Any]]] = {}
        for found in mine:
            entry = {"name": found.name, "rows": found.rows, "bytes": found.bytes, "digest": found.digest}
            shards.setdefault(found.name.partition("-")[0], []).append(entry)
        splits[table.mode] = {
            "rows_in": len(expected), "rows": out, "failed": len(failed), "ids": known,
            "shards": [shards[key] for key in sorted(shards)],
        }  # fmt: skip
    warn_about_shapes(done)
    return {"format": FORMAT, "seed": options.seed, "fraction": options.fraction, "splits": splits}


def write_hashes(folder: Path, parts: Sequence[PlannedPart], done: Mapping[tuple[str, str], Done]) -> None:
    """Write the hashes of the rows of each split, so that splits can be compared without their rows."""
    for mode in dict.fromkeys(each.part.mode for each in parts):
        found = [done[each.key].hashes for each in parts if each.part.mode == mode]
        data = b"".join(base64.b64decode(each) for each in found)
        file = io.BytesIO()
        np.save(file, np.frombuffer(data, np.uint64))
        durable.write_file(folder / mode / HASHES, file.getvalue())


def check_forms(mode: str, parts: Sequence[Done]) -> None:
    """Raise an error unless all rows of a split have the same shapes and types."""
    known = [part for part in parts if part.form is not None]
    for part in known[1:]:
        if part.form != known[0].form:
            raise RunFailed(
                f"{mode}: row_prep returned other shapes or types for the rows of {part.name} than for those "
                f"of {known[0].name}: {part.form} and {known[0].form}"
            )


def warn_about_shapes(done: Mapping[tuple[str, str], Done]) -> None:
    """Log a warning if the inputs of two splits differ in shape or type: one model takes both."""
    known: dict[str, str] = {}
    for (mode, _), each in done.items():
        if each.form is not None:
            columns = {name: c for name, c in each.form["columns"].items() if name.partition(".")[0] == "x"}
            known.setdefault(mode, str(columns))
    first = next(iter(known), "")
    for mode, inputs in known.items():
        if inputs != known[first]:
            log.warning("the rows of %s have other inputs than those of %s: %s and %s",
                        mode, first, inputs, known[first])  # fmt: skip


def write_quarantine(folder: Path, tables: Sequence[EtlTable], done: Mapping[tuple[str, str], Done]) -> None:
    """Write the rows that could not be prepared, with the reasons."""
    found = []
    for table in tables:
        failed = {
            k: v for (mode, _), each in done.items() if mode == table.mode for k, v in each.failed.items()
        }
        index = [i for i, id_ in enumerate(table.ids) if id_ in failed] if failed else []
        rows = table.take(index) if index else []
        found += [
            (table.mode, table.ids[i], failed[table.ids[i]], row) for i, row in zip(index, rows, strict=True)
        ]
    if not found:
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
