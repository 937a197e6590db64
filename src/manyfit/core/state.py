"""What a learner gives to a checkpoint and takes from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class State:
    """All that a learner needs to go on: tensors by name, and plain values. Nothing else."""

    tensors: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
