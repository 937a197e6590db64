"""Random numbers that user code draws while it creates a row: functions of (seed, position)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


def seed_for(seed: int) -> None:
    """Seed every global generator that user code may draw from."""
    import torch

    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(seed)


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The states of the global generators of Python, NumPy and torch."""

    python: Any
    numpy: Any
    torch: Any

    @staticmethod
    def read() -> RandomStates:
        """Return the states as they are now."""
        import torch

        return RandomStates(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def restore(self) -> None:
        """Set the generators to these states."""
        import torch

        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Restore the global random states of the process on exit."""
    before = RandomStates.read()
    try:
        yield
    finally:
        before.restore()
