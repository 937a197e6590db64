"""The splits of a run, as loaders that a user's functions iterate over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from manyfit.data import Batch, Order, Source, once, steps_of
from manyfit.data.overlap import inner
from manyfit.learn.functions.losses import as_written, to_device


class SplitLoader:
    """A split as batches on the device, in the form of a PyTorch loader. It can be iterated repeatedly.

    While manyfit counts the batches of an epoch or of an evaluation, the first iteration reads those; any
    other iteration reads the split on its own.
    """

    def __init__(
        self, source: Source, batch_size: int, tensor: Callable[[Any], Tensor], order: Order | None = None
    ) -> None:
        self.source = source
        self.batch_size = batch_size
        self._tensor = tensor
        self._order = order
        self._feed: Iterator[Batch] | None = None
        self.epoch = 0

    @property
    def dataset(self) -> Any:
        """The data set of the split, or the source if it is made of something else."""
        source = inner(self.source)
        return getattr(source, "dataset", source)

    def __len__(self) -> int:
        if self._order is not None:
            return steps_of(self.source, self._order)
        return -(-len(self.source) // self.batch_size)

    def attach(self, feed: Iterator[Batch] | None) -> None:
        """Let the next iteration read these batches; None to read the split itself."""
        self._feed = feed

    def read(self) -> Iterator[Batch]:
        """Return the batches of an iteration as they are."""
        feed, self._feed = self._feed, None
        return self._pass() if feed is None else feed

    def __iter__(self) -> Iterator[Any]:
        return WrittenBatches(self.read(), self._tensor)

    def _pass(self) -> Iterator[Batch]:
        if self._order is None:
            return once(self.source, self.batch_size)
        steps = len(self)
        batches = self.source.batches(self._order, self.epoch * steps)
        return (batch for _, batch in zip(range(steps), batches, strict=False))


class WrittenBatches(Iterator[Any]):
    """Batches in the form of a PyTorch loader, on the device."""

    def __init__(self, batches: Iterator[Batch], tensor: Callable[[Any], Tensor]) -> None:
        self._batches = batches
        self._tensor = tensor

    def __next__(self) -> Any:
        return as_written(to_device(next(self._batches), self._tensor))


class CountedBatches(Iterator[Batch]):
    """Batches that are counted as they are handed out, up to a number; `seen` is called after each."""

    def __init__(
        self, take: Callable[[], Batch | None], seen: Callable[[Batch], None], most: int | None = None
    ) -> None:
        self._take = take
        self._seen = seen
        self._most = most
        self._open: Batch | None = None
        self.handed = 0
        self.rows = 0
        self.has_ended = False

    def __next__(self) -> Batch:
        if self.has_ended or (self._most is not None and self.handed >= self._most):
            raise StopIteration  # the last batch counts when the epoch has ended, not when it was read
        self.settle()
        batch = self._take()
        if batch is None:
            self.has_ended = True
            raise StopIteration
        self.handed += 1
        self.rows += len(batch)
        self._open = batch
        return batch

    def settle(self) -> None:
        """Count the batch that was handed out last."""
        batch, self._open = self._open, None
        if batch is not None:
            self._seen(batch)


@dataclass(frozen=True)
class RunData:
    """The data that functions may read."""

    train: Source
    order: Order
    validation: Source | None = None
    test: Source | None = None
    batch_size: int = 1
    """Rows per batch of validation and test."""


def make_loaders(data: RunData | None, tensor: Callable[[Any], Tensor]) -> dict[str, SplitLoader | None]:
    """Return the loader of each split; None for those without rows."""
    found: dict[str, SplitLoader | None] = {"train": None, "validation": None, "test": None}
    if data is None:
        return found
    found["train"] = SplitLoader(data.train, data.order.batch_size, tensor, data.order)
    for name, source in (("validation", data.validation), ("test", data.test)):
        if source is not None and len(source):
            found[name] = SplitLoader(source, data.batch_size, tensor)
    return found
