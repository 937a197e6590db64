"""Training batches from generators, positioned by (seed, step).

A generator can only be read from its beginning. Training batches are therefore divided into segments of whole
epochs, about 2,000 batches each. Every segment starts with new generators under its own seed. A start in the
middle of a segment reads and discards the batches before it in that segment, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.batch import Batch
from manyfit.data.order import Order
from manyfit.data.randomness import seed_for
from manyfit.pipeline.generators import SplitGenerators, is_dataset, seed_with_tensorflow

log = logging.getLogger("manyfit")

SEGMENT: Final = 2048
"""Batches after which generators are created again, at the end of the epoch."""


class Feed(Iterator[Batch]):
    """Endless training batches. A `tf.data` pipeline can also be read natively, by `native`."""

    def __init__(self, source: SplitGenerators, order: Order, start: int) -> None:
        self._source = source
        self._seed = order.seed or 0
        self._limited = order.limit is not None
        per_epoch = source.steps(order)
        self._length = per_epoch * (1 if self._limited else -(-SEGMENT // per_epoch))
        self._step = start
        self._left = 0
        self._batches: Iterator[Any] = iter(())
        self._is_native = False
        self._open()

    @property
    def framework(self) -> str:
        """The framework of the pipeline: `tensorflow` for `tf.data`, else empty."""
        return "tensorflow" if self._is_native else ""

    def native(self, most: int) -> tuple[Any, int]:
        """Return a TensorFlow iterator, and how many batches, at most `most`, may be taken from it now."""
        if not self._left:
            self._open()
        count = min(most, self._left)
        self._step += count
        self._left -= count
        return self._batches, count

    def __next__(self) -> Batch:
        if not self._left:
            self._open()
        batch = self._source.batch(self._pull(self._step), 0)
        self._step += 1
        self._left -= 1
        return batch

    def _open(self) -> None:
        """Open the segment of the next step, and read up to that step."""
        segment, skipped = divmod(self._step, self._length)
        seed_with_tensorflow(derive(self._seed, "segment", 0 if self._limited else segment))
        self._source.renew()
        found, _ = self._source.pipeline(self._source.endless())
        self._left = self._length - skipped
        self._is_native = is_dataset(found)
        if skipped:
            log.info("reading and discarding %d batches to restore the position in the data", skipped)
        if skipped and self._is_native and found.options().deterministic is False:
            log.warning("the TensorFlow pipeline is not deterministic: resuming within an epoch is not exact")
        if self._is_native:
            self._batches = iter(found.repeat().skip(skipped).take(self._left).prefetch(2))
            return
        self._batches = iter(found)
        for step in range(self._step - skipped, self._step):
            self._pull(step)

    def _pull(self, step: int) -> Any:
        if not self._is_native:
            seed_for(derive(self._seed, "batch", step % self._length if self._limited else step))
        values = self._source.next_of(self._batches)
        if values is None:  # batches that end start over
            self._batches = iter(self._source.pipeline(self._source.endless())[0])
            values = self._source.next_of(self._batches)
        if values is None:
            name = type(self._source.preprocessor).__name__
            raise UsageError(f"{name} yields no batches")
        return values
