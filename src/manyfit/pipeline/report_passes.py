"""Passes over a split for a report: every row once, identified by its order or by a number it carries."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data import nested
from manyfit.data.batch import Batch
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.pipeline.generators import SplitGenerators, is_dataset, is_tensor, seed_with_tensorflow
from manyfit.pipeline.row_numbers import Lost, RowTracker


@dataclass
class ReportPasses(SplitGenerators):
    """The passes over a split for a report.

    The loader's rows are followed by padding rows, so that the last batch can be filled even if the
    preprocessor drops incomplete batches; padding never reaches the report.
    """

    _ids: dict[int, str] = field(default_factory=dict)
    _report: Any = None
    """The pipeline of a report, if it can be iterated repeatedly."""
    _tracked: tuple[Any, RowTracker, int] | None = None
    """The same with numbered rows: the pipeline, its row tracker and its number of batches."""
    _padding: int = 0
    """Rows after the last one of a report that fill its last batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._padding = self.batch_size

    def _in_order(self, count: int) -> Iterator[Batch]:
        """Yield every row once, identified by its place; padding after the last row is cut off."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "report", self.split))
            found = self._report
            if found is None:
                found, batches = self.pipeline(self._pad())
                if self._grown(batches):
                    found, _ = self.pipeline(self._pad())
                self._report = found if is_dataset(found) else None
        done = 0
        for values in self._pull(found):
            batch = self.batch(values, done)
            batch = batch if done + len(batch) <= count else batch.part(0, count - done)
            done += len(batch)
            if _has_padding(batch.weight):
                break
            yield batch
            if done >= count:
                return
        raise UsageError(f"{self.remade_by} yielded batches with {done} data points, but {count} exist")

    def _by_number(self, count: int) -> Iterator[Batch]:
        """Yield rows in the order of arrival, identified by the numbers that they carry."""
        for is_text in (True, False) if self._is_native and self.split == "test" else (False,):
            try:
                found, track, batches = self._number_rows(is_text)
                track.begin(count, batches)
                pulled = self._pull(found)
                first = next(pulled, None)
                if first is not None and self._grown(1, len(self.batch(first, 0))):
                    self._tracked = None  # too little padding to fill the last batch
                    return (yield from self._by_number(count))
                break
            except Exception:  # the preprocessor requires numbers; any other error is raised again below
                self._tracked = None
                if not is_text:
                    raise
        for values in itertools.chain([first] if first is not None else [], pulled):
            batch = self.batch(values, 0)
            try:
                numbers, own = track.take(values[2], len(batch))
            except Lost as error:
                raise Lost(
                    f"{self.remade_by} turns the third value of a data point, which identifies it, "
                    f"into {error}; change weights in add_weight_preprocess"
                ) from None
            if self.split == "test":
                self._ids = track.ids
            if own.any():
                yield Batch(select_rows(batch.inputs, own), select_rows(batch.target, own), numbers[own])
            if track.is_over:
                break
        self._missing(track)

    def _missing(self, track: RowTracker) -> None:
        """Raise if a data set of unknown length has fewer rows than the loader reported."""
        if track.times.all():
            return
        rows = self.create()[0]
        count = int(rows.reduce(np.int64(0), lambda n, _: n + 1)) if is_dataset(rows) else len(self)
        if count < len(self):
            raise self._count_error(str(count) if count else "none")

    def _number_rows(self, is_text: bool) -> tuple[Any, RowTracker, int]:
        """Return the pipeline of a report with numbered rows, its row tracker and its number of batches."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "report", self.split))
            if self._tracked is not None:
                self._tracked[1].forget()
                return self._tracked
            track = RowTracker(len(self), self._padding, self._count_error)
            rows, _ = self.create()
            if is_dataset(rows):
                is_text = is_text and self.split == "test" and track.takes_text(rows.element_spec[2])
                found, batches = self.pipeline(track.dataset(rows, is_text), has_weights=False)
                if self._grown(batches):
                    track = RowTracker(len(self), self._padding, self._count_error)
                    found, batches = self.pipeline(track.dataset(rows, is_text), has_weights=False)
                if is_dataset(found):
                    if is_text and found.element_spec[2].dtype.name != "string":
                        raise Lost("another type")
                    self._tracked = found, track, batches
            else:
                found, batches = self.pipeline(track.rows(rows, lambda: self.create()[0]), has_weights=False)
                self._grown(batches)
                track.padding = self._padding
            return found, track, batches

    def _grown(self, batches: int, rows: int | None = None) -> bool:
        """Enlarge the padding if batches are larger than configured; return whether it was."""
        size = -(-(len(self) if rows is None else rows) // batches)
        if size <= self._padding:
            return False
        self._padding = size
        return True

    def _weights(self, count: int) -> npt.NDArray[np.float64]:
        """Return what the preprocessor turns increasing weights into."""
        found, _, _ = self._number_rows(False)
        parts: list[Any] = []
        for values in self._pull(found):
            parts.append(np.asarray(values[2], dtype=np.float64).reshape(-1))
            if sum(map(len, parts)) >= count:
                break
        return np.concatenate(parts)[:count] if parts else np.zeros(0)

    def _pull(self, found: Any) -> Iterator[Any]:
        """Yield all batches; random draws are a function of the batch number."""
        is_native = is_dataset(found)
        batches = found.as_numpy_iterator() if is_native else iter(found)
        for number in itertools.count():
            if is_native:
                values = self.next_of(batches)
            else:
                with own_randomness():
                    seed_for(derive(0, "report", self.split, number))
                    values = self.next_of(batches)
            if values is None:
                return
            yield values

    def _pad(self) -> Any:
        """Return the loader's rows once, followed by padding rows, whose weights are NaN."""
        rows, _ = self.create()
        padding = self._padding
        if is_dataset(rows):
            count = int(rows.cardinality())
            if 0 <= count != len(self):  # negative: unknown or infinite
                raise self._count_error(str(count))
            return rows.take(len(self)).concatenate(rows.take(padding).map(_without_weight))
        return itertools.chain(
            self._exactly(rows),
            (_without_weight(*row) for row in itertools.islice(self._repeat(self.create()[0]), padding)),
        )


def select_rows(value: Any, rows: npt.NDArray[np.bool_]) -> Any:
    """Select rows of nested arrays."""
    return value if rows.all() else nested.map_arrays(lambda array: array[rows], value)


def _without_weight(x: Any, y: Any, weight: Any) -> Any:
    """Return a padding row: its weight is NaN if its type allows that."""
    if is_tensor(weight):
        tf: Any = sys.modules["tensorflow"]
        return (
            x,
            y,
            tf.fill(tf.shape(weight), tf.constant(np.nan, weight.dtype))
            if weight.dtype.is_floating
            else weight,
        )
    return x, y, weight * np.nan if isinstance(weight, float | np.floating | np.ndarray) else weight


def _has_padding(weight: Any) -> bool:
    return weight is not None and np.asarray(weight).dtype.kind == "f" and bool(np.isnan(weight).any())
