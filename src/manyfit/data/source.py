"""Sources of rows. A row has a number and a stable ID."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt

from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import UsageError
from manyfit.data.batch import Array, Batch, Inputs
from manyfit.data.dataset import DatasetSource, check_ids
from manyfit.data.layout import Layout
from manyfit.data.loader import LoaderSource, is_loader, take_apart
from manyfit.data.nested import Nested, map_arrays, named_arrays
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.resident import Resident
from manyfit.data.stream import IterableSource

log = logging.getLogger("manyfit")

Split: TypeAlias = Literal["train", "validation", "test"]


@runtime_checkable
class Source(Protocol):
    """The rows of one split."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, for the number of epochs in `order`."""
        ...

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the contents."""
        ...


@runtime_checkable
class Data(Protocol):
    """The component at `data:` in a config, with a batch size and a source for each split.

    Nothing is read until `source` is called.
    """

    batch_size: int

    def source(self, split: Split) -> Source | None:
        """Return the rows of a split, or None if there is no such split."""
        ...


class ArraySource:
    """Arrays in memory (or memory-mapped) with the same number of rows; a batch is one gather.

    The target is an array, or a dict or a tuple of them. `weight` is the weight of each row in training.

    >>> source = ArraySource(np.zeros((5, 2)), np.arange(5))
    >>> [len(batch) for batch, _ in zip(source.batches(Order(batch_size=2)), range(3))]
    [2, 2, 1]
    """

    is_constant = True
    """Whether reading has no side effects, so that runs can share it."""
    takes_shards = True
    """Whether its rows can be divided into shards: they can be read in any order."""

    def __init__(
        self,
        inputs: Inputs,
        target: Nested = None,
        ids: Sequence[object] | None = None,
        weight: Array | None = None,
    ) -> None:
        self.inputs = _arrays(inputs)
        self.target = map_arrays(np.asarray, target) if isinstance(target, dict | tuple) else _array(target)
        self.weight = None if weight is None else np.asarray(weight)
        lengths = {name: len(array) for name, array in self._columns()}
        if ids is not None:
            lengths["ids"] = len(ids)
        if len(set(lengths.values())) != 1:
            shown = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise UsageError(f"the arrays of a source must have the same number of rows, but {shown}")
        self._rows = next(iter(lengths.values()))
        self.given_ids = check_ids(ids, self._rows)

    def __len__(self) -> int:
        return self._rows

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`, for the number of epochs in `order`."""
        inputs, target, weight = self.inputs, self.target, self.weight
        if isinstance(inputs, dict | tuple) or target is None or weight is not None:
            for index in order.walk(self._rows, start):
                yield Batch(
                    self._gather(index),
                    None if target is None else gather(target, index),
                    index,
                    None if weight is None else gather(weight, index),
                )
        elif isinstance(target, np.ndarray) and inputs.ndim > 1 and target.ndim == 1:
            take = inputs.take
            for index in order.walk(self._rows, start):
                yield Batch(take(index, 0), target[index], index)
        else:
            for index in order.walk(self._rows, start):
                yield Batch(gather(inputs, index), gather(target, index), index)

    def resident(self, order: Order) -> Resident | str:
        """Return the arrays and the order of their rows."""
        if type(self).batches is not ArraySource.batches:
            return f"{type(self).__name__} makes its batches itself"
        all_ = Batch(self.inputs, self.target, np.arange(self._rows), self.weight)
        return Resident(all_, lambda start: order.walk(self._rows, start))

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows; row numbers by default."""
        if self.given_ids is None:
            return [str(row) for row in index]
        return [self.given_ids[row] for row in index]

    def fingerprint(self) -> str:
        """Return a hash of every column with its name, type and shape, and of the IDs."""
        digest = hashlib.sha256()
        for name, array in self._columns():
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\x1f".join(self.given_ids or ()).encode())
        return digest.hexdigest()

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows."""
        columns = [column for name, column in self._columns() if name != "weight"]
        for row in spread(self._rows, most).tolist():
            yield row, hash(tuple(column[row].tobytes() for column in columns))

    def _gather(self, index: npt.NDArray[np.int64]) -> Inputs:
        if isinstance(self.inputs, dict):
            return {name: gather(array, index) for name, array in self.inputs.items()}
        if isinstance(self.inputs, tuple):
            return tuple(gather(array, index) for array in self.inputs)
        return gather(self.inputs, index)

    def _columns(self) -> Iterator[tuple[str, Array]]:
        if isinstance(self.inputs, dict):
            yield from self.inputs.items()
        else:
            columns = self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
            yield from ((f"inputs.{i}", array) for i, array in enumerate(columns))
        yield from named_arrays(self.target, "target")
        if self.weight is not None:
            yield "weight", self.weight


def _array(values: Any) -> Any:
    return None if values is None else np.asarray(values)


def gather(array: Nested, index: npt.NDArray[np.int64]) -> Nested:
    """Return some rows of an array, by the faster of two ways; or of several arrays."""
    if isinstance(array, dict | tuple):
        return map_arrays(lambda each: gather(each, index), array)
    return array.take(index, 0) if array.ndim > 1 else array[index]


def _arrays(inputs: Any) -> Inputs:
    """Convert inputs (arrays, tensors on the CPU, lists) to arrays."""
    if isinstance(inputs, dict):
        return {name: np.asarray(column) for name, column in inputs.items()}
    return tuple(np.asarray(column) for column in inputs) if isinstance(inputs, tuple) else np.asarray(inputs)


STREAM_DEFAULTS = {"count": None, "shards": 1, "shuffle_buffer": 0}
"""Settings of `Splits` that apply to streams only: other values are refused for other data."""


class NotASource(UsageError):
    """A value from which rows cannot be read."""


def as_source(found: Any, workers: int = 0) -> Source | None:
    """Convert a source, a map-style data set or an iterable to a source; None stays None."""
    if found is None or isinstance(found, ArraySource) or isinstance(found, Source):  # noqa: SIM101
        return found  # arrays first: most sources are, and an isinstance check of a protocol is slow
    if is_loader(found):
        return take_apart(found)[0]  # type: ignore[no-any-return]
    streams = any(base.__name__ == "IterableDataset" for base in type(found).__mro__)
    rows = hasattr(found, "__getitem__") and hasattr(found, "__len__") and not isinstance(found, dict | str)
    if rows and not streams:
        return DatasetSource(found, workers)
    if isinstance(found, Iterable) and not isinstance(found, dict | str):
        return IterableSource(found, workers=workers)
    if callable(found) and not isinstance(found, type):
        return IterableSource(found, workers=workers)
    raise NotASource(f"{type(found).__name__!r} is neither a source, nor a data set, nor an iterable")


class Splits:
    """Plain data sets as the data of a run: one for each split, map-style or iterable.

    data: {class: manyfit.data.Splits, batch_size: 32, workers: 2, train: {class: images.Train, root: data}}

    `shuffle`, `drop_last` and `sampler` are about training; evaluation reads every row, in order. A sampler
    is iterated for every epoch, with generators seeded by (seed, epoch). For a training split that is a
    stream, `count` is the number of rows in an epoch, `shuffle_buffer` the number of rows that are shuffled
    at a time, and `stream_shards` the number of parts that workers can read.
    """

    def __init__(
        self,
        train: Any,
        validation: Any = None,
        test: Any = None,
        batch_size: Annotated[int, Gt(0)] = 32,
        workers: Annotated[int, Kind.NEUTRAL, Ge(0)] = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[..., Any] | None = None,
        sampler: Callable[..., Any] | None = None,
        count: Annotated[int, Gt(0)] | None = None,
        stream_shards: Annotated[int, Ge(1)] = 1,
        shuffle_buffer: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`collate` is a function of a list of rows; `sampler` one of the training data set."""
        self.collate = collate
        self.sampler = sampler
        self.batch_size = batch_size
        self.workers = workers
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.stream: dict[str, Any] = {
            "count": count,
            "shards": stream_shards,
            "shuffle_buffer": shuffle_buffer,
        }
        self.given = {"train": train, "validation": validation, "test": test}

    def source(self, split: Split) -> Source | None:
        """Return the rows of one split."""
        try:
            given, is_train = self.given[split], split == "train"
            found, size = take_apart(given) if is_loader(given) else (as_source(given, self.workers), None)
            if size not in (None, self.batch_size):
                text = "%s: the loader has the batch size %d, but data.batch_size is %d, which is used"
                log.warning(text, split, size, self.batch_size)
            if isinstance(found, IterableSource):
                return self._arrange_stream(found, is_train)
            if is_train and self.stream != STREAM_DEFAULTS:
                raise UsageError(f"{split}: count, stream_shards and shuffle_buffer apply to streams only")
            is_ordered = is_train and (not self.shuffle or self.drop_last or self.sampler is not None)
            if found is None or not (is_ordered or self.collate is not None):
                return found
            if type(found) is not DatasetSource:
                raise UsageError(f"{split}: shuffle, drop_last and sampler apply to map-style data sets only")
            sampler = self.sampler(found.dataset) if is_train and self.sampler is not None else None
            drop_last = self.drop_last and is_train
            return LoaderSource(found.dataset, self.workers, self.shuffle, drop_last, self.collate, sampler)
        except NotASource as error:
            raise UsageError(f"{split}: {error}") from error

    def _arrange_stream(self, found: IterableSource, is_train: bool) -> IterableSource:
        if is_train and (not self.shuffle or self.sampler is not None):
            raise UsageError("train: shuffle and sampler apply to map-style data sets, and this is a stream")
        if self.collate is not None:
            found = found.with_collate(self.collate)
        return found.arrange(**self.stream, drop_last=self.drop_last) if is_train else found


def once(source: Source, batch_size: int) -> Iterator[Batch]:
    """Yield every row exactly once, in storage order."""
    return iter(source.batches(Order(batch_size, epochs=1)))


def once_over(source: Source, layout: Layout, batch_size: int, shard: int) -> Iterator[Batch]:
    """Return one pass over the rows of a shard, in storage order."""
    order = Order(batch_size, epochs=1, layout=layout, visits=((shard,),))
    return iter(source.batches(replace(order, until=order.batches_of(layout.sizes[shard]))))
