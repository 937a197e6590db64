"""Functions of one data point, called for many at once where that gives the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manyfit.core.errors import RunFailed

log = logging.getLogger("manyfit")

PROBED = 8
"""Rows on which a function is called both ways before it is trusted with a whole batch."""

PointFunction = Callable[[Any, Any], Any]


class Evaluator:
    """Calls functions of `(output, target)` of one row on every row of a batch.

    A function is vectorised with `torch.func.vmap` where it can be and agrees with itself row by row;
    otherwise it is called row by row, and a note says how fast that is.

    >>> evaluator = Evaluator({"error": lambda output, target: (output - target).abs().max()})
    >>> evaluator(torch.ones(2, 3), torch.zeros(2, 3))["error"].tolist()
    [1.0, 1.0]
    """

    def __init__(self, functions: Mapping[str, PointFunction]) -> None:
        self.functions = dict(functions)
        self._batched: dict[str, PointFunction | None] = {}

    def __call__(self, output: Tensor, target: Tensor) -> dict[str, npt.NDArray[np.float64]]:
        """One number for each row and function."""
        return {name: self._values(name, output, target) for name in self.functions}

    def _values(self, name: str, output: Tensor, target: Tensor) -> npt.NDArray[np.float64]:
        function = self.functions[name]
        if name not in self._batched:
            self._batched[name] = self._probe(name, output, target)
        batched = self._batched[name]
        if batched is None:
            return one_by_one(name, function, output, target)
        return np.asarray(batched(output, target).double())

    def _probe(self, name: str, output: Tensor, target: Tensor) -> PointFunction | None:
        """Try a function on a few rows both ways."""
        few, some = output[:PROBED], target[:PROBED]
        began = time.perf_counter()
        alone = one_by_one(name, self.functions[name], few, some)
        rate = len(few) / max(time.perf_counter() - began, 1e-9)
        batched = torch.func.vmap(self.functions[name], randomness="different")
        try:
            together = batched(few, some)
            agrees = (
                isinstance(together, Tensor)
                and together.shape == (len(few),)
                and np.allclose(np.asarray(together.double()), alone, rtol=1e-5, atol=1e-7, equal_nan=True)
            )
            reason = "it does not give the same for many rows at once"
        except (
            Exception
        ) as error:  # whatever keeps vmap from tracing a function, calling it for each row works
            agrees, reason = False, str(error).strip().partition("\n")[0][:120]
        if not agrees:
            log.warning("%r is called row by row, about %.0f rows/s: %s", name, rate, reason)
        return batched if agrees else None


def one_by_one(name: str, function: PointFunction, output: Tensor, target: Tensor) -> npt.NDArray[np.float64]:
    """Call a function for each row."""
    values = np.empty(len(output), dtype=np.float64)
    for i in range(len(output)):
        try:
            values[i] = float(function(output[i], target[i]))
        except Exception as error:
            shapes = f"output {tuple(output[i].shape)}, target {tuple(target[i].shape)}"
            raise RunFailed(
                f"the function {name!r} must return one number for a row, but failed on {shapes}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return values
