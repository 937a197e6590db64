"""A complete parser of single Protobuf messages: `tf.train.Example`, `SequenceExample` and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

NONE, BYTES, FLOAT, INT64 = 0, 1, 2, 3
KINDS: Final = {NONE: "nothing", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
"""The kinds of values of a feature, by field number in `tf.train.Feature`."""
MOST: Final = 1 << 20
"""The largest number of bytes values of a feature, or of steps of a feature list, in a record."""
WIDEST: Final = 1 << 15
"""The largest number of features in a record."""
DEEP: Final = 10
"""The largest number of bytes of a varint."""


class Broken(ValueError):
    """Bytes that are not in the Protobuf format."""


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the encoded value of each feature; of duplicates, the last one counts."""
    return _pairs(data, 1, "a tf.train.Example", "feature")


def _pairs(data: bytes, field: int, message: str, item: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the map in one field of a message."""
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
    """Return the key and the value of a map entry."""
    key, value = b"", b""
    for number, wire, payload in _fields(data, "an entry of the features"):
        if number in (1, 2) and wire != 2:
            raise Broken("a feature has no readable name or value")
        if number == 1:
            key = payload
        elif number == 2:
            value = value + payload  # Protobuf merges a message that is split into several fields
    return key, value


def parse_sequences(data: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the name and the encoded features of each feature list of a SequenceExample."""
    for key, value in _pairs(data, 2, "a tf.train.SequenceExample", "list"):
        steps = [
            p for n, w, p in _fields(value, "a list of features") if n == 1 and _has_wire_type(w, 2, key)
        ]
        if len(steps) > MOST:
            raise Broken(f"the list {key.decode(errors='replace')!r} has more than {MOST:,} steps")
        yield key, steps


def feature(data: bytes, key: bytes) -> tuple[int, Any]:
    """Return the kind of a feature and its values: a list of bytes, or packed numbers."""
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
    """Return the kind of a feature and its encoded list."""
    held, body = NONE, b""
    for number, wire, payload in _fields(data, "a feature"):
        if number not in (BYTES, FLOAT, INT64):
            continue
        if wire != 2:
            raise Broken(f"the feature {key.decode(errors='replace')!r} is not a list")
        held, body = number, (body + payload if number == held else payload)
    return held, body


def list_of_texts(body: bytes, key: bytes = b"") -> list[bytes]:
    """Return the values of a feature of kind bytes."""
    found = [p for n, w, p in _fields(body, "a list of bytes") if n == 1 and _has_wire_type(w, 2, key)]
    if len(found) > MOST:
        raise Broken(f"the feature {key.decode(errors='replace')!r} has more than {MOST:,} bytes values")
    return found


def _has_wire_type(wire: int, wanted: int, key: bytes) -> bool:
    if wire != wanted:
        raise Broken(f"the feature {key.decode(errors='replace')!r} has a value of a wrong type")
    return True


def _fields(data: bytes, what: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, wire type and bytes of each field of a message; varints stay encoded."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, what)
        number, wire = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise Broken(f"{what} has an invalid field number")
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
            raise Broken(f"{what} has a field of an unknown wire type ({wire})")
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
    is_cut = at + DEEP > len(data)
    raise Broken(f"{what} ends inside a number" if is_cut else f"{what} has a number that is too long")
