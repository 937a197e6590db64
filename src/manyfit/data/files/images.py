"""Folders of images: one folder per class, or pairs of images."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt

from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.data.dataset import DatasetSource
from manyfit.data.files.held_out import HeldOut
from manyfit.data.source import Split

ENDINGS: Final = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test",),
}  # fmt: skip
"""The folders of splits."""
SAMPLED: Final = 64


def read_image(file: Path, size: int | None, channels: int) -> npt.NDArray[np.float32]:
    """Read an image as channels × height × width in 0…1; with a size, scaled and cropped to a square."""
    image: Any = import_optional("PIL.Image", "images")
    try:
        with image.open(file) as opened:
            found = opened.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
            if size is not None and found.size != (size, size):
                scale = size / min(found.size)
                wide, high = (max(size, round(length * scale)) for length in found.size)
                left, top = (wide - size) // 2, (high - size) // 2
                found = found.resize((wide, high)).crop((left, top, left + size, top + size))
            array = np.asarray(found, dtype=np.float32) / 255
    except (OSError, ValueError, image.DecompressionBombError) as error:
        raise UsageError(f"{file} cannot be read as an image: {error}") from error
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def list_images(folder: Path) -> list[Path]:
    """Return the images below a folder, sorted."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())


class ImageRows:
    """Images with their classes, read when they are needed."""

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        labels: Sequence[int],
        size: int | None,
        channels: int,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root, self.files, self.labels = root, list(files), list(labels)
        self.size, self.channels, self.transform = size, channels, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        found: Any = read_image(self.files[row], self.size, self.channels)
        return (self.transform(found) if self.transform is not None else found), self.labels[row]

    def ids(self) -> list[str]:
        """Return the paths of the images, relative to the folder."""
        return [file.relative_to(self.root).as_posix() for file in self.files]

    def fingerprint(self) -> str:
        """Return a hash of names, classes and sizes, and of the contents of images spread over the rows."""
        return hash_files(self.root, self.files, f"{self.labels}:{self.size}:{self.channels}")


def hash_files(root: Path, files: Sequence[Path], further: str) -> str:
    """Return a hash of the names and sizes of files, and of the contents of some."""
    digest = hashlib.sha256(further.encode())
    for file in files:
        digest.update(f"{file.relative_to(root).as_posix()}:{file.stat().st_size}\x1f".encode())
    for row in np.unique(np.linspace(0, len(files) - 1, SAMPLED).astype(np.int64)).tolist() if files else ():
        digest.update(files[row].read_bytes())
    return digest.hexdigest()


class ImageFolder:
    """A folder with one folder of images per class. Needs the extra `images`.

    data: {class: manyfit.data.ImageFolder, folder: data/flowers, size: 64}

    Images are channels × height × width in 0…1. If the folder has the folders `train`, `validation` and
    `test`, these are the splits; otherwise, images are divided, each class evenly. `transform` is a function
    of an image, applied in training; it may draw random numbers.
    """

    def __init__(
        self,
        folder: Path,
        size: Annotated[int, Gt(0)] | None = None,
        channels: Annotated[int, Gt(0)] = 3,
        transform: Callable[..., Any] | None = None,
        validation: Annotated[float, Ge(0)] = 0.15,
        test: Annotated[float, Ge(0)] = 0.15,
        split_seed: int = 0,
        folds: Annotated[int, Ge(2)] | None = None,
        fold: Annotated[int, Ge(0)] | None = None,
        split_file: Path | None = None,
        batch_size: Annotated[int, Gt(0)] = 32,
        workers: Annotated[int, Kind.NEUTRAL, Ge(0)] = 0,
    ) -> None:
        self.folder, self.size, self.channels, self.transform = folder, size, channels, transform
        self.held_out = HeldOut(validation, test, split_seed, folds, fold, split_file)
        self.batch_size = batch_size
        self.workers = workers

    def source(self, split: Split) -> DatasetSource | None:
        """Return the images of one split."""
        root = self.splits.get(split)
        if self.splits and root is None:
            return None
        files, labels = self.list_files(root or self.folder)
        if not self.splits:
            ids = [file.relative_to(self.folder).as_posix() for file in files]
            rows = self.held_out.divide(ids, labels)[split]
            files, labels = [files[row] for row in rows], [labels[row] for row in rows]
        transform = self.transform if split == "train" else None
        base = root or self.folder
        rows_ = ImageRows(base, files, labels, self.size, self.channels, transform)
        return DatasetSource(rows_, self.workers) if files else None

    def read(self, file: Path, has_target: bool = True) -> DatasetSource:
        """Return all images below a folder, whatever their class, or one image."""
        files = [file] if file.is_file() else list_images(file)
        root = file.parent if file.is_file() else file
        if not files:
            raise UsageError(f"{file} has no images ({', '.join(ENDINGS)})")
        return DatasetSource(ImageRows(root, files, [0] * len(files), self.size, self.channels))

    def facts(self) -> Mapping[str, Any]:
        """Return the number of classes, their names, and the shape of an image."""
        shape = {"shape": [self.channels, self.size, self.size]} if self.size is not None else {}
        return {
            "classes": len(self._classes),
            "class_names": self._classes,
            "channels": self.channels,
            **shape,
        }

    @cached_property
    def splits(self) -> dict[str, Path]:
        """The folders of the splits; empty if the images are divided."""
        if not self.folder.is_dir():
            raise UsageError(f"there is no folder {self.folder}")
        places = {
            s: [self.folder / n for n in names if (self.folder / n).is_dir()] for s, names in NAMES.items()
        }
        found = {split: each[0] for split, each in places.items() if each}
        return found if "train" in found else {}

    @cached_property
    def _classes(self) -> list[str]:
        root = self.splits.get("train", self.folder)
        found = sorted(e.name for e in root.iterdir() if e.is_dir() and e.name[0] not in "._")
        if not found:
            raise UsageError(f"{root} has no folders of images, one for each class")
        return found

    def list_files(self, root: Path) -> tuple[list[Path], list[int]]:
        """Return the images below a folder, class by class, and their classes."""
        unknown = [
            e.name
            for e in root.iterdir()
            if e.is_dir() and e.name[0] not in "._" and e.name not in self._classes
        ]
        if unknown:
            raise UsageError(f"{root} has the class {unknown[0]!r}, which is not among the training images")
        files, labels = list[Path](), list[int]()
        for label, name in enumerate(self._classes):
            each = list_images(root / name) if (root / name).is_dir() else []
            files += each
            labels += [label] * len(each)
        if not files:
            raise UsageError(f"{root} has no images ({', '.join(ENDINGS)})")
        return files, labels


class PairRows:
    """Pairs of images: of the same name, or each with a random partner."""

    def __init__(
        self,
        roots: Sequence[Path],
        files: Sequence[Sequence[Path]],
        size: int | None,
        channels: int,
        aligned: bool,
    ) -> None:
        self.roots, self.files, self.size, self.channels, self.aligned = roots, files, size, channels, aligned

    def __len__(self) -> int:
        return len(self.files[0])

    def __getitem__(self, row: int) -> Any:
        first = read_image(self.files[0][row], self.size, self.channels)
        if self.aligned:
            return first, read_image(self.files[1][row], self.size, self.channels)
        partner = random.randrange(len(self.files[1]))  # seeded by (seed, epoch, row)
        return {"first": first, "second": read_image(self.files[1][partner], self.size, self.channels)}

    def ids(self) -> list[str]:
        """Return the paths of the first images."""
        return [file.relative_to(self.roots[0]).as_posix() for file in self.files[0]]

    def fingerprint(self) -> str:
        """Return a hash of the files of both folders."""
        parts = [hash_files(root, files, "") for root, files in zip(self.roots, self.files, strict=True)]
        return hashlib.sha256(f"{parts}:{self.size}:{self.channels}:{self.aligned}".encode()).hexdigest()


class ImagePairs:
    """Images of two folders: pairs of the same name (input and target), or unaligned (`first`, `second`).

    data: {class: manyfit.data.ImagePairs, first: data/photos, second: data/drawings, aligned: false}
    """

    def __init__(
        self,
        first: Path,
        second: Path,
        aligned: bool = True,
        size: Annotated[int, Gt(0)] | None = None,
        channels: Annotated[int, Gt(0)] = 3,
        validation: Annotated[float, Ge(0)] = 0.15,
        test: Annotated[float, Ge(0)] = 0.15,
        split_seed: int = 0,
        split_file: Path | None = None,
        batch_size: Annotated[int, Gt(0)] = 16,
        workers: Annotated[int, Kind.NEUTRAL, Ge(0)] = 0,
    ) -> None:
        self.roots, self.aligned, self.size, self.channels = (first, second), aligned, size, channels
        self.held_out = HeldOut(validation, test, split_seed, split_file=split_file)
        self.batch_size = batch_size
        self.workers = workers

    def source(self, split: Split) -> DatasetSource | None:
        """Return the pairs of one split."""
        found = [list_images(root) for root in self.roots]
        names = [[file.relative_to(root).with_suffix("").as_posix() for file in files]
                 for root, files in zip(self.roots, found, strict=True)]  # fmt: skip
        if self.aligned and names[0] != names[1]:
            lost = sorted(set(names[0]) ^ set(names[1]))
            raise UsageError(
                f"{self.roots[0]} and {self.roots[1]} do not have the same images: {lost[0]!r} has no partner"
            )
        rows = self.held_out.divide(names[0])[split]
        others = rows if self.aligned else self.held_out.divide(names[1])[split]
        if not len(rows) or not len(others):
            return None
        files = [[found[0][row] for row in rows], [found[1][row] for row in others]]
        return DatasetSource(
            PairRows(self.roots, files, self.size, self.channels, self.aligned), self.workers
        )
