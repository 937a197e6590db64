"""Collating sequences of different lengths: `manyfit.data.pad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def pad(rows: Sequence[Any], value: float = 0, target_value: float = -100, lengths: bool = False) -> Any:
    """Collate rows whose arrays differ in length along their first dimension, padded to the longest.

    A row is an input, `(input, target)`, or a dict. With `lengths`, the lengths follow the padded input: the
    model receives `(input, lengths)`, or by name `<name>_lengths`. Targets are padded with -100, which losses
    of torch ignore.

    data: {class: manyfit.data.Splits, train: {class: texts.Train}, collate: manyfit.data.pad}
    """
    first = rows[0]
    if isinstance(first, Mapping):
        found: dict[str, Any] = {}
        for name in first:
            is_target = name == "target"
            found[name], sizes = _pad([row[name] for row in rows], target_value if is_target else value)
            if lengths and sizes is not None and not is_target:
                found[f"{name}_lengths"] = sizes
        return found
    if isinstance(first, tuple | list):
        inputs, sizes = _pad([row[0] for row in rows], value)
        values = [target_value, *[0.0] * len(first)]
        rest = [_pad([row[i] for row in rows], values[i - 1])[0] for i in range(1, len(first))]
        return (((inputs, sizes) if lengths and sizes is not None else inputs), *rest)
    padded, sizes = _pad(list(rows), value)
    return ((padded, sizes), None) if lengths and sizes is not None else padded


def _pad(values: Sequence[Any], value: float) -> tuple[Any, Any]:
    """Return values as one tensor, and their lengths; numbers have none."""
    import torch

    tensors = [torch.as_tensor(each) for each in values]
    if not tensors[0].ndim:
        return torch.stack(tensors), None
    sizes = torch.tensor([len(each) for each in tensors])
    found = torch.full((len(tensors), int(sizes.max()), *tensors[0].shape[1:]), value, dtype=tensors[0].dtype)
    for i, each in enumerate(tensors):
        found[i, : len(each)] = each
    return found, sizes
