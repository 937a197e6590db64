"""Exports: the description of a model's inputs, and the comparison of an export with the original."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyfit.core.errors import RunFailed
from manyfit.data.nested import named_arrays


def describe_inputs(inputs: Any) -> Any:
    """Return the shapes and dtypes of the inputs of a batch, without the dimension of rows."""
    if isinstance(inputs, dict):
        return {name: describe_inputs(item) for name, item in inputs.items()}
    if isinstance(inputs, tuple | list):
        return [describe_inputs(item) for item in inputs]
    return {"shape": list(np.shape(inputs)[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")}


def example_inputs(inputs: Any) -> Any:
    """Return one row of zeros for a description by `describe_inputs`."""
    if isinstance(inputs, list):
        return tuple(example_inputs(item) for item in inputs)
    if set(inputs) == {"shape", "dtype"} and isinstance(inputs["dtype"], str):
        return np.zeros((1, *inputs["shape"]), dtype=inputs["dtype"])
    return {name: example_inputs(item) for name, item in inputs.items()}


def compare_outputs(original: Any, other: Any, what: str, loose: bool = False) -> None:
    """Raise an error if the outputs of an export differ from those of the original."""
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if loose else {"rtol": 1e-5, "atol": 1e-6}
    outputs, found = list(named_arrays(original)), list(named_arrays(other))
    if len(outputs) != len(found):
        raise RunFailed(
            f"{what} has {len(found)} outputs, but the original has {len(outputs)}; the export was discarded"
        )
    if dict(outputs).keys() == dict(found).keys():  # the order may differ
        found = [(name, dict(found)[name]) for name, _ in outputs]
    for (_, one), (_, two) in zip(outputs, found, strict=True):
        left, right = (
            v.detach().cpu() if isinstance(v, Tensor) else torch.from_numpy(np.array(v)) for v in (one, two)
        )
        if left.shape != right.shape or not torch.allclose(left, right, equal_nan=True, **tolerance):
            far = (left - right).abs().max().item() if left.shape == right.shape else "in shape"
            raise RunFailed(
                f"the outputs of {what} differ from those of the original on a batch (difference {far}); "
                "the export was discarded"
            )
