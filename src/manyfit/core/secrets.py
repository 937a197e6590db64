"""Secrets: values that are used but never written.

A secret stays a template (`${secret:TOKEN}`) until the moment a component is called with it. Every value
that was read is remembered here, with all the ways in which it may be spelled, so that whatever manyfit
writes or prints (files, logs, messages, recorded diffs and command lines) can be cleaned of it.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, quote_plus

PATTERN: Final = re.compile(r"\$\{\s*secret\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
PIECE: Final = 8
"""So many characters of a secret, at its beginning or its end, are hidden although the rest was cut off."""
LEAST: Final = 4
"""A shorter value cannot be told from other text."""
SIGNS: Final = r"(?:[ \t]*(?:\\+[rn]|[\r\n])[-+ >|#\t]*)+"
"""What may stand between two lines of a secret: line ends, as they are or escaped, and signs of a diff."""
USER: Final = re.compile(r"(?<=://)([^\s/:@?#\"']+):([^\s/@\"']+)(?=@)")
"""A name and a password in an address."""

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
    remember(name, value)
    return value


def remember(name: str, value: str) -> None:
    """Hide a value from now on, whoever has read it."""
    if len(value) >= LEAST and _revealed.get(value) != name:
        _revealed[value] = name


def has_secrets() -> bool:
    """Whether any secret has been read in this process."""
    return bool(_revealed)


def templated(value: Any) -> Any:
    """A value of a config in which a known secret stands in plain, with its template in its place."""
    if isinstance(value, str):
        for known in sorted(_revealed, key=len, reverse=True):
            value = value.replace(known, f"${{secret:{_revealed[known]}}}")
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"${{secret:{_revealed[str(value)]}}}" if is_number and str(value) in _revealed else value


def redacted(value: Any) -> Any:
    """Clean every text in nested data, before it is written as JSON."""
    if not _revealed:
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key) if isinstance(key, str) else key: redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list | tuple) else value


def redact(text: str) -> str:
    """Clean a message of everything secret: also of passwords in addresses, which nobody has declared."""
    text = clean(text)
    return USER.sub(r"\1:***", text) if "://" in text else text


def clean(text: str) -> str:
    """Replace every secret that has been read in this process by its template, however it is spelled.

    The value counts, its lines, what was cut off of it, and its forms in JSON, in a Python literal, in an
    address, in base64 and in hexadecimal digits.
    """
    forms = _known(tuple(_revealed.items()))
    if not forms:
        return text
    for form in forms:
        text = form.without_whole(text)
    for form in forms:  # after that, or a piece of one spelling would be taken out of another
        text = form.without_pieces(text)
    return text


def clean_bytes(data: bytes) -> bytes:
    """The same for bytes; what holds no secret comes back as it is."""
    if not _revealed:
        return data
    text = data.decode("utf-8", "surrogateescape")
    found = clean(text)
    return data if found is text or found == text else found.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Form:
    """One spelling of a secret."""

    text: str
    template: str
    lines: re.Pattern[str] | None = None
    """The same over several lines, with signs between them."""

    def without_whole(self, text: str) -> str:
        if self.lines is not None:
            return self.lines.sub(lambda _: self.template, text)
        return text.replace(self.text, self.template)

    def without_pieces(self, text: str) -> str:
        if self.lines is None and len(self.text) > PIECE:
            text = self._without(text, self.text[:PIECE], forwards=True)
            text = self._without(text, self.text[-PIECE:], forwards=False)
        return text

    def _without(self, text: str, piece: str, forwards: bool) -> str:
        """Take out the beginnings, or the ends, of a secret whose rest was cut off."""
        at = text.find(piece)
        while at >= 0:
            begin, end = at, at + len(piece)
            if forwards:
                length = len(piece)
                while end < len(text) and length < len(self.text) and text[end] == self.text[length]:
                    end, length = end + 1, length + 1
            else:
                left = len(self.text) - len(piece)
                while begin and left and text[begin - 1] == self.text[left - 1]:
                    begin, left = begin - 1, left - 1
            text = text[:begin] + self.template + text[end:]
            at = text.find(piece, begin + len(self.template))
        return text


@functools.lru_cache(maxsize=1)
def _known(revealed: tuple[tuple[str, str], ...]) -> tuple[_Form, ...]:
    """Every spelling of every secret, the longest first."""
    found: dict[str, _Form] = {}
    patterns = []
    for value, name in revealed:
        template = f"${{secret:{name}}}"
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        if len(lines) > 1:
            text = SIGNS.join(re.escape(line) for line in lines)
            patterns.append(_Form(value, template, re.compile(text)))
        for part in dict.fromkeys([value, value.strip(), *(line for line in lines if _is_telling(line))]):
            for form in spellings(part):
                found.setdefault(form, _Form(form, template))
    whole = sorted(found.values(), key=lambda form: -len(form.text))
    return (*patterns, *whole)


def _is_telling(line: str) -> bool:
    """Whether a line of a secret says something: the frame of a key does not."""
    return len(line) >= PIECE and not line.startswith("-----")


def spellings(value: str) -> set[str]:
    """How a value may be spelled: as it is, escaped, in an address, in base64, in hexadecimal digits."""
    data = value.encode("utf-8", "surrogateescape")
    literal, octets = repr(value + "\"'")[1:-4], repr(data)[2:-1]
    found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    found |= {literal, octets, octets.replace("'", "\\'"), json.dumps(octets)[1:-1], ascii(value)[1:-1]}
    found |= {form.replace("'", "\\'") for form in (value, literal)} | {value.replace('"', '\\"')}
    found |= {value.replace("'", "''"), value.replace("'", "'\"'\"'")}  # in YAML, and in a shell
    addressed = {quote(data, safe=""), quote(data), quote_plus(data)}
    found |= addressed | {re.sub("%..", lambda code: code[0].lower(), form) for form in addressed}
    found |= {data.hex(), data.hex().upper(), *_in_base64(data)}
    return found - {""}


def _in_base64(data: bytes) -> Iterator[str]:
    """Base64 of a value, alone and inside of other bytes, which shift it by one or two."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            text = encode(bytes(shift) + data).decode()
            begin, end = -(-shift * 8 // 6), (len(data) + shift) * 8 // 6
            if end - begin >= PIECE:
                yield text[begin:end]
        text = encode(data).decode().rstrip("=")
        if len(text) >= PIECE:
            yield text
