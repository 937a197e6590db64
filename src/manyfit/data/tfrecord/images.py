"""Image decoding.

JPEGs are decoded by libjpeg-turbo with its accurate integer transform and smooth upsampling. The result is
bit-identical to TensorFlow's `INTEGER_ACCURATE`, both with simplejpeg, which is faster, and with Pillow.
"""

from __future__ import annotations

import functools
import io
import threading
from typing import Any, Final

import numpy as np

LARGEST: Final = 1 << 28
"""The largest number of pixels of an image; a header that declares more is rejected."""
KEPT: Final = 1 << 22
"""The largest number of pixels of an image whose buffer is kept for the next one."""
FORMATS: Final = {"jpeg": ["JPEG"], "png": ["PNG"], "bmp": ["BMP"], "gif": ["GIF"]}
JPEG: Final = b"\xff\xd8"
MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}


_scratch = threading.local()
"""The decoding buffer of each thread, reused by the next JPEG: most files have images of one size."""


class Unreadable(ValueError):
    """Bytes that are not an image, or not a supported one."""


def pixels(data: bytes, decode_format: str, channels: int, size: tuple[int, int] | None) -> Any:
    """Decode an image to uint8 of (height, width, channels), resized to `size` (height, width) if given.

    With `channels=0`, the number of channels of the file is kept.
    """
    from PIL import Image

    if channels in (0, 3) and decode_format in ("jpeg", "auto") and data.startswith(JPEG):
        fast = _decode_color(data, channels, size)
        if fast is not None:
            return fast
    formats = FORMATS.get(decode_format) or [name for names in FORMATS.values() for name in names]
    try:
        image: Any = Image.open(io.BytesIO(data), formats=formats)
        if image.width * image.height > LARGEST:
            raise Unreadable(f"an image of {image.width} × {image.height} pixels is too large")
        if getattr(image, "n_frames", 1) > 1:
            raise Unreadable(f"an animation of {image.n_frames} frames is not a single image")
        mode = MODES.get(channels) or (image.mode if image.mode in MODES.values() else "RGB")
        if image.format == "JPEG" and mode == "L":
            image.draft("L", None)  # the luminance channel of the file, not one computed from its colors
        if image.mode.startswith("I"):  # 16 bits, which Pillow would clip instead of scaling
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        image = image if image.mode == mode else image.convert(mode)
        if size is not None and (image.height, image.width) != size:
            if mode == "RGB" and _is_vectorised():
                return resize(np.array(image), size)
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        found = np.asarray(image)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # decoders raise various exceptions for damaged images
        raise Unreadable(f"is not a readable image: {error}") from None
    return found[:, :, None] if found.ndim == 2 else found


def _decode_color(data: bytes, channels: int, size: tuple[int, int] | None) -> Any:
    """Decode a color JPEG with simplejpeg; return None if that fails, so that Pillow reports the error."""
    decoder = _simplejpeg()
    if decoder is None:
        return None
    try:
        height, width, color_space, _ = decoder.decode_jpeg_header(data)
        if (
            color_space not in ("YCbCr", "RGB", *(["Gray"] if channels == 3 else []))
            or width * height > LARGEST
        ):
            return None
        if size is None or size == (height, width):
            return decoder.decode_jpeg(data, "RGB")
        if _is_vectorised():
            return resize(decoder.decode_jpeg(data, "RGB"), size)
        return _shrunk(decoder, data, (width, height), size)
    except ValueError:
        return None


def _shrunk(decoder: Any, data: bytes, given: tuple[int, int], size: tuple[int, int]) -> Any:
    """Decode a JPEG of a given width and height, and resize it with Pillow."""
    from PIL import Image

    kept: Any = getattr(_scratch, "kept", (None, None, None))
    known, image, memory = kept
    if known != given:
        image, memory = Image.new("RGB", given, None), np.empty(4 * given[0] * given[1], np.uint8)
        if given[0] * given[1] <= KEPT:
            _scratch.kept = (given, image, memory)
    # Pillow stores RGB with four bytes per pixel, so RGBX is copied in one go; resizing as RGB is faster.
    image.frombytes(decoder.decode_jpeg(data, "RGBX", buffer=memory), "raw", "RGBX")
    small = image.resize((size[1], size[0]), Image.Resampling.BILINEAR).tobytes("raw", "RGB")
    return np.frombuffer(small, np.uint8).reshape(*size, 3)


def resize(found: Any, size: tuple[int, int] | None) -> Any:
    """Resize RGB pixels: bilinear with antialiasing, equal to Pillow up to the last bit."""
    import torch

    given = torch.from_numpy(found).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(given, size, mode="bilinear", antialias=True)
    return made[0].permute(1, 2, 0).numpy()


@functools.cache
def _is_vectorised() -> bool:
    """Return whether PyTorch resizes with AVX2, in a third of Pillow's time; without AVX2 it is slower."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability()).startswith("AVX")


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
