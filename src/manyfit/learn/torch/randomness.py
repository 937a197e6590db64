"""The random generators that training uses: seeding, and their state in a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_slow(seed: int) -> None:
    """Seed the generators that are too slow to seed for every step or batch."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's generators: that of the CPU, and that of a device."""
    cuda = cuda_generator(device)
    # The CPU generator uses 32 bits of its seed; consecutive seeds stay distinct in them.
    torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    if cuda is not None:
        cuda.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)


def random_state() -> dict[str, Any]:
    """Return the state of Python's and NumPy's global generators. torch's are reseeded for every step."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss],
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
    }


def set_random_state(state: Mapping[str, Any] | None) -> None:
    """Restore the state of Python's and NumPy's global generators."""
    if state is None:
        return
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))


@contextmanager
def own_cuda_randomness(device: torch.device) -> Iterator[None]:
    """Restore the default generator of a CUDA device on exit."""
    generator = cuda_generator(device)
    before = None if generator is None else generator.get_state()
    try:
        yield
    finally:
        if generator is not None and before is not None:
            generator.set_state(before)


def cuda_generator(device: torch.device) -> torch.Generator | None:
    """Return the default generator of a CUDA device; None for other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = device.index if device.index is not None else torch.cuda.current_device()
    return torch.cuda.default_generators[index]
