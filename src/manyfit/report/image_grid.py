"""Images of a row report: the inputs, targets and outputs of some rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.png import encode_grid
from manyfit.data.batch import Batch
from manyfit.data.nested import named_arrays, pair_outputs
from manyfit.learn.pictures import make_grid
from manyfit.run.evaluation.first_rows import SHOWN, FirstRows
from manyfit.store import durable

SMALLEST: Final = 64
"""The height of an image in pixels, at least."""
Images = npt.NDArray[np.floating[Any]]


def write_image_grid(batches: Iterator[Batch], first: FirstRows, file: Path) -> bool:
    """Write a line of images per row: inputs, targets, outputs; return whether an output is an image.

    The inputs are those of the first batch, if it has the same rows.
    """
    shown: dict[str, Images] = {}
    for name, found, known in pair_outputs(first.output, first.target):
        for kind, images in read_pair(found, known).items():
            shown[f"{kind} {name}"] = images
    if not shown:
        return False
    batch = next(batches)
    is_same = np.array_equal(batch.index[: len(first.index)], first.index)
    inputs = named_arrays(batch.inputs) if is_same else ()
    given = {f"input {name}": read_images(array) for name, array in inputs}
    columns = {**{name: stretch(images) for name, images in given.items() if images is not None}, **shown}
    durable.write_file(file, encode_grid(arrange_grid(columns)))
    return True


def read_pair(output: Any, target: Any) -> dict[str, Images]:
    """Return a target and an output as images of the same scale; only the output if the target is no image.

    Scores of classes per pixel become classes, scores of a mask probabilities. Numbers that are no class,
    such as -100, are black.
    """
    known = None if target is None else read_images(target)
    classes = None if known is None else find_classes(np.asarray(output), np.asarray(target))
    if known is not None and classes is not None:
        count, numbers = max(2, classes[1]), read_images(np.asarray(target).astype(np.int64))
        assert numbers is not None
        pair = {"target": numbers, "output": classes[0][:SHOWN, None].astype(np.float32)}
        return {n: np.where((v >= 0) & (v < count), v, 0) / (count - 1) for n, v in pair.items()}
    found = read_images(output)
    if found is None:
        return {}
    if known is None:
        return {"output": stretch(found)}
    if set(np.unique(known)) <= {0.0, 1.0}:
        is_likely = found.min() >= 0 and found.max() <= 1
        return {"target": known, "output": found if is_likely else 1 / (1 + np.exp(-found.clip(-60, 60)))}
    low, high = min(known.min(), found.min()), max(known.max(), found.max())
    return {"target": stretch(known, low, high), "output": stretch(found, low, high)}


def find_classes(output: Any, target: Any) -> tuple[Any, int] | None:
    """Return the likeliest class of each pixel and the number of classes, if they are scores of classes."""
    if target.dtype.kind not in "iu":
        return None
    for axis in (1, -1):
        plain = target.squeeze(axis) if target.ndim == output.ndim and target.shape[axis] == 1 else target
        rest = tuple(np.delete(output.shape, axis))
        if output.ndim == 4 and plain.shape == rest and output.shape[axis] > 1:
            return output.argmax(axis), output.shape[axis]
    return None


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


def read_images(values: Any) -> Images | None:
    """Return values as images, (rows, channels, height, width); None if they are not images."""
    found = np.asarray(values)[:SHOWN]
    if found.ndim == 3:
        found = found[:, None]
    if found.ndim == 4 and found.shape[1] not in (1, 3) and found.shape[3] in (1, 3):
        found = found.transpose(0, 3, 1, 2)  # channels come last
    if found.ndim != 4 or found.shape[1] not in (1, 3) or min(found.shape[2:]) < 4 or not found.size:
        return None
    images: Images = np.nan_to_num(found.astype(np.float32))
    return images / 255 if found.dtype == np.uint8 and images.max() > 1 else images


def stretch(images: Images, low: float | None = None, high: float | None = None) -> Images:
    """Scale images to 0…1, unless all their values are there."""
    low = float(images.min()) if low is None else low
    high = float(images.max()) if high is None else high
    return images if low >= 0 and high <= 1 else (images - low) / max(high - low, 1e-9)
