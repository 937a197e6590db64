"""Protobuf messages one by one, by the rules of the format alone: `tf.train.Example` and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

NONE, BYTES, FLOAT, INT64 = 0, 1, 2, 3
KINDS: Final = {NONE: "nothing", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
"""What a feature holds: the number of its field in `tf.train.Feature`."""
MOST: Final = 1 << 20
"""Texts of a feature, or steps of a list, that a record may have."""
WIDEST: Final = 1 << 15
"""Features that a record may have."""
DEEP: Final = 10
"""The most bytes of a varint."""


class Broken(ValueError):
    """Bytes that do not follow the format."""


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The name of each feature, and it as it is written; one that comes twice counts as it came last."""
    return _pairs(data, 1, "a tf.train.Example", "feature")


def _pairs(data: bytes, field: int, message: str, item: str) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the map that a message has in one of its fields."""
    for number, wire, payload in _fields(data, message):
        if number != field:
            continue
        if wire != 2:
            raise Broken(f"this is not {message}: its field {field} is not a message")
        for inner, inner_wire, entry in _fields(payload, f"the {item}s"):
            if inner != 1:
                continue
            if inner_wire != 2:
                raise Broken(f"this is not {message}: a {item} is not a message")
            yield _pair(entry)


def _pair(data: bytes) -> tuple[bytes, bytes]:
    """The key and the value of an entry."""
    key, value = b"", b""
    for number, wire, payload in _fields(data, "an entry of the features"):
        if number in (1, 2) and wire != 2:
            raise Broken("a feature without a name or a value that could be read")
        if number == 1:
            key = payload
        elif number == 2:
            value = value + payload  # messages that come in parts are one message
    return key, value


def parse_sequences(data: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Name and features of each list of a SequenceExample."""
    for key, value in _pairs(data, 2, "a tf.train.SequenceExample", "list"):
        steps = [p for n, w, p in _fields(value, "a list of features") if n == 1 and _is(w, 2, key)]
        if len(steps) > MOST:
            raise Broken(f"the list {key.decode(errors='replace')!r} has more than {MOST:,} steps")
        yield key, steps


def feature(data: bytes, key: bytes) -> tuple[int, Any]:
    """The kind of a feature and its values: a list of bytes, or numbers as they are packed."""
    held, body = kind(data, key)
    if held == NONE:
        return NONE, None
    if held == BYTES:
        return held, list_of_texts(body, key)
    parts = []
    for number, wire, payload in _fields(body, "a list of numbers"):
        if number != 1:
            continue
        if wire == 2 or wire == (5 if held == FLOAT else 0):
            parts.append(payload)
        else:
            raise Broken(f"the feature {key.decode(errors='replace')!r} has a value of a wrong type")
    values = b"".join(parts)
    if held == FLOAT and any(len(part) % 4 for part in parts):
        raise Broken(f"the feature {key.decode(errors='replace')!r} ends inside a number")
    if held == INT64 and any(part and part[-1] >= 0x80 for part in parts):
        raise Broken(f"the feature {key.decode(errors='replace')!r} ends inside a number")
    return held, values


def kind(data: bytes, key: bytes) -> tuple[int, bytes]:
    """What a feature holds, and the list of it as it is written."""
    held, body = NONE, b""
    for number, wire, payload in _fields(data, "a feature"):
        if number not in (BYTES, FLOAT, INT64):
            continue
        if wire != 2:
            raise Broken(f"the feature {key.decode(errors='replace')!r} is not a list")
        held, body = number, (body + payload if number == held else payload)
    return held, body


def list_of_texts(body: bytes, key: bytes = b"") -> list[bytes]:
    """The texts of a feature that holds bytes."""
    found = [p for n, w, p in _fields(body, "a list of bytes") if n == 1 and _is(w, 2, key)]
    if len(found) > MOST:
        raise Broken(f"the feature {key.decode(errors='replace')!r} has more than {MOST:,} texts")
    return found


def _is(wire: int, wanted: int, key: bytes) -> bool:
    if wire != wanted:
        raise Broken(f"the feature {key.decode(errors='replace')!r} has a value of a wrong type")
    return True


def _fields(data: bytes, what: str) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and bytes of each field of a message; a varint as it is written."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, what)
        number, wire = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise Broken(f"{what} has a field that no message can have")
        begin = at
        if wire == 0:
            _, at = _varint(data, at, what)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        elif wire == 2:
            length, at = _varint(data, at, what)
            begin, at = at, at + length
        else:
            raise Broken(f"{what} has a field of an unknown kind ({wire})")
        if at > end:
            raise Broken(f"{what} ends inside a field")
        yield number, wire, data[begin:at]


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + DEEP, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise Broken(f"{what} ends inside a number" if at + DEEP > len(data) else f"{what} has a number too long")
