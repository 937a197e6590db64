"""Images of a row report: the inputs, targets and outputs of some rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.png import encode_png
from manyfit.data.batch import Batch
from manyfit.data.nested import Nested, named_arrays, pair_outputs
from manyfit.learn.pictures import make_grid
from manyfit.store import durable

SHOWN: Final = 8
"""The number of rows that are shown."""
SMALLEST: Final = 64
"""The height of an image in pixels, at least."""
Images = npt.NDArray[np.float32]


def write_image_grid(batches: Iterator[Batch], output: Nested, target: Nested, file: Path) -> bool:
    """Write a line of images per row: inputs, targets, outputs; return whether an output is an image.

    `output` and `target` are those of the first batch.
    """
    shown: dict[str, Images] = {}
    for name, found, known in pair_outputs(output, target):
        images = read_images(found, known)
        truth = None if known is None else read_images(known)
        if images is not None:
            shown |= {f"target {name}": truth} if truth is not None else {}
            shown[f"output {name}"] = images
    if not shown:
        return False
    given = {f"input {name}": read_images(array) for name, array in named_arrays(next(batches).inputs)}
    columns = {**{name: images for name, images in given.items() if images is not None}, **shown}
    grid = arrange_grid(columns)
    height, width, channels = grid.shape
    rows = [grid[i].tobytes() for i in range(height)]
    durable.write_file(file, encode_png(rows, width, is_color=channels == 3))
    return True


def arrange_grid(columns: Mapping[str, Images]) -> npt.NDArray[np.uint8]:
    """Return a grid with a column per kind of image, all of the size and the channels of the largest."""
    height = max(SMALLEST, *(images.shape[2] for images in columns.values()))
    channels = max(images.shape[1] for images in columns.values())
    scaled = []
    for images in columns.values():
        width = round(images.shape[3] * height / images.shape[2])
        down = np.arange(height) * images.shape[2] // height
        across = np.arange(width) * images.shape[3] // width
        large = images[:, :, down][:, :, :, across]
        scaled.append(np.repeat(large, channels, axis=1) if large.shape[1] < channels else large)
    widest = max(images.shape[3] for images in scaled)
    even = [np.pad(images, [(0, 0)] * 3 + [(0, widest - images.shape[3])]) for images in scaled]
    lines = np.stack(even, axis=1)
    return make_grid(lines.reshape(-1, *lines.shape[2:]), len(even))


def read_images(values: Any, target: Any = None) -> Images | None:
    """Return values as images of 0 to 1, one per row; None if they are not images.

    Scores of classes per pixel become classes if the target is a class per pixel. Values outside of 0 to 1
    are scaled.
    """
    found = np.asarray(values)[:SHOWN]
    if target is not None and np.asarray(target).dtype.kind in "iu" and found.ndim == np.ndim(target) + 1:
        found = found.argmax(1)
    if found.ndim == 3:
        found = found[:, None]
    if found.ndim != 4 or found.shape[1] not in (1, 3) or min(found.shape[2:]) < 4 or not found.size:
        return None
    images = np.nan_to_num(found.astype(np.float32))
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        images = (images - low) / max(high - low, 1e-9)
    return images
