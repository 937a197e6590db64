"""Grids of images, as they are written into a run folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError

GAP = 1
"""Pixels between two images."""


def check_shape(shape: Sequence[int], dtype: Any) -> None:
    """Raise an error for an array that is not an image, or several."""
    if "complex" in str(dtype):
        raise UsageError("images must have real numbers, not complex ones")
    channels = shape[1] if len(shape) == 4 else 1
    if len(shape) not in (2, 3, 4) or channels not in (1, 3) or not math.prod(shape):
        raise UsageError(f"images must have shape (n, 1 or 3, height, width), not {list(shape)}")


def make_grid(images: Any, columns: int | None = None) -> npt.NDArray[np.uint8]:
    """Return images side by side: (n, channels, height, width), (n, height, width), or one image.

    Values from 0 to 1 are brightness; with negative values, from -1 to 1.

    >>> make_grid(np.zeros((4, 1, 2, 2))).shape
    (7, 7, 1)
    """
    is_bytes = str(getattr(images, "dtype", "")).removeprefix("torch.") == "uint8"
    array = images.detach().float().cpu().numpy() if hasattr(images, "detach") else np.asarray(images)
    check_shape(array.shape, getattr(images, "dtype", array.dtype))
    array = array.astype(np.float32) / (255 if is_bytes else 1)
    if array.ndim == 2:
        array = array[None, None]
    elif array.ndim == 3:
        array = array[None] if array.shape[0] in (1, 3) and array.shape[1] > 4 else array[:, None]
    if array.min() < 0:
        array = (array + 1) / 2
    pixels = (np.nan_to_num(array).clip(0, 1) * 255).round().astype(np.uint8)
    count, channels, height, width = pixels.shape
    across = columns or math.ceil(math.sqrt(count))
    down = -(-count // across)
    grid = np.full(
        (down * height + (down + 1) * GAP, across * width + (across + 1) * GAP, channels), 64, dtype=np.uint8
    )
    for i in range(count):
        top = GAP + (i // across) * (height + GAP)
        left = GAP + (i % across) * (width + GAP)
        grid[top : top + height, left : left + width] = pixels[i].transpose(1, 2, 0)
    return grid
