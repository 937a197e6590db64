"""PyTorch loaders as sources: taken apart, so that the order of rows is a function of the seed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.data.batch import Batch
from manyfit.data.collate import as_batch
from manyfit.data.dataset import DatasetSource, Rows
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.randomness import own_randomness
from manyfit.data.row_hash import drop_weight, hash_row
from manyfit.data.sampler import SeededSampler
from manyfit.data.stream import IterableSource

log = logging.getLogger("manyfit")


class LoaderSource(DatasetSource):
    """The rows of a PyTorch loader: its data set, in the order of the run or of a sampler of its own.

    A sampler is seeded for each epoch. Evaluation reads every row once, in storage order.
    """

    takes_shards = False

    def __init__(
        self,
        dataset: Any,
        workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
    ) -> None:
        super().__init__(dataset, workers)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._collate = collate
        self._sampler = None if sampler is None else SeededSampler(sampler, dataset)
        self._batch_sampler = None if batch_sampler is None else SeededSampler(batch_sampler, dataset)
        self._first: dict[int, int] = {}
        """By seed: the number of batches in the first epoch of a batch sampler."""
        own = sampler is not None or batch_sampler is not None
        self._rows = np.sort(self._draw(0, 0)) if own else None
        if own and len(self._rows) != len(np.unique(self._rows)):  # type: ignore[arg-type]
            self._rows = np.unique(self._rows)  # type: ignore[arg-type]
        self._count = len(self._draw(0, 0)) if own else len(dataset)

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a sampler nor a collate function of its own."""
        return self._collate is None and self._sampler is None and self._batch_sampler is None

    @property
    def can_be_joined(self) -> bool:
        """Whether its rows can be divided anew: it has no sampler of its own."""
        return self._sampler is None and self._batch_sampler is None

    def over(self, dataset: Any) -> LoaderSource:
        """Return a source of the same settings over another data set."""
        return LoaderSource(dataset, self.workers, self.shuffle, self.drop_last, self._collate)

    def __len__(self) -> int:
        return len(self.dataset) if self._rows is None else len(self._rows)

    def steps(self, order: Order) -> int:
        """Return the number of batches in an epoch."""
        if self._batch_sampler is not None and order.seed is not None and order.limit is None:
            return self._count_first(order.seed)
        return self._arrange(order).steps(self._count if order.seed is not None else len(self))

    def plan(self, order: Order, start: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the (epoch, row) keys of each step from `start`."""
        steps = self.steps(order)
        if not steps:
            return
        epoch, step = divmod(start, steps)
        while epoch != order.epochs:
            for rows in self._epoch(order, epoch)[step:steps]:
                yield [(epoch, int(row)) for row in rows]
            epoch, step = epoch + 1, 0

    def _epoch(self, order: Order, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Return the rows of each batch of an epoch."""
        seed, size = order.seed, order.batch_size
        if seed is not None and self._batch_sampler is not None and order.limit is None:
            found = [np.asarray(rows, dtype=np.int64) for rows in self._batches_of(seed, epoch)]
            self._check_steps(len(found), self._count_first(seed))
            return found
        if seed is not None and self._sampler is not None:
            rows = self._draw(seed, epoch)
            self._check_steps(len(rows), self._count)
            rows = rows[: order.count(len(rows))]
        else:
            placed = self._arrange(order).epoch(len(self), epoch)
            rows = placed if self._rows is None else self._rows[placed]
        return [rows[begin : begin + size] for begin in range(0, len(rows), size)]

    def _arrange(self, order: Order) -> Order:
        """Return the order with what the loader says about it; evaluation reads everything in order."""
        if order.seed is None:
            return order
        drop = order.drop_remainder or self.drop_last
        return replace(order, seed=order.seed if self.shuffle else None, drop_remainder=drop)

    def _check_steps(self, found: int, expected: int) -> None:
        if found != expected:
            raise UsageError(
                f"the sampler of a loader returned {found} in one epoch and {expected} in the first; every "
                "epoch must have the same length"
            )

    def _draw(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        if self._sampler is None:
            return np.concatenate(
                [np.asarray(rows, dtype=np.int64) for rows in self._batches_of(seed, epoch)]
            )
        return np.array(self._sampler.epoch(seed, epoch), dtype=np.int64)

    def _batches_of(self, seed: int, epoch: int) -> list[Any]:
        assert self._batch_sampler is not None
        return self._batch_sampler.epoch(seed, epoch)

    def _count_first(self, seed: int) -> int:
        if seed not in self._first:
            self._first[seed] = len(self._batches_of(seed, 0))
        return self._first[seed]

    def make_batch(self, items: list[tuple[Any, int]], index: list[int]) -> Batch:
        """Collate rows with the loader's own function, if it has one."""
        if self._collate is None:
            return super().make_batch(items, index)
        found = self._collate([item for item, _ in items])
        return as_batch(found, np.asarray(index, dtype=np.int64))

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows, as in the first epoch."""
        if self._rows is None:
            yield from super().contents(most)
            return
        rows = Rows(self.dataset, 0)
        for place in spread(len(self), most).tolist():
            with own_randomness():
                yield int(self._rows[place]), hash_row(drop_weight(rows[(0, int(self._rows[place]))][0]))

    def fingerprint(self) -> str:
        """Return the fingerprint of the data set, and of the rows that are read."""
        found = super().fingerprint()
        if self._rows is None:
            return found
        return hashlib.sha256(f"{found}:{self._rows.tobytes().hex()}".encode()).hexdigest()


def is_loader(value: Any) -> bool:
    """Return whether a value is a PyTorch loader, without importing torch."""
    return any(f"{cls.__module__}.{cls.__name__}" == LOADER for cls in type(value).__mro__)


LOADER = "torch.utils.data.dataloader.DataLoader"


def take_apart(loader: Any, what: str = "a loader") -> tuple[Any, int]:
    """Return the source and the batch size of a PyTorch loader; what cannot be taken apart is refused."""
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
        default_collate,
    )

    def refuse(reason: str) -> UsageError:
        return UsageError(f"{what}: the order of its rows cannot be reproduced: {reason}")

    if type(loader).__iter__ is not DataLoader.__iter__:
        raise refuse(
            f"{type(loader).__name__} defines its own __iter__; return a torch DataLoader, or a data set"
        )
    if loader.worker_init_fn is not None:
        log.warning("%s: worker_init_fn is not called: the random numbers of a row depend on the seed", what)
    if isinstance(loader.dataset, IterableDataset):
        if loader.batch_size is None:
            raise refuse("batch_size is None: the data set yields whole batches; let it yield rows")
        stream = IterableSource(loader.dataset, workers=loader.num_workers, drop_last=bool(loader.drop_last))
        if loader.collate_fn is not default_collate:
            stream = stream.with_collate(loader.collate_fn)
        return stream, int(loader.batch_size)
    collate = loader.collate_fn if loader.collate_fn is not default_collate else None
    sampler, batch_sampler, drop_last = loader.sampler, None, bool(loader.drop_last)
    if type(loader.batch_sampler) is BatchSampler:
        sampler, drop_last = loader.batch_sampler.sampler, loader.batch_sampler.drop_last
    else:
        if loader.batch_sampler is None:
            raise refuse("batch_size is None: the data set returns whole batches; let it return rows")
        batch_sampler = loader.batch_sampler
    is_random = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    is_plain = is_random or type(sampler) is SequentialSampler
    size: Any = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if batch_sampler is not None and size is None:
        size = max(len(list(rows)) for rows in batch_sampler)
    source = LoaderSource(
        loader.dataset, loader.num_workers, is_random, drop_last, collate,
        None if is_plain or batch_sampler is not None else sampler, batch_sampler,
    )  # fmt: skip
    return source, int(size)
