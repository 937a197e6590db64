"""The origin of an exception, preferably in user code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_PYTHONS = sysconfig.get_path("stdlib")


def notes(error: BaseException) -> str:
    """Return the notes that were added to an exception, one per line."""
    return "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))


def explain_error(error: BaseException) -> str:
    """Return the message of an exception; for TensorFlow, the reason without the quoted graph.

    >>> explain_error(ValueError("Graph execution error:\\nDetected at x\\n y\\nToo large\\n\\t [[{{x}}]]"))
    'Too large'
    """
    text = str(error)
    if not text.startswith("Graph execution error"):
        return text
    kept = [
        line.strip()
        for line in text.splitlines()[1:]
        if line.strip() and not line.startswith((" ", "\t", "Detected at", "Stack trace", "[["))
    ]
    return " ".join(" ".join(kept[-3:]).partition("[[{{")[0].split()) or text


def user_frame(error: BaseException) -> str:
    """Return the last frame outside of manyfit, the standard library and libraries; else the last one."""
    frames = traceback.extract_tb(error.__traceback__)
    others = (_OURS, _PYTHONS, "<")
    own = [f for f in frames if not f.filename.startswith(others) and "site-packages" not in f.filename]
    for frame in (own or frames)[-1:]:
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""
