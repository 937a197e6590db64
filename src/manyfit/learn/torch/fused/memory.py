"""Memory of the CPU: activations of a group are large, and are allocated anew in every step."""

from __future__ import annotations

import functools
from typing import Final

import torch

LARGEST: Final = 31 << 20
"""Just below the largest block for which glibc adapts its limits."""


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library reuse freed blocks of up to 31 MiB, rather than return them to the system.

    Blocks that come from the system are cleared page by page, which can take longer than what is computed in
    them. When glibc frees a large block, it takes its size as the new limit; this one is never touched.
    Other C libraries ignore it.
    """
    torch.empty(LARGEST, dtype=torch.uint8)
