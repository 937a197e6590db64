"""One loader for all splits, restored to its initial state for each segment of training."""

from __future__ import annotations

import copy
import logging
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from manyfit.config.typed.config_struct import ConfigStruct
from manyfit.data.randomness import own_randomness

log = logging.getLogger("manyfit")

LARGE: Final = 1 << 24
"""Size in bytes from which an array is shared instead of copied."""


class Kept:
    """A loader, and copies of its initial state.

    A loader may split its files at random when it is created, and shuffle its own lists later. So all splits
    have to come from one loader, and each segment of training needs its initial state.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._states: Any = _states()
        self.loader = make()
        self._shared = list(_large(vars(self.loader)))
        self._sums = [_sum(array) for array in self._shared]
        self._is_warned = False
        self._copy: Any = None
        try:
            self._copy = copy.deepcopy(self.loader, self._memo())
        except Exception as error:  # it holds a file, a lock or a TensorFlow data set
            log.info("%s cannot be copied (%s): it is created again", type(self.loader).__name__, error)

    def renew(self) -> Any:
        """Return the loader in its initial state."""
        if not self._is_warned and [_sum(array) for array in self._shared] != self._sums:
            self._is_warned = True
            log.warning(
                "%s changes its arrays in place: its data depends on how often it was read, so resuming is "
                "not exact",
                type(self.loader).__name__,
            )
        if self._copy is not None:
            return copy.deepcopy(self._copy, self._memo())
        with own_randomness():
            _restore(self._states)
            return self._make()

    def _memo(self) -> dict[int, Any]:
        """Return what is not copied: large arrays, and the config, which records the keys that are read."""
        structs = [value for value in vars(self.loader).values() if isinstance(value, ConfigStruct)]
        return {id(each): each for each in [*self._shared, *structs]}


def _states() -> Any:
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: Any) -> None:
    import torch

    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _large(value: Any, depth: int = 4) -> Iterator[Any]:
    if int(getattr(value, "nbytes", 0) or 0) >= LARGE:
        yield value
    elif depth and isinstance(value, Mapping | list | tuple) and not isinstance(value, ConfigStruct):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _large(item, depth - 1)


def _sum(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
