"""Secrets: values that are used but never written.

A secret stays a template (`${secret:TOKEN}`) until the moment a component is called with it. Everything
that is revealed is remembered here, so that free text which manyfit writes (logs, error messages,
recorded diffs and command lines) can be cleaned of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, quote_plus

PATTERN: Final = re.compile(r"\$\{\s*secret\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")

_revealed: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Secret:
    """Text with `${secret:NAME}` in it. Printing it prints the template; `reveal` gives the value."""

    template: str

    @property
    def names(self) -> tuple[str, ...]:
        """The environment variables that are needed."""
        return tuple(PATTERN.findall(self.template))

    def reveal(self) -> str:
        """Return the text with its secrets filled in from the environment."""
        return PATTERN.sub(lambda found: value_of(found[1]), self.template)

    def __str__(self) -> str:
        return self.template

    __repr__ = __str__


def value_of(name: str) -> str:
    """Read one secret from the environment, and remember to hide it from now on."""
    value = os.environ[name]
    _revealed[value] = name
    return value


def redacted(value: Any) -> Any:
    """Clean every text in nested data, before it is written as JSON."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value


def redact(text: str) -> str:
    """Replace every secret that has been read in this process by its template.

    The escaped forms in which a value can stand in JSON, in a Python literal or in an address count too.
    """
    for value, name in sorted(_revealed.items(), key=lambda item: -len(item[0])):
        for form in sorted(_forms(value), key=len, reverse=True):
            text = text.replace(form, f"${{secret:{name}}}")
    return text


def _forms(value: str) -> set[str]:
    """How a value may be spelled in JSON, in a Python literal, in an address."""
    literal = repr(value + "\"'")[1:-4]
    escaped = {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        literal,
    }
    escaped |= {form.replace("'", "\\'") for form in (value, literal)} | {value.replace('"', '\\"')}
    addressed = {quote(value, safe=""), quote(value), quote_plus(value)}
    return {form for form in {value, *escaped, *addressed} if form}
