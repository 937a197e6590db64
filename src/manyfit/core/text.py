"""Text for a terminal, without control sequences."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and newline, bidirectional marks, and undecodable bytes."""


def printable(text: str) -> str:
    r"""Write control characters as escapes.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    """Write control characters, line breaks and tabs as escapes, for one line of a table."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
