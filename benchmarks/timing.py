"""Two things measured in the same run, in turns, many times: a ratio of their best times, and its spread."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable


def compare(
    name: str, ours: Callable[[], object], limit: Callable[[], object], rounds: int, at_most: float
) -> bool:
    """Print ours/limit and say whether it is within `at_most`."""
    times: dict[str, list[float]] = {"ours": [], "limit": []}
    ours(), limit()
    for _ in range(rounds):
        for key, function in (("ours", ours), ("limit", limit)):
            began = time.perf_counter()
            function()
            times[key].append(time.perf_counter() - began)
    best = min(times["ours"]) / min(times["limit"])
    each = sorted(a / b for a, b in zip(times["ours"], times["limit"], strict=True))
    verdict = "ok" if best <= at_most else "TOO SLOW"
    print(
        f"{name}: ratio of best {best:.2f} (at most {at_most}), median {statistics.median(each):.2f}, "
        f"spread {each[0]:.2f}–{each[-1]:.2f} over {rounds} rounds; "
        f"best {min(times['ours']) * 1e3:.0f} ms against {min(times['limit']) * 1e3:.0f} ms: {verdict}"
    )
    return best <= at_most


def where() -> str:
    """The machine, for the head of a report."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
