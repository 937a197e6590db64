"""Comparison of functions that are timed alternately in the same run: ratios of the best times, and the spread."""

from __future__ import annotations

import inspect
import platform
import statistics
import time
from collections.abc import Callable, Mapping

Side = Callable[[], object]


def seconds(side: Side) -> float:
    """Return the seconds that a side takes. Of a generator, only the part between its two `yield`s is timed."""
    if inspect.isgeneratorfunction(getattr(side, "__func__", side)):
        steps = side()
        next(steps)
        began = time.perf_counter()
        next(steps)
        took = time.perf_counter() - began
        for _ in steps:
            pass
        return took
    began = time.perf_counter()
    side()
    return time.perf_counter() - began


def compare(
    name: str,
    above: Side,
    below: Side,
    rounds: int,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    beside: Mapping[str, Side] | None = None,
    by_median: bool = False,
) -> bool:
    """Print time(above) / time(below) and return whether it is within its limit.

    The limit holds for the ratio of the best times, or for the median of the ratios of each round.
    The functions of `beside` are measured in the same rounds and printed as time(above) / their own time.
    """
    sides = {"above": above, "below": below, **(beside or {})}
    for side in sides.values():
        seconds(side)
    times: dict[str, list[float]] = {key: [] for key in sides}
    for _ in range(rounds):
        for key, side in sides.items():
            times[key].append(seconds(side))
    best = min(times["above"]) / min(times["below"])
    each = sorted(a / b for a, b in zip(times["above"], times["below"], strict=True))
    median = statistics.median(each)
    judged = median if by_median else best
    good = (at_most is None or judged <= at_most) and (at_least is None or judged >= at_least)
    limit = f"at most {at_most}" if at_most is not None else f"at least {at_least}"
    limits = ("", f" ({limit})") if by_median else (f" ({limit})", "")
    print(
        f"{name}: ratio of best {best:.2f}{limits[0]}, median {median:.2f}{limits[1]}, "
        f"spread {each[0]:.2f}–{each[-1]:.2f} over {rounds} rounds; "
        f"best {min(times['above']) * 1e3:.4g} ms against {min(times['below']) * 1e3:.4g} ms: "
        f"{'ok' if good else 'TOO SLOW'}"
    )
    for key in beside or {}:
        print(f"    {key}: {min(times['above']) / min(times[key]):.2f}")
    return good


def where() -> str:
    """Return the Python version and the platform, for the header of a report."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
