"""Random numbers that user code draws while it makes a row: functions of (seed, position)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def seed_for(seed: int) -> None:
    """Seed every global generator that user code may draw from."""
    import torch

    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(seed)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the process its global random states back afterwards."""
    import torch

    before: Any = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
