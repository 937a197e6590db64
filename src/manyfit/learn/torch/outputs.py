"""Outputs of a model as arrays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyfit.data.nested import Nested, map_arrays


def to_numpy(tensor: Tensor) -> Any:
    """Return a tensor as an array; bfloat16, which NumPy does not have, becomes float32."""
    found = tensor.detach()
    return (found.float() if found.dtype is torch.bfloat16 else found).cpu().numpy()


def return_both(outputs: Nested, targets: Nested) -> tuple[Nested, Nested]:
    """Return outputs and targets, as tensors."""
    return outputs, targets


def fetch_outputs(outputs: Nested, target: Any) -> tuple[Nested, Any]:
    """Return outputs as arrays of one run, and targets."""
    return map_arrays(lambda output: to_numpy(output)[None], outputs), target
