"""Sources: where rows come from. A source knows its rows by number and by a stable id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.batch import Array, Batch, Inputs
from manyfit.data.order import Order

Split: TypeAlias = Literal["train", "validation", "test"]


@runtime_checkable
class Source(Protocol):
    """The rows of one split."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on, epoch after epoch, without end."""
        ...

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows."""
        ...

    def fingerprint(self) -> str:
        """A hash of the content: another content is another fingerprint."""
        ...


@runtime_checkable
class Data(Protocol):
    """What stands at `data:` in a config: it has a batch size and gives a source for each split.

    Nothing is read before `source` is called.
    """

    batch_size: int

    def source(self, split: Split) -> Source | None:
        """The rows of a split, or None if there is no such split."""
        ...


class ArraySource:
    """Arrays in memory (or memory-mapped) with the same number of rows; a batch is one gather.

    >>> source = ArraySource(np.zeros((5, 2)), np.arange(5))
    >>> [len(batch) for batch, _ in zip(source.batches(Order(batch_size=2)), range(3))]
    [2, 2, 1]
    """

    def __init__(
        self, inputs: Inputs, target: Array | None = None, ids: Sequence[object] | None = None
    ) -> None:
        self.inputs = _arrays(inputs)
        self.target = None if target is None else np.asarray(target)
        self._ids = [str(id_) for id_ in ids] if ids is not None else None
        lengths = {name: len(array) for name, array in self._columns()}
        if self._ids is not None:
            lengths["ids"] = len(self._ids)
        if len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise UsageError(f"the arrays of a source must have the same number of rows, but {shown}")
        if self._ids is not None and len(set(self._ids)) != len(self._ids):
            raise UsageError("the ids of a source must be unique, but some are repeated")
        self._rows = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._rows

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on, epoch after epoch, without end."""
        for index in order.walk(self._rows, start):
            yield Batch(self._gather(index), None if self.target is None else self.target[index], index)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows; row numbers where none were given."""
        if self._ids is None:
            return [str(row) for row in index]
        return [self._ids[row] for row in index]

    def fingerprint(self) -> str:
        """Hash every column with its name, type and shape, and the ids."""
        digest = hashlib.sha256()
        for name, array in self._columns():
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\x1f".join(self._ids or ()).encode())
        return digest.hexdigest()

    def _gather(self, index: npt.NDArray[np.int64]) -> Inputs:
        if isinstance(self.inputs, dict):
            return {name: array[index] for name, array in self.inputs.items()}
        if isinstance(self.inputs, tuple):
            return tuple(array[index] for array in self.inputs)
        return self.inputs[index]

    def _columns(self) -> Iterator[tuple[str, Array]]:
        if isinstance(self.inputs, dict):
            yield from self.inputs.items()
        else:
            columns = self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
            yield from ((f"inputs.{i}", array) for i, array in enumerate(columns))
        if self.target is not None:
            yield "target", self.target


def _arrays(inputs: Any) -> Inputs:
    """Arrays, or what can be read as some (tensors on the CPU, lists)."""
    if isinstance(inputs, dict):
        return {name: np.asarray(column) for name, column in inputs.items()}
    return tuple(np.asarray(column) for column in inputs) if isinstance(inputs, tuple) else np.asarray(inputs)


def once(source: Source, batch_size: int) -> Iterator[Batch]:
    """Walk every row exactly once, as they lie."""
    order = Order(batch_size)
    batches: Any = source.batches(order)
    for _ in range(order.steps(len(source))):
        yield next(batches)
