"""Folders of images, with a folder for each class."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.names import listing
from manyfit.data.tfrecord.tables.base import CLASSES, Row, RowTable

AS_THEY_ARE: Final = (".jpg", ".jpeg", ".png")
IMAGES: Final = (*AS_THEY_ARE, ".bmp", ".gif", ".tif", ".tiff", ".webp")


class ImageFolder(RowTable):
    """A folder with a folder for each class. Classes are numbered in the order of their names."""

    def __init__(self, folder: Path, classes: Sequence[str] | None = None) -> None:
        here = sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] not in "._")
        self.classes = list(classes) if classes is not None else here
        for name in here:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{folder}: the name of the folder {name!a} is not UTF-8") from None
        unknown = [name for name in here if name not in self.classes]
        if unknown:
            raise UsageError(
                f"{folder} has classes that {CLASSES}, beside the other records, does not name: "
                f"{listing(unknown)}"
            )
        found = {
            name: sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in IMAGES and p.is_file())
            for name in self.classes
        }
        self.files = [(file, number) for number, name in enumerate(self.classes) for file in found[name]]
        if not self.files:
            raise UsageError(f"{folder} has no folders with images in them ({', '.join(IMAGES)})")
        self.folder = folder
        self.size = sum(file.stat().st_size for file, _ in self.files)
        # Classes are spread over the files: a shard of one class would be a poor sample.
        order = np.random.RandomState(np.random.MT19937(0)).permutation(len(self.files))
        self.files = [self.files[i] for i in order]

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """The image as it is, its class, and what it is called."""
        image: Any = import_optional("PIL.Image", "images")
        for file, number in self.files[begin:end]:
            data = file.read_bytes()
            try:
                opened = image.open(io.BytesIO(data))
                width, height, kind = opened.width, opened.height, str(opened.format).lower()
                if kind not in ("jpeg", "png"):
                    out = io.BytesIO()
                    opened.convert("RGBA" if "A" in opened.mode else "RGB").save(out, "PNG")
                    data, kind = out.getvalue(), "png"
                else:
                    opened.load()
            except MemoryError:
                raise
            except Exception as error:  # a damaged image makes its decoder fail in whatever way
                raise UsageError(f"{file} is not an image that can be read: {error}") from error
            yield {
                "image/encoded": data,
                "image/format": kind,
                "image/height": height,
                "image/width": width,
                "image/class/label": number,
                "image/class/text": self.classes[number],
                "image/filename": str(file.relative_to(self.folder)),
            }

    def _size(self) -> str:
        """How images are made to have one size, if they have several."""
        image: Any = import_optional("PIL.Image", "images")
        sizes = set()
        for file, _ in self.files[:200]:
            with image.open(file) as opened:
                sizes.add(opened.size)
        return "" if len(sizes) == 1 else "resize_height: 224, resize_width: 224, "

    def features(self) -> dict[str, str]:
        """An image and a class."""
        return {
            "image/encoded": f"{{type: ImageFeature, {self._size()}channels_first: true}}",
            "image/class/label": "{type: FixedLenFeature, shape: [1], dtype: int64}",
        }
