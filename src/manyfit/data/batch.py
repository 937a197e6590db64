"""What travels from a source to a learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Inputs: TypeAlias = Array | tuple[Array, ...] | dict[str, Array]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows: what the model is called with, the target, and which rows they are."""

    inputs: Inputs
    target: Array | None
    index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)
