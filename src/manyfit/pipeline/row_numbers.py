"""Data points of a report on their way through a preprocessor: each carries its number where a weight stands.

What comes back is known by its number, however the rows were shuffled, sorted, left out or made into several.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.dataset import hash_row

UNKNOWN: Final = -2
"""What TensorFlow says of a data set whose length it does not know; -1 is one without end."""
PRECISE: Final = 1 << 20
"""Numbers below this one, and a quarter, are exact in single precision."""
MARK: Final = 0.25
"""What is added to a number, so that it is noticed if somebody has made another one of it."""
NEAR: Final = 1e-3


def id_text(id_: Any) -> str:
    """An id as text; bytes are decoded."""
    plain = id_.item() if hasattr(id_, "item") else id_
    return plain.decode(errors="replace") if isinstance(plain, bytes) else str(plain)


class Lost(UsageError):
    """What came back where the numbers of data points should be is something else."""


class RowTracker:
    """Numbers data points, and counts those that come back, in one pass after another.

    Behind the last one there are some more, with higher numbers, so that the last batch can be filled.
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
        """Begin a pass, in which the first so many data points are wanted; so many batches make an epoch."""
        self.times = np.zeros(wanted, dtype=np.int64)
        self.is_over = False
        self._pass: int | None = None
        self._epoch, self._done = batches, 0
        self._is_several = False
        self._idle, self._last, self._is_shuffled, self._has_ended = 0, -1, False, False
        self.ids = {}

    def forget(self) -> None:
        """Forget the ids of earlier passes."""
        self._noted.clear()

    # -- on the way in ----------------------------------------------------------------------------

    def rows(self, made: Iterable[Any], again: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Rows of a generator of Python, numbered."""
        count, first, left = 0, b"", iter(made)
        for number, row in enumerate(left):
            if number == self.total:  # it has begun anew, or has more rows than it says
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
        """Rows of a `tf.data.Dataset`, numbered: by text that holds the id, too, or by a number alone."""
        tf: Any = sys.modules["tensorflow"]
        count = int(rows.cardinality())
        if 0 <= count != self.total:
            raise self._miscounted(str(count))
        own = rows.take(self.total) if count != UNKNOWN else rows.take(self.total + 1)
        beyond = rows.take(self.padding).enumerate(self.total + 1)
        numbered = own.enumerate().concatenate(beyond)
        slot = self._as_text if is_text else self._as_number
        # A preprocessor may repeat what it is given: rows of another pass are told apart by its number.
        passes = tf.data.Dataset.from_generator(
            lambda: iter([next(self._passes)]), output_signature=tf.TensorSpec((), tf.int64)
        )

        def one(number: Any) -> Any:
            return numbered.map(lambda i, row: (row[0], row[1], slot(tf, number, i, row[2])))

        return passes.flat_map(one)

    @staticmethod
    def takes_text(spec: Any) -> bool:
        """Whether ids of this kind look the same as text of TensorFlow."""
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

    # -- on the way back --------------------------------------------------------------------------

    def take(self, third: Any, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The numbers that came back with a batch, and which of them belong to the report."""
        numbers, passes = self._numbers(third, length)
        if (numbers < 0).any():
            raise Lost("a number below 0")
        if (numbers == self.total).any():
            raise self._miscounted("more")
        if self._pass is None and (numbers < self.total).any():
            self._pass = int(passes[np.argmax(numbers < self.total)])
        if not self._done:  # somebody may go over the rows more than once, and say so
            self._is_several = self._epoch * length >= 2 * self.total
        own = (numbers < len(self.times)) & ((passes == self._pass) | self._is_several)
        self._done += 1
        is_next = not self._is_several and bool(((passes != self._pass) & (numbers < self.total)).any())
        if self._done > self._epoch and self.times.all():
            is_next |= self._drop_repeated(numbers, own)
        self._count(numbers, passes, own)
        if is_next and not self._has_ended:  # the rows of a pass end with those that fill the last batch
            self._is_shuffled = True
        # A shuffle may hold a row back for long, but not for ever.
        waits = not self._is_shuffled or self._idle > 2 * self._epoch + self.padding + 1000
        ended = self._is_several and self._done >= self._epoch
        self.is_over = (is_next and (waits or bool(self.times.all()))) or ended
        return numbers, own

    def _count(
        self, numbers: npt.NDArray[np.int64], passes: npt.NDArray[np.int64], own: npt.NDArray[np.bool_]
    ) -> None:
        """Note which rows have come, and with which ids."""
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
        """After an epoch in which all rows came, one that comes more often than any before begins another."""
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
