"""Predictions batch by batch, and files of them that a killed command continues."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.data import Order, Source
from manyfit.data.nested import map_arrays, pair_outputs
from manyfit.learn.learner import Learner
from manyfit.run.callbacks.progress import show_progress
from manyfit.run.evaluation.row_report import column, format_cells, interpret, keys_of
from manyfit.store import durable

FLUSH: Final = 1 << 20
"""Bytes of predictions that are written at once."""
PART_ROWS: Final = 1 << 16
"""Rows of a part of a Parquet file."""


def predict_batches(
    learner: Learner, source: Source, batch_size: int, kind: Any, start: int = 0, shown: str = "predicting"
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the row numbers of each batch from step `start`, with its predictions by column.

    `kind` is an example of a target, by whose type outputs are interpreted.
    """
    order = Order(batch_size, epochs=1)
    batches = (replace(batch, target=None) for batch in source.batches(order, start))
    left = max(0, len(source) - start * batch_size)
    for outputs in learner.evaluate(show_progress(batches, left, shown)):
        if not outputs.output.size:
            raise UsageError("the run has no predictions: its trainer has no model or predict_step")
        columns: dict[str, Any] = {}
        for i, (name, output, target) in enumerate(pair_outputs(outputs.every(0)[0], kind)):
            of = f"_{name}" if i or outputs.has_heads else ""
            prediction, confidence = (output, None) if of and target is None else read_output(output, target)
            columns[f"prediction{of}"] = prediction
            if confidence is not None:
                columns[f"confidence{of}"] = confidence
        yield outputs.index, columns


def collect_predictions(found: Iterator[tuple[Any, dict[str, Any]]], source: Source) -> dict[str, Any]:
    """Return the predictions of all batches by column, first the IDs."""
    parts: dict[str, list[Any]] = {}
    index = []
    for rows, columns in found:
        index.append(rows)
        for name, values in columns.items():
            parts.setdefault(name, []).append(values)
    rows = np.concatenate(index)
    joined = {name: column(values) for name, values in parts.items()}
    return keys_of(rows, source) | {n: values for n, values in joined.items() if len(values) == len(rows)}


def read_output(output: Any, kind: Any) -> tuple[Any, Any]:
    """Interpret outputs by the type of the run's targets: as classes, or unchanged."""
    if kind is None:
        return interpret(output, None)
    target = np.zeros((len(output), *kind.shape[1:]), dtype=kind.dtype)
    return interpret(output, target)


def example_of(target: Any) -> Any:
    """Return targets as arrays, of which only the types matter."""
    return map_arrays(np.asarray, target)


class PredictionFile:
    """A CSV or Parquet file that grows batch by batch. A killed command continues it, if nothing has changed.

    Until it is complete, it is written next to its place: `<file>.part`, and `<file>.progress` says how far
    it is. For Parquet, the part is a folder of files, which are joined at the end.
    """

    def __init__(self, file: Path, identity: Sequence[str]) -> None:
        """`identity` is what determines the predictions; a part of others is begun again."""
        self.file = file
        self.is_parquet = file.suffix.lower() in (".parquet", ".pq")
        self._part = file.with_name(file.name + ".part")
        self._progress = file.with_name(file.name + ".progress")
        self._key = hashlib.sha256("\x1f".join(identity).encode()).hexdigest()
        if self.is_parquet:
            import_optional("pyarrow.parquet", "parquet")

    def read_rows(self) -> int:
        """Return the number of rows that were written before."""
        try:
            found: dict[str, Any] = json.loads(self._progress.read_text(encoding="utf-8"))
            is_whole = self.is_parquet or self._part.stat().st_size >= found["size"]
            return int(found["rows"]) if found["key"] == self._key and is_whole and self._part.exists() else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def write(self, found: Iterator[tuple[Sequence[str], Mapping[str, Any]]], done: int, total: int) -> None:
        """Write the IDs and columns of batches after `done` rows; `total` rows make the file complete."""
        rows = (self._write_parts if self.is_parquet else self._write_lines)(found, done)
        if rows != total:
            raise RunFailed(f"{rows} rows were predicted, but there are {total}")
        if self.is_parquet:
            self._join()
        else:
            self._part.replace(self.file)
        durable.sync_folder(self.file.parent)
        self._progress.unlink(missing_ok=True)

    def _note(self, rows: int, size: int) -> None:
        durable.write_file(self._progress, json.dumps({"key": self._key, "rows": rows, "size": size}))

    def _write_lines(self, found: Iterator[Any], done: int) -> int:
        size = int(json.loads(self._progress.read_text())["size"]) if done else 0
        if not done and self._part.is_dir():
            raise UsageError(f"{self._part} is a folder; remove it")
        with self._part.open("r+b" if done else "wb") as stream:
            stream.truncate(size)
            stream.seek(size)
            buffer, rows = io.StringIO(), done
            writer = csv.writer(buffer, lineterminator="\n")
            for ids, columns in found:
                if not rows:
                    writer.writerow(["id", *columns])
                writer.writerows(
                    zip(ids, *(format_cells(values) for values in columns.values()), strict=True)
                )
                rows += len(ids)
                if buffer.tell() >= FLUSH:
                    size = self._commit(stream, buffer, rows)
            self._commit(stream, buffer, rows)
        return rows

    def _commit(self, stream: Any, buffer: io.StringIO, rows: int) -> int:
        stream.write(buffer.getvalue().encode())
        stream.flush()
        os.fsync(stream.fileno())
        buffer.seek(0)
        buffer.truncate()
        self._note(rows, stream.tell())
        return int(stream.tell())

    def _write_parts(self, found: Iterator[Any], done: int) -> int:
        pa, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
        self._part.mkdir(exist_ok=True)
        for file in self._part.iterdir():
            if int(file.name.partition(".")[0]) >= done:  # not committed
                file.unlink()
        waiting, rows, begin = list[Any](), done, done

        def commit() -> None:
            table = pa.concat_tables(waiting)
            sink = pa.BufferOutputStream()
            parquet.write_table(table, sink)
            durable.write_file(self._part / f"{begin:012d}.parquet", sink.getvalue().to_pybytes())
            self._note(rows, 0)
            waiting.clear()

        for ids, columns in found:
            arrays = {name: pa.array(_to_lists(values)) for name, values in columns.items()}
            waiting.append(pa.table({"id": pa.array(list(ids)), **arrays}))
            rows += len(ids)
            if rows - begin >= PART_ROWS:
                commit()
                begin = rows
        if waiting:
            commit()
        return rows

    def _join(self) -> None:
        parquet = import_optional("pyarrow.parquet", "parquet")
        parts = sorted(self._part.iterdir())
        whole = self._part.with_suffix(".joined")
        with parquet.ParquetWriter(whole, parquet.read_schema(parts[0])) as writer:
            for part in parts:
                writer.write_table(parquet.read_table(part))
        whole.replace(self.file)
        for part in parts:
            part.unlink()
        self._part.rmdir()


def _to_lists(values: Any) -> Any:
    array = np.asarray(values)
    return array if array.ndim == 1 else array.tolist()
