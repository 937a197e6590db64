"""The rows of the next steps: their numbers, if all rows are on the device, or else batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from manyfit.data import Batch
from manyfit.data.nested import named_arrays
from manyfit.data.walk import Walk
from manyfit.learn.torch.fused.calls import StackedBatch
from manyfit.learn.torch.fused.launch.slots import DeviceColumns

log = logging.getLogger("manyfit")

LARGEST_SHARE: Final = 0.25
"""The largest share of the free memory of the device for all rows of a source."""


class DeviceRows:
    """Sources whose rows were copied to the device."""

    def __init__(self, tensor: Callable[[Any], Tensor]) -> None:
        """`tensor` returns an array as a tensor on the device."""
        self._tensor = tensor
        self._known: dict[int, tuple[Batch, list[Tensor] | None]] = {}

    def find(self, walk: Walk) -> list[Tensor] | None:
        """Return the columns of what is read, or None if there are none, which is said once."""
        columns = walk.columns()
        if isinstance(columns, str):
            log.debug("rows are copied to the device batch by batch: %s", columns)
            return None
        key = id(columns.inputs)
        if key not in self._known:
            self._known[key] = columns, self._copy(columns)
        return self._known[key][1]

    def _copy(self, columns: Batch) -> list[Tensor] | None:
        parts = (columns.inputs, columns.target, columns.weight)
        arrays = [array for part in parts for _, array in named_arrays(part)]
        size = sum(array.nbytes for array in arrays)
        if torch.cuda.is_available() and size > LARGEST_SHARE * torch.cuda.mem_get_info()[0]:
            log.info("rows are copied to the device batch by batch: all of them do not fit into its memory")
            return None
        return [self._tensor(np.ascontiguousarray(array)) for array in arrays]


class RowFeed:
    """The rows of the next steps of a walk."""

    def __init__(
        self, walk: Walk, rows: Sequence[int], found: DeviceRows, stack: Callable[[Any], StackedBatch]
    ) -> None:
        """`rows` has the run of each row of a stack; `stack` returns batches of all runs as one."""
        self.walk = walk
        self._stack = stack
        columns = found.find(walk)
        self.columns: DeviceColumns | None = None
        if columns is not None:
            self.columns = DeviceColumns(columns, [walk.places[owner] for owner in rows])

    def read(self, steps: int) -> list[Any]:
        """Return the row numbers of the next steps by stream, or batches; fewer if the data ends."""
        if self.columns is not None:
            return list(self.walk.next_rows(steps))
        found = []
        for _ in range(steps):
            batches = next(self.walk, None)
            if batches is None:
                break
            found.append(self._stack(batches))
        return found

    def make_batch(self, rows: Any) -> StackedBatch:
        """Return the batch of a step."""
        return rows if isinstance(rows, StackedBatch) else self._stack(self.walk.make(rows))


def find_batch_size(rows: Any) -> int:
    """Return the size of the batch of a step."""
    return rows.rows if isinstance(rows, StackedBatch) else len(rows[0])


def count_alike(steps: Sequence[Any]) -> int:
    """Return how many of the first steps have batches of the same size."""
    size = find_batch_size(steps[0])
    return next((i for i, each in enumerate(steps) if find_batch_size(each) != size), len(steps))
