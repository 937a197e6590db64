"""Where an exception came from, in the user's own code if it passed through any."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_PYTHONS = sysconfig.get_path("stdlib")


def notes(error: BaseException) -> str:
    """What was added to an exception on its way, each on a line of its own."""
    return "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))


def explain_error(error: BaseException) -> str:
    """What an exception says; of TensorFlow's, which quote the graph, the reason alone.

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
    """The last place in the traceback that is neither manyfit's, Python's nor a library's; else the last."""
    frames = traceback.extract_tb(error.__traceback__)
    others = (_OURS, _PYTHONS, "<")
    own = [f for f in frames if not f.filename.startswith(others) and "site-packages" not in f.filename]
    for frame in (own or frames)[-1:]:
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""
