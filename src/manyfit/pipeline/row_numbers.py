"""Row numbers: they identify the data points of a report after preprocessing.

Each data point carries its number in place of its weight, so it is recognized even if the preprocessor
shuffles, sorts, drops or duplicates rows.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.row_hash import hash_row

UNKNOWN: Final = -2
"""TensorFlow's cardinality of a data set of unknown length; -1 is an infinite one."""
PRECISE: Final = 1 << 20
"""Whole numbers below this one, plus a quarter, are exact in single precision."""
MARK: Final = 0.25
"""Offset that is added to each number, so that a changed number is detected."""
NEAR: Final = 1e-3


def id_text(id_: Any) -> str:
    """Return an ID as text; bytes are decoded."""
    plain = id_.item() if hasattr(id_, "item") else id_
    return plain.decode(errors="replace") if isinstance(plain, bytes) else str(plain)


class Lost(UsageError):
    """The values that came back are not the numbers of data points."""


class RowTracker:
    """The numbers of data points, and counts of those that come back, one pass after another.

    Padding rows with higher numbers follow the last data point, so that the last batch can be filled. The
    number between them, `total`, stays unused: a row that carries it is one more than the loader reported.
    """

    def __init__(self, total: int, padding: int, miscounted: Callable[[str], UsageError]) -> None:
        self.total = total
        self.padding = padding
        self.ids: dict[int, str] = {}
        self._miscounted = miscounted
        self._passes = itertools.count()
        self._noted: dict[tuple[int, int], str] = {}
        self.begin(total)

    def begin(self, wanted: int, batches: int = 1) -> None:
        """Begin a pass over the first `wanted` data points; an epoch has `batches` batches."""
        self.times = np.zeros(wanted, dtype=np.int64)
        self.is_over = False
        self._pass: int | None = None
        self._epoch, self._done = batches, 0
        self._is_several = False
        self._idle, self._last, self._is_shuffled, self._has_ended = 0, -1, False, False
        self.ids = {}

    def forget(self) -> None:
        """Forget the IDs of earlier passes."""
        self._noted.clear()

    # -- numbering --------------------------------------------------------------------------------

    def rows(self, made: Iterable[Any], again: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Yield the rows of a Python generator with numbers."""
        count, first, left = 0, b"", iter(made)
        for number, row in enumerate(left):
            if number == self.total:  # it started over, or has more rows than reported
                if hash_row(row) != first:
                    raise self._miscounted("more")
                left = itertools.chain([row], left)
                break
            if not number:
                first = hash_row(row)
            self._noted[0, number] = id_text(row[2])
            yield row[0], row[1], number + MARK
            count = number + 1
        if count < self.total:
            raise self._miscounted(str(count) if count else "none")
        padded = 0
        while padded < self.padding:
            for row in left:
                if padded >= self.padding:
                    return
                yield row[0], row[1], self.total + 1 + padded + MARK
                padded += 1
            left = iter(again())

    def dataset(self, rows: Any, is_text: bool) -> Any:
        """Return a `tf.data.Dataset` with numbered rows: text that includes the ID, or numbers alone."""
        tf: Any = sys.modules["tensorflow"]
        count = int(rows.cardinality())
        if 0 <= count != self.total:
            raise self._miscounted(str(count))
        own = rows.take(self.total) if count != UNKNOWN else rows.take(self.total + 1)
        beyond = rows.take(self.padding).enumerate(self.total + 1)
        numbered = own.enumerate().concatenate(beyond)
        slot = self._as_text if is_text else self._as_number
        # A preprocessor may repeat its input: the pass number distinguishes the repetitions.
        passes = tf.data.Dataset.from_generator(
            lambda: iter([next(self._passes)]), output_signature=tf.TensorSpec((), tf.int64)
        )

        def one(number: Any) -> Any:
            return numbered.map(lambda i, row: (row[0], row[1], slot(tf, number, i, row[2])))

        return passes.flat_map(one)

    @staticmethod
    def takes_text(spec: Any) -> bool:
        """Return whether IDs of this type look the same as TensorFlow strings."""
        return len(spec.shape) == 0 and (spec.dtype.name == "string" or spec.dtype.is_integer)

    @staticmethod
    def _as_text(tf: Any, number: Any, i: Any, id_: Any) -> Any:
        plain = id_ if id_.dtype == tf.string else tf.strings.as_string(id_)
        return tf.strings.join([tf.strings.as_string(number), tf.strings.as_string(i), plain], ",")

    def _as_number(self, tf: Any, number: Any, i: Any, id_: Any) -> Any:
        def note(number: Any, i: Any, id_: Any) -> Any:
            if i < self.total:
                self._noted[int(number), int(i)] = id_text(id_)
            return i

        i = tf.ensure_shape(tf.numpy_function(note, [number, i, id_], tf.int64), ())
        kind = tf.float32 if 64 * self._span < PRECISE else tf.float64
        return tf.cast(number * self._span + i, kind) + MARK

    @property
    def _span(self) -> int:
        return self.total + 1 + self.padding

    # -- recognizing ------------------------------------------------------------------------------

    def take(self, third: Any, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the numbers that came back with a batch, and which of them belong to the report."""
        numbers, passes = self._numbers(third, length)
        if (numbers < 0).any():
            raise Lost("a number below 0")
        if (numbers == self.total).any():
            raise self._miscounted("more")
        if self._pass is None and (numbers < self.total).any():
            self._pass = int(passes[np.argmax(numbers < self.total)])
        if not self._done:  # batchify may repeat the rows within an epoch, and count them in its batches
            self._is_several = self._epoch * length >= 2 * self.total
        own = (numbers < len(self.times)) & ((passes == self._pass) | self._is_several)
        self._done += 1
        is_next = not self._is_several and bool(((passes != self._pass) & (numbers < self.total)).any())
        if self._done > self._epoch and self.times.all():
            is_next |= self._drop_repeated(numbers, own)
        self._count(numbers, passes, own)
        if is_next and not self._has_ended:  # a pass ends with its padding rows
            self._is_shuffled = True
        # A shuffle buffer may hold a row back for long, but not forever.
        waits = not self._is_shuffled or self._idle > 2 * self._epoch + self.padding + 1000
        ended = self._is_several and self._done >= self._epoch
        self.is_over = (is_next and (waits or bool(self.times.all()))) or ended
        return numbers, own

    def _count(
        self, numbers: npt.NDArray[np.int64], passes: npt.NDArray[np.int64], own: npt.NDArray[np.bool_]
    ) -> None:
        """Count the rows that have arrived, and record their IDs."""
        np.add.at(self.times, numbers[own], 1)
        self._idle = 0 if own.any() else self._idle + 1
        if own.any():
            self._is_shuffled |= bool(numbers[own].min() < self._last)
            self._last = int(numbers[own].max())
        self._has_ended |= bool(((passes == self._pass) & (numbers > self.total)).any())
        for i in np.flatnonzero(own):
            key = int(passes[i]), int(numbers[i])
            if key in self._noted:
                self.ids[key[1]] = self._noted[key]

    def _drop_repeated(self, numbers: npt.NDArray[np.int64], own: npt.NDArray[np.bool_]) -> bool:
        """Deselect rows that begin another epoch: all rows have come, and these more often than any other.

        Return whether there were any.
        """
        most, times = self.times.max(initial=0), self.times.copy()
        for i in np.flatnonzero(own):
            times[numbers[i]] += 1
            own[i] = times[numbers[i]] <= most
        return bool((times > most).any())

    def _numbers(self, third: Any, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        found = np.asarray(third)
        if found.size != length:
            raise Lost(f"shape {found.shape}")
        found = found.reshape(length)
        if found.dtype.kind in "OSU":
            return self._read(found)
        if found.dtype.kind not in "iuf":
            raise Lost(f"numbers of type {found.dtype}")
        values = found.astype(np.float64) - MARK
        whole = values.round()
        if not np.isfinite(values).all() or np.abs(values - whole).max(initial=0) > NEAR:
            raise Lost(f"{found[0]:g}")
        passes, numbers = np.divmod(whole.astype(np.int64), self._span)
        return numbers, passes

    def _read(self, found: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        parts = [id_text(cell).split(",", 2) for cell in found]
        try:
            passes = np.array([int(part[0]) for part in parts], dtype=np.int64)
            numbers = np.array([int(part[1]) for part in parts], dtype=np.int64)
            self._noted = {(int(part[0]), int(part[1])): part[2] for part in parts}
        except (ValueError, IndexError):
            raise Lost(repr(id_text(found[0]))[:40]) from None
        return numbers, passes
