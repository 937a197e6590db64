"""Folders of images, one per class."""

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


class ImageTable(RowTable):
    """A folder with one folder of images per class. Classes are numbered in alphabetical order."""

    def __init__(self, folder: Path, classes: Sequence[str] | None = None) -> None:
        here = sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] not in "._")
        self.classes = list(classes) if classes is not None else here
        for name in here:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{folder}: the folder name {name!a} is not UTF-8") from None
        unknown = [name for name in here if name not in self.classes]
        if unknown:
            raise UsageError(
                f"{folder} has classes that are not in the {CLASSES} of the existing records: "
                f"{listing(unknown)}"
            )
        found = {
            name: sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in IMAGES and p.is_file())
            for name in self.classes
        }
        self.files = [(file, number) for number, name in enumerate(self.classes) for file in found[name]]
        if not self.files:
            raise UsageError(f"{folder} has no subfolders with images ({', '.join(IMAGES)})")
        self.folder = folder
        self.size = sum(file.stat().st_size for file, _ in self.files)
        # Shuffle, so that every shard has all classes: a shard of one class would be a poor sample.
        order = np.random.RandomState(np.random.MT19937(0)).permutation(len(self.files))
        self.files = [self.files[i] for i in order]

    def __len__(self) -> int:
        return len(self.files)

    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Yield the encoded image, its format and size, its class, and its file name."""
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
            except Exception as error:  # decoders raise various exceptions for damaged images
                raise UsageError(f"{file} is not a readable image: {error}") from error
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
        """Return options that resize images to one size, if the first images differ."""
        image: Any = import_optional("PIL.Image", "images")
        sizes = set()
        for file, _ in self.files[:200]:
            with image.open(file) as opened:
                sizes.add(opened.size)
        return "" if len(sizes) == 1 else "resize_height: 224, resize_width: 224, "

    def features(self) -> dict[str, str]:
        """Return the options of the image and the class."""
        return {
            "image/encoded": f"{{type: ImageFeature, {self._size()}channels_first: true}}",
            "image/class/label": "{type: FixedLenFeature, shape: [1], dtype: int64}",
        }
