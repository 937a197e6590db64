"""Encoded images → pixels.

A JPEG is decoded by libjpeg-turbo with its accurate integer transform and smooth upsampling: what TensorFlow
calls `INTEGER_ACCURATE`, bit for bit, whether simplejpeg is there, which is faster, or Pillow alone.
"""

from __future__ import annotations

import functools
import io
import threading
from typing import Any, Final

import numpy as np

LARGEST: Final = 1 << 28
"""Pixels of an image that is decoded; a file that says that it has more is not believed."""
KEPT: Final = 1 << 22
"""Pixels of an image whose memory is kept for the next one."""
FORMATS: Final = {"jpeg": ["JPEG"], "png": ["PNG"], "bmp": ["BMP"], "gif": ["GIF"]}
JPEG: Final = b"\xff\xd8"
MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}


_scratch = threading.local()
"""Of each thread, the memory that the last JPEG was decoded in: most files have images of one size."""


class Unreadable(ValueError):
    """Bytes that are no image, or not one that is read here."""


def pixels(data: bytes, decode_format: str, channels: int, size: tuple[int, int] | None) -> Any:
    """An image as uint8 of (height, width, channels), resized to (height, width) if that is given.

    With 0 channels, an image has as many as it has.
    """
    from PIL import Image

    if channels in (0, 3) and decode_format in ("jpeg", "auto") and data.startswith(JPEG):
        fast = _colours(data, channels, size)
        if fast is not None:
            return fast
    formats = FORMATS.get(decode_format) or [name for names in FORMATS.values() for name in names]
    try:
        image: Any = Image.open(io.BytesIO(data), formats=formats)
        if image.width * image.height > LARGEST:
            raise Unreadable(f"an image of {image.width} × {image.height} pixels is too large")
        if getattr(image, "n_frames", 1) > 1:
            raise Unreadable(f"an animation of {image.n_frames} pictures is not one image")
        mode = MODES.get(channels) or (image.mode if image.mode in MODES.values() else "RGB")
        if image.format == "JPEG" and mode == "L":
            image.draft("L", None)  # the brightness as the file has it, and not one made from its colours
        if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off instead of scaling
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        image = image if image.mode == mode else image.convert(mode)
        if size is not None and (image.height, image.width) != size:
            if mode == "RGB" and _is_vectorised():
                return resize(np.array(image), size)
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        found = np.asarray(image)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # a damaged image makes its decoder fail in whatever way
        raise Unreadable(f"is not an image that can be read: {error}") from None
    return found[:, :, None] if found.ndim == 2 else found


def _colours(data: bytes, channels: int, size: tuple[int, int] | None) -> Any:
    """A JPEG in colours, without Pillow's decoder; None if that cannot be done, and Pillow shall say why."""
    decoder = _simplejpeg()
    if decoder is None:
        return None
    try:
        height, width, colours, _ = decoder.decode_jpeg_header(data)
        if colours not in ("YCbCr", "RGB", *(["Gray"] if channels == 3 else [])) or width * height > LARGEST:
            return None
        if size is None or size == (height, width):
            return decoder.decode_jpeg(data, "RGB")
        if _is_vectorised():
            return resize(decoder.decode_jpeg(data, "RGB"), size)
        return _shrunk(decoder, data, (width, height), size)
    except ValueError:
        return None


def _shrunk(decoder: Any, data: bytes, given: tuple[int, int], size: tuple[int, int]) -> Any:
    """A JPEG of a given width and height in another size, by Pillow."""
    from PIL import Image

    kept: Any = getattr(_scratch, "kept", (None, None, None))
    known, image, memory = kept
    if known != given:
        image, memory = Image.new("RGB", given, None), np.empty(4 * given[0] * given[1], np.uint8)
        if given[0] * given[1] <= KEPT:
            _scratch.kept = (given, image, memory)
    # Pillow keeps four bytes a pixel, which are copied in one go; to resize three of them is faster.
    image.frombytes(decoder.decode_jpeg(data, "RGBX", buffer=memory), "raw", "RGBX")
    small = image.resize((size[1], size[0]), Image.Resampling.BILINEAR).tobytes("raw", "RGB")
    return np.frombuffer(small, np.uint8).reshape(*size, 3)


def resize(found: Any, size: tuple[int, int] | None) -> Any:
    """Colours of another size: bilinear, with antialiasing, as Pillow does it, but for the last bit."""
    import torch

    given = torch.from_numpy(found).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(given, size, mode="bilinear", antialias=True)
    return made[0].permute(1, 2, 0).numpy()


@functools.cache
def _is_vectorised() -> bool:
    """Whether PyTorch resizes with AVX2, in a third of Pillow's time; elsewhere it takes longer."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability()).startswith("AVX")


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
