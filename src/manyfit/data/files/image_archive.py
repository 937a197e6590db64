"""Folders of images converted to one HDF5 file, which `manyfit.data.Hdf5` reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.data.files.hdf5 import CLASSES, DIVISOR
from manyfit.data.files.images import ImageFolder, read_image
from manyfit.store import durable

AT_ONCE: Final = 256
"""The number of images that are read before they are written."""


def write_image_archive(
    folder: Path,
    file: Path,
    size: int | None = None,
    channels: int = 3,
    force: bool = False,
    show: Callable[[str], None] = print,
) -> dict[str, int]:
    """Write images, classes and IDs to an HDF5 file; return the number of images by group.

    Folders of splits become groups. The file appears when it is complete.
    """
    h5py = import_optional("h5py", "hdf5")
    if file.is_dir():
        raise UsageError(f"{file} is a folder")
    if file.exists() and not force:
        raise UsageError(f"{file} exists; --force replaces it")
    images = ImageFolder(folder, size, channels)
    groups = images.splits or {"": folder}
    found = {}
    with durable.staging(file.parent) as place:
        part = place / file.name
        with h5py.File(part, "w") as archive:
            archive.create_dataset(CLASSES, data=list(images.facts()["class_names"]))
            for name, root in groups.items():
                files, labels = images.list_files(root)
                target = archive.require_group(name) if name else archive
                write_group(target, root, files, labels, size, channels, show)
                found[name or "all"] = len(files)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
    durable.sync_folder(file.parent)
    return found


def write_group(
    group: Any,
    root: Path,
    files: Sequence[Path],
    labels: Sequence[int],
    size: int | None,
    channels: int,
    show: Callable[[str], None],
) -> None:
    """Write some images, which must have the same size, as bytes."""
    shape = read_image(files[0], size, channels).shape
    column = group.create_dataset("image", (len(files), *shape), dtype=np.uint8)
    column.attrs[DIVISOR] = 255.0
    group.create_dataset("target", data=np.asarray(labels, dtype=np.int64))
    ids = [file.relative_to(root).as_posix() for file in files]
    if wrong := next((id_ for id_ in ids if id_.encode(errors="replace").decode() != id_), None):
        raise UsageError(f"the file name {wrong!r} is not valid UTF-8; rename it")
    group.create_dataset("id", data=ids)

    def read(path: Path) -> Any:
        found = read_image(path, size, channels)
        if found.shape != shape:
            raise UsageError(
                f"{path} is {found.shape[2]} × {found.shape[1]} pixels, but {files[0]} is "
                f"{shape[2]} × {shape[1]}: scale them with --size"
            )
        return (found * 255).round().astype(np.uint8)

    with ThreadPoolExecutor() as pool:
        for begin in range(0, len(files), AT_ONCE):
            block = list(pool.map(read, files[begin : begin + AT_ONCE]))
            column[begin : begin + len(block)] = np.stack(block)
            show(f"{begin + len(block):,} of {len(files):,} images")
