"""Secrets: values that are used but never written.

A secret stays a template (`${secret:TOKEN}`) until a component is called with it. Every secret that was read
is remembered here, with all its encodings, so that it can be removed from everything that manyfit writes or
prints: files, logs, messages, recorded diffs and command lines.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final
from urllib.parse import quote, quote_plus

PATTERN: Final = re.compile(r"\$\{\s*secret\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
TEMPLATE: Final = re.compile(r"(\$\{\s*secret\s*:\s*[A-Za-z_][A-Za-z0-9_]*\s*\})")
PIECE: Final = 8
"""Number of characters at the start or end of a truncated secret that are enough to hide it."""
LONGEST: Final = 8192
MOST_LINES: Final = 128
"""Longer values, or values of more lines, are not searched for in doubly quoted forms."""
SHORT: Final = {
    "\n": "n",
    "\r": "r",
    "\t": "t",
    "\0": "0",
    "\x1b": "e",
    "\a": "a",
    "\b": "b",
    "\f": "f",
    "\v": "v",
}
LEAST: Final = 4
"""A shorter value cannot be distinguished from other text."""
CERTAIN: Final = 12
"""Number of characters of a secret that do not occur in a file by chance, as a part of its syntax."""
SIGNS: Final = r"(?:[ \t]*(?:\\+[rn]|[\r\n])[-+ >|#\t]*)+"
"""What may separate two lines of a secret: line breaks, plain or escaped, and diff markers."""
USER: Final = re.compile(r"(?<=://)([^\s/:@?#\"']*):(?!\$\{)([^\s/\"]+)(?=@)")
"""A user name and a password in a URL; a template is not a password."""

NAMED: Final = re.compile(r"(?i)token|secret|passw|(?:^|_)pass$|credential|(?:^|_)key(?:_|$)|auth")
"""Names of environment variables that are secrets."""

_revealed: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Secret:
    """Text with `${secret:NAME}` in it. Printing it prints the template; `reveal` returns the value."""

    template: str

    @property
    def names(self) -> tuple[str, ...]:
        """The required environment variables."""
        return tuple(PATTERN.findall(self.template))

    def reveal(self) -> str:
        """Return the text with its secrets filled in from the environment."""
        return PATTERN.sub(lambda found: read_secret(found[1]), self.template)

    def __str__(self) -> str:
        return self.template

    __repr__ = __str__


def read_secret(name: str) -> str:
    """Read a secret from the environment, and hide it from now on."""
    value = os.environ[name]
    remember(name, value)
    return value


def remember(name: str, value: str) -> None:
    """Hide a value from now on."""
    if len(value) >= LEAST and _revealed.get(value) != name:
        _revealed[value] = name


def find_secrets(names: Iterable[str]) -> tuple[str, ...]:
    """Return the environment variables that are named like a secret, such as HF_TOKEN or API_KEY.

    A value that is too short to be one is not returned: it would be hidden in unrelated text.
    """
    return tuple(name for name in names if NAMED.search(name) and len(os.environ.get(name, "")) >= PIECE)


def has_secrets() -> bool:
    """Return whether any secret has been read in this process."""
    return bool(_revealed)


def insert_templates(value: Any) -> Any:
    """Replace known secrets in a config value by their templates."""
    if isinstance(value, str):
        for known in sorted(_revealed, key=len, reverse=True):
            template = f"${{secret:{_revealed[known]}}}"
            value = outside_templates(value, methodcaller("replace", known, template))
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"${{secret:{_revealed[str(value)]}}}" if is_number and str(value) in _revealed else value


def outside_templates(text: str, change: Callable[[str], str]) -> str:
    """Change text outside of templates: the value of a secret may equal the name of one."""
    if "${" not in text:
        return change(text)
    parts = TEMPLATE.split(text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def redact_nested(value: Any) -> Any:
    """Remove secrets from all text in nested data before it is written as JSON. Keys and numbers stay."""
    if not _revealed:
        return value
    if isinstance(value, str):
        return without_values(value)
    if isinstance(value, Mapping):
        return {key: redact_nested(item) for key, item in value.items()}
    return [redact_nested(item) for item in value] if isinstance(value, list | tuple) else value


def redact(text: str) -> str:
    """Remove all secrets from a message, including undeclared passwords in URLs."""
    text = clean(text)
    return USER.sub(r"\1:***", text) if "://" in text else text


def clean(text: str) -> str:
    """Replace every secret that has been read in this process by its template, in any encoding.

    This covers the value, its lines, truncated values, and their forms in JSON, Python literals, URLs, base64
    and hexadecimal. It is meant for messages: a piece of a secret may also be part of an unrelated word.
    """
    if not _revealed:
        return text
    known = _list_spellings(tuple(_revealed.items()))
    # Pieces come last: a piece of one form could otherwise be removed from inside another form.
    return outside_templates(known.without_whole(text), known.without_pieces)


def without_values(text: str) -> str:
    """Replace only whole values and whole lines of them, in any encoding: for data that is read again."""
    return _list_spellings(tuple(_revealed.items())).without_whole(text, PIECE) if _revealed else text


def clean_file(text: str) -> str:
    """Replace whole values in the text of a file, in which a short secret could be part of the syntax."""
    return (
        _list_spellings(tuple(_revealed.items())).without_whole(text, CERTAIN, is_file=True)
        if _revealed
        else text
    )


def clean_bytes(data: bytes) -> bytes:
    """Remove secrets from bytes that are mostly text; bytes without secrets are returned unchanged."""
    if not _revealed:
        return data
    text = data.decode("utf-8", "surrogateescape")
    found = clean(text)
    return data if found == text else found.encode("utf-8", "surrogateescape")


def holds_secret(data: bytes) -> bool:
    """Return whether bytes hold a whole secret."""
    text = data.decode("utf-8", "surrogateescape")
    return without_values(text) != text or holds_value(data)


def holds_value(data: bytes) -> bool:
    """Return whether bytes, such as those of numbers, hold a secret in UTF-8 or as NumPy stores text."""
    return any(
        value.encode("utf-8", "surrogateescape") in data
        or any(value.encode(wide, "surrogatepass") in data for wide in ("utf-16-le", "utf-32-le"))
        for value in _revealed
    )


@dataclass(frozen=True)
class _Known:
    """All forms of all secrets."""

    forms: Mapping[str, str]
    """Templates by form, the longest first."""
    patterns: tuple[tuple[int, str, re.Pattern[str], str], ...]
    """Patterns for values of several lines, and for values with escaped characters: the length of the value,
    characters that every match contains, the pattern, and the template."""

    @functools.cached_property
    def _by_piece(self) -> dict[tuple[str, bool], list[str]]:
        """Forms by the piece that they begin with (true) or end with (false)."""
        found: dict[tuple[str, bool], list[str]] = {}
        for form in (form for form in self.forms if len(form) > PIECE):
            found.setdefault((form[:PIECE], True), []).append(form)
            found.setdefault((form[-PIECE:], False), []).append(form)
        return found

    @functools.cached_property
    def _starts(self) -> frozenset[str]:
        return frozenset(form[:LEAST] for form in self.forms)

    def _may_hold(self, text: str) -> bool:
        """Return whether a text could hold any form; for short text this is faster than a full search."""
        if len(text) > len(self.forms):
            return True
        return any(text[at : at + LEAST] in self._starts for at in range(len(text) - LEAST + 1))

    def without_whole(self, text: str, least: int = 0, is_file: bool = False) -> str:
        """Replace whole values; in a file, values of digits alone stay where they are numbers."""
        for length, sure, pattern, template in self.patterns:
            if length >= least and sure in text:
                text = outside_templates(text, functools.partial(pattern.sub, template))
        if not self._may_hold(text):
            return text
        for form, template in self.forms.items():
            if len(form) < least:
                break
            if form in text and is_file and form.isdigit():
                text = outside_templates(text, functools.partial(_without_digits, form, template))
            elif form in text:
                text = outside_templates(text, methodcaller("replace", form, template))
        return text

    def without_pieces(self, text: str) -> str:
        """Replace beginnings and ends of truncated values."""
        if len(text) <= len(self._by_piece) and not self._may_hold_piece(text):
            return text
        for (piece, is_begin), forms in self._by_piece.items():
            at = text.find(piece)
            while at >= 0:
                length = max(_count_shared(text, at, form, is_begin) for form in forms)
                begin = at if is_begin else at + PIECE - length
                text = text[:begin] + self.forms[forms[0]] + text[begin + length :]
                at = text.find(piece, begin + len(self.forms[forms[0]]))
        return text

    def _may_hold_piece(self, text: str) -> bool:
        pieces = self._pieces
        return any(text[at : at + PIECE] in pieces for at in range(len(text) - PIECE + 1))

    @functools.cached_property
    def _pieces(self) -> frozenset[str]:
        return frozenset(piece for piece, _ in self._by_piece)


def _count_shared(text: str, at: int, form: str, is_begin: bool) -> int:
    """Return how many characters around the piece at `at` match a form."""
    length = PIECE
    if is_begin:
        while length < len(form) and text[at + length : at + length + 1] == form[length]:
            length += 1
        return length
    end = at + PIECE
    while length < len(form) and end > length and text[end - length - 1] == form[-length - 1]:
        length += 1
    return length


@functools.lru_cache(maxsize=1)
def _list_spellings(revealed: tuple[tuple[str, str], ...]) -> _Known:
    """Collect all forms of all secrets, the longest first."""
    found: dict[str, str] = {}
    patterns = []
    for value, name in revealed:
        template = f"${{secret:{name}}}"
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        if len(lines) > 1:
            sure = max(re.findall(r"\w+", lines[0], flags=re.ASCII), key=len, default="")
            pattern = re.compile(SIGNS.join(re.escape(line) for line in lines))
            patterns.append((len(value), sure, pattern, template))
        telling = [line for line in lines if _is_telling(line)]
        parts = [part for part in dict.fromkeys([value, value.strip(), *telling]) if len(part) >= LEAST]
        if len(lines) <= MOST_LINES:
            quoted = [
                part for part in parts if len(part) <= LONGEST and not (part.isascii() and part.isalnum())
            ]
            patterns += [(len(part), *_compile_escaped(part), template) for part in quoted]
        for part in parts:
            for form in spellings(part):
                found.setdefault(form, template)
    ordered = sorted(found.items(), key=lambda item: -len(item[0]))
    return _Known(dict(ordered), tuple(sorted(patterns, key=lambda each: -each[0])))


def _is_telling(line: str) -> bool:
    """Return whether a line of a secret is secret: the BEGIN and END lines of a key are not."""
    return len(line) >= PIECE and not line.startswith("-----")


def _without_digits(digits: str, template: str, text: str) -> str:
    """Replace a secret of digits in the text of a file, except in numbers, which must stay valid."""
    number = rf"[\[,:\n][ \t]*-?[\d.]*{digits}[\d.eE+-]*(?=\s*[,\]}}\r\n])"
    return re.sub(rf"({number})|{digits}", lambda found: found[1] or template, text)


def _compile_escaped(value: str) -> tuple[str, re.Pattern[str]]:
    """Compile a pattern for a value that was quoted once or repeatedly: as a literal, in JSON, YAML, a URL or
    a shell. Return it after the longest part that no quoting changes."""
    parts = []
    for letter, run in itertools.groupby(value):
        count = len(list(run))
        if letter.isascii() and letter.isalnum():
            parts.append(letter * count)
        elif letter == "\\":
            parts.append(rf"\\{{{count},{8 * count}}}")
        else:
            parts.append(f"(?i:{'|'.join(_ways(letter))}){{{count}}}")
    sure = max(re.findall("[A-Za-z0-9]+", value), key=len, default="")
    return sure, re.compile("".join(parts))


def _ways(letter: str) -> Iterator[str]:
    """Yield patterns for the ways to quote a character, with up to 8 backslashes."""
    octets, utf16 = letter.encode("utf-8", "surrogateescape"), letter.encode("utf-16-be", "surrogatepass")
    some, any_ = r"\\{1,8}", r"\\{0,8}"
    yield any_ + re.escape(letter)
    yield f"{some}x{ord(letter):02x}" if ord(letter) < 256 else f"{some}U{ord(letter):08x}"
    yield "".join(f"{some}u{utf16[at : at + 2].hex()}" for at in range(0, len(utf16), 2))
    yield "".join(f"{some}x{octet:02x}" for octet in octets)
    yield "".join(f"%{octet:02x}" for octet in octets)
    if letter in SHORT:
        yield some + SHORT[letter]
    if letter == " ":
        yield r"\+"
    if letter == '"':
        yield '""'  # CSV
    if letter == "'":
        yield "''"
        yield f"'{any_}\"'{any_}\"'"
        yield f"'{some}''"


def spellings(value: str) -> set[str]:
    """Return the forms of a value: plain, escaped, in a URL, in base64 and in hexadecimal."""
    data = value.encode("utf-8", "surrogateescape")
    literal, octets = repr(value + "\"'")[1:-4], repr(data)[2:-1]
    found = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    found |= {literal, octets, octets.replace("'", "\\'"), json.dumps(octets)[1:-1], ascii(value)[1:-1]}
    found |= {form.replace("'", "\\'") for form in (value, literal)} | {value.replace('"', '\\"')}
    found |= {value.replace("'", "''"), value.replace("'", "'\"'\"'")}  # YAML and shell
    addressed = {quote(data, safe=""), quote(data), quote_plus(data)}
    found |= addressed | {re.sub("%..", lambda code: code[0].lower(), form) for form in addressed}
    found |= {data.hex(), data.hex().upper(), *_in_base64(data)}
    return found - {""}


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield the base64 of a value, alone and at the other two byte offsets inside longer data."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            text = encode(bytes(shift) + data).decode()
            begin, end = -(-shift * 8 // 6), (len(data) + shift) * 8 // 6
            if end - begin >= PIECE:
                yield text[begin:end]
        text = encode(data).decode().rstrip("=")
        if len(text) >= PIECE:
            yield text
