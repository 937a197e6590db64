"""The state that a learner saves in a checkpoint and loads from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class State:
    """The complete state of a learner: tensors by name, and plain values."""

    tensors: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
