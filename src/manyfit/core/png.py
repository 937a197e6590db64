"""PNG images, written without an image library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(rows: Sequence[bytes], width: int, is_color: bool) -> bytes:
    """Return an image as PNG: one byte per pixel for gray, three for color.

    >>> encode_png([bytes([0, 255])], 2, is_color=False)[:4]
    b'\\x89PNG'
    """

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, len(rows), 8, 2 if is_color else 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def encode_grid(grid: Any) -> bytes:
    """Return an array of bytes, (height, width, 1 or 3), as PNG."""
    height, width, channels = grid.shape
    return encode_png([grid[i].tobytes() for i in range(height)], width, is_color=channels == 3)


def read_size(png: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG image."""
    found: Any = struct.unpack(">II", png[16:24])
    return int(found[0]), int(found[1])
