"""The first rows of a split, whose outputs may be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from manyfit.data.nested import Nested, map_arrays

SHOWN: Final = 8
"""The number of rows that are kept."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """All outputs and targets of the first rows of a split, and their numbers."""

    output: Nested
    target: Nested
    index: npt.NDArray[np.int64]

    @staticmethod
    def of(output: Nested, target: Nested, index: npt.NDArray[np.int64]) -> FirstRows:
        """Keep the first rows of a batch."""

        def cut(value: Nested) -> Nested:
            return map_arrays(lambda array: array[:SHOWN].copy(), value)

        return FirstRows(cut(output), cut(target), index[:SHOWN])
