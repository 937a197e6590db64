"""The memory that launched steps read: a graph has fixed addresses, whose contents are replaced.

Each of the next steps has a slot for its rows, its keys of dropout and the factors of its update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyfit.data.nested import map_arrays, named_arrays
from manyfit.data.resident import RowNumbers
from manyfit.learn.torch.fused.calls import StackedBatch
from manyfit.learn.torch.fused.optimizers import StackedOptimizer
from manyfit.learn.torch.fused.options import Vectors
from manyfit.learn.torch.fused.update import FactorField

Values = Mapping[str, npt.NDArray[np.float64]]
"""Factors by name, each of shape (steps, rows)."""


def flatten_batch(batch: StackedBatch) -> list[Tensor]:
    """Return the tensors of a batch: inputs, target and weight."""
    return [each for part in (batch.inputs, batch.target, batch.weight) for _, each in named_arrays(part)]


def fill_batch(batch: StackedBatch, tensors: Sequence[Tensor]) -> StackedBatch:
    """Return a batch of the same structure with other tensors."""
    left = iter(tensors)

    def fill(value: Any) -> Any:
        return map_arrays(lambda _: next(left), value)

    inputs, target, weight = fill(batch.inputs), fill(batch.target), fill(batch.weight)
    return replace(batch, inputs=inputs, target=target, weight=weight)


@dataclass(frozen=True)
class SlotFactors:
    """The factors of one slot, by parameter and name."""

    values: Mapping[str, Mapping[str, Tensor]]

    def at(
        self, group: int, rule: StackedOptimizer, name: str, count: npt.NDArray[np.float64], like: Tensor
    ) -> Mapping[str, Tensor]:
        """Return the factors for a stacked parameter."""
        shape = (-1, *[1] * (like.ndim - 1))
        return {key: value.view(shape) for key, value in self.values[name].items()}

    def numbers(self, group: int) -> Vectors | None:
        """Return None: a graph has no numbers of its own."""
        return None


@dataclass(frozen=True)
class SlotLayout:
    """What the tensors of a slot mean."""

    batch: StackedBatch
    """An example of its batch."""
    keys: tuple[int, ...] | None
    """The shape of its keys: (parts, rows, layers, 2); None without dropout."""
    fields: Sequence[FactorField]
    names: Sequence[tuple[str, ...]]
    """The names of the factors of each field."""

    def read(self, tensors: Sequence[Tensor]) -> tuple[StackedBatch, list[Tensor | None], SlotFactors]:
        """Return the batch, its keys for each part, and the factors."""
        left, count = list(tensors), len(flatten_batch(self.batch))
        batch, left = fill_batch(self.batch, left[:count]), left[count:]
        keys: list[Tensor | None] = [None] * self.parts
        if self.keys is not None:
            keys = list(left.pop(0).unbind(0))
        found: dict[str, Mapping[str, Tensor]] = {}
        for field, names, values in zip(self.fields, self.names, left, strict=True):
            own = dict(zip(names, values.unbind(0), strict=True))
            for name in field.names:
                found[name] = own
        return batch, keys, SlotFactors(found)

    parts: int = 1
    """The number of parts of its batch."""


@dataclass(frozen=True)
class DeviceColumns:
    """All rows of a source on the device."""

    tensors: Sequence[Tensor]
    places: Sequence[int]
    """Where the row numbers of each row of a stack are among those of the streams that are read."""


class Slots:
    """The slots of some steps of one batch size."""

    def __init__(self, layout: SlotLayout, steps: int, columns: DeviceColumns | None) -> None:
        self.steps = steps
        self.layout = layout
        self.device = flatten_batch(layout.batch)[0].device
        self._columns = columns
        batch, examples = layout.batch, flatten_batch(layout.batch)
        device = self.device
        # Rows that a model can read, whatever it does with them: all slots are captured, and timed, at once.
        self._rows = [_repeat(each, steps) for each in examples]
        self._index: Tensor | None = None
        if columns is not None:
            shape = (steps, batch.rows) if batch.is_shared else (steps, len(columns.places), batch.rows)
            self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._keys: Tensor | None = None
        if layout.keys is not None:
            self._keys = make_aligned(steps, layout.keys, torch.int32, device)
        self._factors = [
            make_aligned(steps, (len(own), len(f.leaf.tensor)), f.leaf.tensor.dtype, device)
            for f, own in zip(layout.fields, layout.names, strict=True)
        ]

    def fill(
        self,
        rows: Sequence[tuple[RowNumbers, ...]] | Sequence[StackedBatch],
        keys: npt.NDArray[np.int32] | None,
        factors: Sequence[Values],
    ) -> None:
        """Set the contents of the first slots. Nothing waits for the device.

        `rows` has row numbers by stream, or batches if the rows are not on the device.
        """
        count = len(rows)
        for buffer, found in zip(self._factors, factors, strict=True):
            values = np.stack([np.broadcast_to(v, (count, buffer.shape[-1])) for v in found.values()], axis=1)
            _send_aligned(torch.from_numpy(values), buffer[:count])
        if self._keys is not None and keys is not None:
            _send_aligned(torch.from_numpy(keys), self._keys[:count])
        if self._index is None:
            for number, batch in enumerate(rows):
                assert isinstance(batch, StackedBatch)
                for buffer, tensor in zip(self._rows, flatten_batch(batch), strict=True):
                    _send(tensor, buffer[number])
            return
        assert self._columns is not None
        places = self._columns.places[:1] if self.layout.batch.is_shared else self._columns.places
        index = np.concatenate([each[place] for each in rows for place in places])  # type: ignore[index]
        _send(torch.from_numpy(index).view(count, *self._index.shape[1:]), self._index[:count])

    def gather(self, count: int) -> None:
        """Copy the rows of the first slots from the columns; part of what is captured."""
        if self._index is None:
            return
        assert self._columns is not None
        index = self._index[:count].reshape(-1)
        for column, buffer in zip(self._columns.tensors, self._rows, strict=True):
            torch.index_select(column, 0, index, out=buffer[:count].view(-1, *column.shape[1:]))

    def tensors(self, number: int) -> list[Tensor]:
        """Return everything that a step reads from a slot."""
        keys = [] if self._keys is None else [self._keys[number]]
        return [*(each[number] for each in self._rows), *keys, *(each[number] for each in self._factors)]


def _send(values: Tensor, to: Tensor) -> None:
    """Copy values to the device without waiting for it."""
    if to.is_cuda and not values.is_cuda and not values.is_pinned():
        values = values.pin_memory()
    to.copy_(values, non_blocking=True)


ALIGNED: Final = 64
"""Bytes. Compiled code copies tensors that begin elsewhere than the first one that it saw."""


def make_aligned(steps: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros of shape (steps, *shape), in which each step begins at a multiple of `ALIGNED`."""
    step = -(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED // dtype.itemsize
    whole = torch.zeros(steps, step, dtype=dtype, device=device)
    return whole[:, : math.prod(shape)].view(steps, *shape)


def _send_aligned(values: Tensor, to: Tensor) -> None:
    """Copy values to an aligned tensor on the device, with what lies in between."""
    size = to.stride(0)
    whole = torch.zeros(len(values), size, dtype=to.dtype, pin_memory=to.is_cuda)
    whole[:, : values[0].numel()] = values.flatten(1)
    _send(whole, to.as_strided((len(to), size), (size, 1)))


def _repeat(example: Tensor, steps: int) -> Tensor:
    """Return copies of a tensor, also if there is one: the example may be memory of a data set."""
    return example.expand(steps, *example.shape).clone(memory_format=torch.contiguous_format)
