"""Durations and sizes in a study file, such as 30m and 4GiB."""

from __future__ import annotations

import re
from typing import Final

DURATION: Final = r"^\d{1,9}(\.\d{1,6})?(s|m|h|d)$"
SIZE: Final = r"^\d{1,9}(\.\d{1,6})?(MB|GB|TB|MiB|GiB|TiB)$"


def seconds(duration: str | None) -> float | None:
    """Return a duration such as 90s, 10m, 2h or 1d in seconds."""
    if duration is None:
        return None
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]


def count_bytes(text: str | None) -> int | None:
    """Return a size such as 4GiB in bytes."""
    found = re.match(SIZE, text) if text is not None else None
    if found is None or text is None:
        return None
    power = {"M": 2, "G": 3, "T": 4}[found[2][0]]
    return int(float(text[: -len(found[2])]) * (1024 if found[2][1] == "i" else 1000) ** power)
