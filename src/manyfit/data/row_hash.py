"""Hashes of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def drop_weight(item: Any) -> Any:
    """Return a row without its weight."""
    if isinstance(item, Mapping):
        return {name: value for name, value in item.items() if name != "weight"}
    return item[:2] if isinstance(item, tuple | list) else item


def hash_row(row: Any) -> bytes:
    """Return a short hash of a row."""
    digest = hashlib.blake2b(digest_size=16)
    update(digest, row)
    return digest.digest()


def update(digest: Any, item: Any) -> None:
    """Add a row to a hash: arrays, numbers, text, or nested structures of them."""
    if isinstance(item, Mapping):
        for key in sorted(item, key=str):
            digest.update(f"{key}:".encode())
            update(digest, item[key])
    elif isinstance(item, tuple | list):
        for part in item:
            update(digest, part)
    elif isinstance(item, bytes):
        digest.update(item)
    else:
        array = np.asarray(item)
        digest.update(f"{array.dtype.str}:{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data if array.dtype != object else repr(item).encode())
