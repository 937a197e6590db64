"""`tf.train.Example` in the wire format: the positions of the values of each feature in a buffer.

NumPy parses many records at once, one element of the format at a time. A record that is not in the form that
common writers use, or that is not an Example at all, is parsed individually by `message`. Both ways return
the same result for every valid record, and raise an error for every invalid one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from manyfit.data.tfrecord import message
from manyfit.data.tfrecord.message import FLOAT, KINDS, NONE, WIDEST, Broken

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

SEQUENCE: Final = "sequence of "
"""The prefix of the kind of a feature list of a SequenceExample."""
PAD: Final = 32
"""The number of bytes after the last record that may be read."""
FEW: Final = 6
"""Fewer records than this are parsed one by one."""
LONG: Final = 256
"""A record with more features, or a feature with more bytes values, than this is parsed individually."""


class Malformed(ValueError):
    """Bytes that are not an Example. `row` is the position among the records that are parsed together."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True)
class Buffer:
    """Several concatenated records."""

    raw: bytes
    """The records, with at least `PAD` bytes after the last one."""
    starts: Ints
    ends: Ints

    @cached_property
    def data(self) -> Bytes:
        """The bytes as an array."""
        return np.frombuffer(self.raw, np.uint8)

    @staticmethod
    def of(records: list[bytes]) -> Buffer:
        """Concatenate records."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(lengths)
        return Buffer(b"".join([*records, bytes(PAD)]), ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)


class Careful(NamedTuple):
    """The values of one feature of a record that was parsed individually."""

    kind: int
    values: Any
    """A list of bytes, or packed numbers: 4 bytes per float, varints for integers."""


@dataclass
class Spans:
    """One feature of several records: its kind, and the position of its list."""

    kind: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints
    """The range of numbers are the packed values; that of bytes has a tag and a length before each value."""
    careful: dict[int, Careful] = field(default_factory=dict)
    """Records whose values are not contiguous, or that were parsed individually."""
    steps: list[list[bytes] | None] | None = None
    """For a feature list of a SequenceExample: the steps of each record; None where it is missing."""

    @staticmethod
    def none(rows: int) -> Spans:
        """Create spans of a feature that no record has."""
        return Spans(np.zeros(rows, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64))


def spans(buffer: Buffer, names: Iterable[str]) -> dict[str, Spans]:
    """Find features of records by name."""
    rows = len(buffer)
    found = {name.encode(): Spans.none(rows) for name in names}
    walked = np.zeros(rows, bool) if rows < FEW else _together(buffer, found, None)
    for row in np.flatnonzero(~walked).tolist():
        features = _entries(buffer, row)
        for name, each in found.items():
            each.kind[row], values = _values(features.get(name, b""), name, row)
            if each.kind[row] != NONE:
                each.careful[row] = Careful(int(each.kind[row]), values)
    return {name.decode(): each for name, each in found.items()}


def find_sequences(buffer: Buffer, names: Collection[str]) -> dict[str, Spans]:
    """Find the feature lists of SequenceExamples by name."""
    found = {name: Spans.none(len(buffer)) for name in names}
    for each in found.values():
        each.steps = [None] * len(buffer)
    for row in range(len(buffer) if names else 0):
        try:
            for name, steps in message.parse_sequences(_record(buffer, row)):
                each_of = found.get(name.decode(errors="replace"))
                if each_of is not None and each_of.steps is not None:
                    each_of.steps[row] = steps
        except Broken as error:
            raise Malformed(row, str(error)) from None
    return found


def _record(buffer: Buffer, row: int) -> bytes:
    return buffer.raw[int(buffer.starts[row]) : int(buffer.ends[row])]


def find_schema(buffer: Buffer) -> dict[str, set[str]]:
    """Return every feature of some records, with the kinds of its values."""
    kinds: dict[bytes, set[int]] = {}
    found: dict[bytes, Spans] = {}
    rows = len(buffer)
    walked = np.zeros(rows, bool) if rows < FEW else _together(buffer, found, LONG)
    for name, each in found.items():
        kinds[name] = set(np.unique(each.kind[walked]).tolist())
    for row in np.flatnonzero(~walked).tolist():
        for name, value in _entries(buffer, row).items():
            kinds.setdefault(name, set()).add(_kind(value, name, row))
    for name in kinds:
        try:
            name.decode()
        except UnicodeDecodeError:
            raise Malformed(
                _first_with(buffer, name), f"the name of a feature is not UTF-8: {name!r:.60}"
            ) from None
    listed = {
        name.decode(): {KINDS[kind] for kind in held if kind != NONE} or {KINDS[NONE]}
        for name, held in kinds.items()
    }
    for row in np.flatnonzero(~walked).tolist():
        for list_name, inside in _list_features(_record(buffer, row)).items():
            known = listed.setdefault(list_name, set())
            known |= {SEQUENCE + KINDS[kind] for kind in inside}
    return listed


def _list_features(data: bytes) -> dict[str, set[int]]:
    """Return the feature lists of a record with their kinds; none if the record is not a SequenceExample."""
    try:
        return {
            name.decode(errors="backslashreplace"): {message.feature(step, name)[0] for step in steps}
            or {NONE}
            for name, steps in message.parse_sequences(data)
        }
    except Broken:
        return {}


def _together(buffer: Buffer, found: dict[bytes, Spans], discover: int | None) -> npt.NDArray[np.bool_]:
    """Parse all records of the usual form; return for which ones it succeeded. Find up to `discover` names.

    In the usual form, the record is one `features` message, each entry is a key followed by a value and
    nothing else, and a list of numbers is packed and contiguous.
    """
    data, rows, last = buffer.data, len(buffer), len(buffer.data) - PAD
    ends = buffer.ends
    ok = np.ones(rows, bool)
    length, at = lengths(data, buffer.starts + 1, last)
    empty = buffer.starts == ends
    ok &= empty | ((data[np.minimum(buffer.starts, last)] == 0x0A) & (at + length == ends))
    at = np.where(empty, ends, at)
    order: list[bytes] = list(found)
    step = 0
    while True:
        live = ok & (at < ends)
        if not live.any():
            break
        if step == LONG:
            ok &= ~live
            break
        at = np.where(live, at, last)  # finished and invalid records read padding, which is ignored
        good = data[at] == 0x0A
        length, key = lengths(data, at + 1, last)
        end = key + length
        good &= (end <= ends) & (data[key] == 0x0A)
        size, name = lengths(data, key + 1, last)
        value = name + size
        good &= value <= end
        value = np.minimum(value, last)
        good &= data[value] == 0x12
        length, kind_at = lengths(data, value + 1, last)
        good &= kind_at + length == end
        tag = data[kind_at]
        length, body = lengths(data, kind_at + 1, last)
        absent = kind_at == end
        good &= absent | (((tag == 0x0A) | (tag == 0x12) | (tag == 0x1A)) & (body + length == end))
        kind = np.where(absent, 0, tag >> 3).astype(np.uint8)
        packed = (kind >= FLOAT) & (body < end)
        length, inner = lengths(data, np.minimum(body + 1, last), last)
        good &= ~packed | ((data[np.minimum(body, last)] == 0x0A) & (inner + length == end))
        start = np.where(packed, inner, np.minimum(body, end))
        ok &= ~live | good
        live &= good
        ok &= ~_assign(buffer, found, order, step, discover, live, (name, size, kind, start, end))
        at = np.where(live, end, ends)
        step += 1
    return ok


def _assign(
    buffer: Buffer,
    found: dict[bytes, Spans],
    order: list[bytes],
    step: int,
    discover: int | None,
    live: npt.NDArray[np.bool_],
    entry: tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints],
) -> npt.NDArray[np.bool_]:
    """Assign the entries of one step to features by name; return the records whose names exceed the limit."""
    name, size, kind, start, end = entry
    left = live.copy()
    # Most files have the same features in the same order, so the feature that was seen at this step is first.
    tried = order[step:] + order[:step] if step < len(order) else list(order)
    while left.any():
        for wanted in tried:
            same = left & (size == len(wanted))
            if not same.any():
                continue
            rows = np.flatnonzero(same)
            keys = buffer.data[name[rows][:, None] + np.arange(len(wanted))]
            rows = rows[(keys == np.frombuffer(wanted, np.uint8)).all(axis=1)]
            if not len(rows):
                continue
            each = found[wanted]
            each.kind[rows], each.starts[rows], each.ends[rows] = kind[rows], start[rows], end[rows]
            left[rows] = False
            if not left.any():
                return left
        if discover is None:
            return np.zeros_like(left)
        if len(found) >= discover:
            return left
        row = int(np.flatnonzero(left)[0])
        wanted = buffer.data[int(name[row]) : int(name[row] + size[row])].tobytes()
        found[wanted] = Spans.none(len(buffer))
        order.append(wanted)
        tried = [wanted]
    return left


def lengths(data: Bytes, at: Ints, last: int) -> tuple[Ints, Ints]:
    """Read a varint length at each position; one that is too long points outside of the buffer."""
    at = np.minimum(at, last)
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    more = byte >= 0x80
    after = at + 1
    shift = 7
    while more.any():
        if shift > 28:
            value = np.where(more, np.int64(1) << 40, value)
            break
        byte = data[np.minimum(after, last + PAD - 1)]
        value |= np.where(more, (byte & 0x7F).astype(np.int64) << shift, 0)
        after = after + more
        more = more & (byte >= 0x80)
        shift += 7
    return value, np.minimum(after, last + 1)  # after the last record, where no valid entry ends


def _entries(buffer: Buffer, row: int) -> dict[bytes, bytes]:
    """Parse one record individually; return the encoded value of each feature by name."""
    found: dict[bytes, bytes] = {}
    try:
        for number, (name, value) in enumerate(message.entries(_record(buffer, row))):
            if number == WIDEST:
                raise Broken(f"the record has more than {WIDEST:,} features")
            found[name] = value
    except Broken as error:
        raise Malformed(row, str(error)) from None
    return found


def _values(feature: bytes, name: bytes, row: int) -> tuple[int, Any]:
    try:
        return message.feature(feature, name)
    except Broken as error:
        raise Malformed(row, str(error)) from None


def _kind(feature: bytes, name: bytes, row: int) -> int:
    try:
        return message.kind(feature, name)[0]
    except Broken as error:
        raise Malformed(row, str(error)) from None


def _first_with(buffer: Buffer, name: bytes) -> int:
    return next((row for row in range(len(buffer)) if name in _entries(buffer, row)), 0)
