"""Predictions from a run, a checkpoint or an export, for any data, in memory or to a file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.data import ArraySource, Batch, Order, Source, as_source, once
from manyfit.data.nested import map_arrays, named_arrays
from manyfit.run.evaluation.new_data import read_rows
from manyfit.run.evaluation.predictions import (
    PredictionFile,
    collect_predictions,
    example_of,
    predict_batches,
    read_output,
)
from manyfit.run.evaluation.row_report import format_csv
from manyfit.run.result import load_model
from manyfit.run.reuse import check_split, reopen_run
from manyfit.store import durable


class Inferrer:
    """A trained model that predicts batch by batch.

    >>> infer = Inferrer("runs/digits-mlp")                    # doctest: +SKIP
    >>> infer.predict(images)["prediction"]                    # doctest: +SKIP
    >>> infer.predict_to("new.parquet", data="new.csv")        # doctest: +SKIP

    `place` is a run folder, with its `checkpoint`; or an export or a checkpoint folder, from which arrays can
    be predicted without the data of the run. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        place: str | Path,
        checkpoint: str = "best",
        batch_size: int | None = None,
        trust: bool = False,
    ) -> None:
        self.place = Path(place)
        self._stack = contextlib.ExitStack()
        self._model: Any = None
        self._built: Any = None
        self._identity: list[str] = [str(self.place.resolve())]
        self._size = batch_size
        if (self.place / "config.resolved.yaml").is_file():
            opened = self._stack.enter_context(reopen_run(self.place, checkpoint, trust=trust))
            config, _, self._built, found = opened
            self._identity += [config.fingerprint, *describe_files([found.manifest_file]), str(found.step)]
            self._example = next(once(self._built.split("validation") or self._built.train, 1))
        else:
            self._model = load_model(self.place, trust=trust)
            self._identity += describe_files(
                sorted(self.place.iterdir()) if self.place.is_dir() else [self.place]
            )

    def __enter__(self) -> Inferrer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the run."""
        self._stack.close()

    def predict(self, data: Any = None, split: str = "test") -> dict[str, Any]:
        """Return predictions by column, first the IDs: of arrays, a DataFrame, a file, or a split."""
        source = self.open_source(data, split)
        return collect_predictions(self._iterate(source, 0), source)

    def predict_to(self, file: str | Path, data: Any = None, split: str = "test") -> int:
        """Write predictions to a CSV or Parquet file, and return their number.

        Rows are written as they are predicted. If the process is killed, the same call continues, unless the
        rows are arrays in memory: every row is in the file once.
        """
        source, path = self.open_source(data, split), Path(file)
        if not path.parent.is_dir():
            raise UsageError(f"the folder {path.parent} does not exist")
        if getattr(source, "remade_by", ""):  # a preprocessor that drops or repeats rows
            if path.suffix.lower() != ".csv":
                raise UsageError(
                    "a preprocessor makes other rows, so the predictions are written as .csv only"
                )
            columns = self.predict(data, split)
            durable.write_file(path, format_csv(columns))
            return len(columns["id"])
        output = PredictionFile(path, [*self._identity, *describe_rows(source, data, split)])
        size, rows = self.batch_size, output.read_rows()
        done = rows if rows % size == 0 else 0
        found = self._iterate(source, done // size)
        output.write(((source.ids(rows), columns) for rows, columns in found), done, len(source))
        return len(source)

    @property
    def batch_size(self) -> int:
        """The number of rows that are predicted at once."""
        return self._size or (self._built.evaluation_batch_size if self._built is not None else 64)

    def open_source(self, data: Any, split: str = "test") -> Source:
        """Return the rows to predict."""
        source: Source | None
        if data is None:
            check_split(split)
            if self._built is None:
                raise UsageError(f"{self.place} has no data of its own; pass the rows to predict")
            source = self._built.split(split)
        elif isinstance(data, str | Path):
            if self._built is None:
                raise UsageError(
                    f"{self.place} does not know how to read {data}; use a run folder, or pass arrays"
                )
            source = read_rows(Path(data), self._example.inputs, self._built.splits.data)
        elif hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a DataFrame
            source = self._read_frame(data)
        elif isinstance(data, np.ndarray | tuple | dict) or hasattr(data, "detach"):
            source = ArraySource(map_arrays(lambda array: np.asarray(array), data))
        else:
            source = as_source(data)
        if source is None or not len(source):
            raise UsageError(f"there are no rows in {data if data is not None else f'the split {split!r}'}")
        return source

    def _read_frame(self, frame: Any) -> Source:
        """Return the rows of a DataFrame: as the data of the run reads its own, or plain numbers."""
        own = getattr(self._built.splits.data, "read_frame", None) if self._built is not None else None
        if own is not None:
            found: Source = own(frame)
            return found
        try:
            return ArraySource(frame.to_numpy(dtype=np.float32), ids=[str(label) for label in frame.index])
        except (ValueError, TypeError) as error:
            raise UsageError(f"the DataFrame has columns that are not numbers: {error}") from error

    def _iterate(self, source: Source, start: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        if self._built is not None:
            kind = example_of(self._example.target)
            return predict_batches(self._built.learner, source, self.batch_size, kind, start)
        return self._iterate_model(source, start)

    def _iterate_model(self, source: Source, start: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield predictions of a model without its run."""
        for batch in source.batches(Order(self.batch_size, epochs=1), start):
            columns: dict[str, Any] = {}
            for i, (name, output) in enumerate(named_arrays(self._call(batch))):
                prediction, confidence = read_output(np.asarray(output), None)
                of = f"_{name}" if i else ""
                columns[f"prediction{of}"] = prediction
                if confidence is not None:
                    columns[f"confidence{of}"] = confidence
            yield batch.index, columns

    def _call(self, batch: Batch) -> Any:
        import torch

        if not isinstance(self._model, torch.nn.Module):
            return self._model.predict(batch.inputs)
        tensors = map_arrays(torch.as_tensor, batch.inputs)
        with torch.no_grad():
            if isinstance(tensors, Mapping):
                found = self._model(**tensors)
            else:
                found = self._model(*tensors) if isinstance(tensors, tuple) else self._model(tensors)
        if isinstance(found, tuple) and len(found) == 2 and (found[1] is None or not found[1].ndim):
            found = found[0]  # a model that returns its own loss
        return map_arrays(lambda tensor: tensor.detach().cpu().numpy(), found)


def describe_rows(source: Source, data: Any, split: str) -> list[str]:
    """Return what identifies the rows to predict: those of a split, or of a file that has not changed."""
    if data is None:
        return [split, source.fingerprint()]
    if not isinstance(data, str | Path):
        return [uuid.uuid4().hex]  # nothing that is kept could be compared with them
    path = Path(data)
    return [str(path.resolve()), *describe_files(sorted(path.rglob("*")) if path.is_dir() else [path])]


def describe_files(files: Sequence[Path]) -> list[str]:
    """Return the names, sizes and dates of files."""
    status = [(str(file), file.stat()) for file in files]
    return [f"{name}:{each.st_size}:{each.st_mtime_ns}" for name, each in status]
