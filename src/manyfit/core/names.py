"""Nearest names, and names in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the nearest of `names`, or an empty string.

    >>> nearest("epoch", ["epochs", "loss"])
    'epochs'
    """
    known = {candidate.lower().replace("-", "_"): candidate for candidate in names}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    return known[found[0]] if found else ""


def listing(names: Iterable[str], limit: int = 12) -> str:
    """Join names for a message, with the number of omitted ones."""
    all_names = list(names)
    text = ", ".join(all_names[:limit])
    return text if len(all_names) <= limit else f"{text} and {len(all_names) - limit} more"


def show_value(value: object, limit: int = 80) -> str:
    """Describe a received value in a message: the value, shortened, and its kind."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if value is None:
        return "null"
    text = repr(value)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return f"{text} ({kinds[type(value)]})" if type(value) in kinds else text


def pluralize(count: int | float, noun: str) -> str:
    """Return a count with its noun.

    >>> pluralize(1, "epoch"), pluralize(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{count:g} {noun}" if count == 1 else f"{count:g} {noun}s"


def indefinite(noun: str) -> str:
    """Prefix a noun with its article: `a model`, `an optimizer`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def format_size(count: float) -> str:
    """Return a number of bytes with a unit.

    >>> format_size(1536), format_size(2e9)
    ('1.54 kB', '2 GB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
