"""`tf.train.Example` on the wire: where in a buffer the values of each feature lie.

Many records are walked at once, one step of the format at a time, with NumPy. A record whose bytes are not in
the form that every writer uses (or that are no Example at all) is walked alone and with care, so that both
ways give the same for whatever is valid, and an error for whatever is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

NONE, BYTES, FLOAT, INT64 = 0, 1, 2, 3
KINDS: Final = {NONE: "nothing", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
"""What a feature holds: the number of its field in `tf.train.Feature`."""
SEQUENCE: Final = "sequence of "
"""What stands before that for the lists of a SequenceExample."""
PAD: Final = 16
"""Bytes behind the last record that may be looked at."""
FEW: Final = 6
"""So few records are walked one by one."""
LONG: Final = 256
"""A record with more features, or a feature with more texts, than this is walked alone."""
SHORT: Final = 32
"""Bytes of a text that is short."""
MOST: Final = 1 << 20
"""Texts of a feature, or steps of a list, that a record may have."""
WIDEST: Final = 1 << 15
"""Features that a record may have."""
DEEP: Final = 10
"""The most bytes of a varint."""
TAGS: Final = np.array([0, 0x0A, 0x12, 0x1A], np.uint8)


class Malformed(ValueError):
    """Bytes that are no Example. `row` is the place among those that were parsed together."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True)
class Buffer:
    """Several records behind each other."""

    raw: bytes
    """With at least `PAD` bytes behind the last record."""
    starts: Ints
    ends: Ints

    @cached_property
    def data(self) -> Bytes:
        """The bytes as an array."""
        return np.frombuffer(self.raw, np.uint8)

    @staticmethod
    def of(records: list[bytes]) -> Buffer:
        """Put records behind each other."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(lengths)
        return Buffer(b"".join([*records, bytes(PAD)]), ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)


class Careful(NamedTuple):
    """The values of one feature of one record that was walked alone."""

    kind: int
    values: Any
    """A list of bytes, or the packed form of numbers: 4 bytes a float, varints of ints."""


@dataclass
class Spans:
    """One feature of several records: its kind, and where its list lies."""

    kind: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints
    """For numbers, the packed values; for bytes, the list with a tag and a length before each value."""
    careful: dict[int, Careful] = field(default_factory=dict)
    """Records whose values are not in one piece."""
    steps: list[list[bytes] | None] | None = None
    """For a list of features, as a SequenceExample has it: those of each record; None where it is missing."""

    @staticmethod
    def none(rows: int) -> Spans:
        """Nothing yet."""
        return Spans(np.zeros(rows, np.uint8), np.zeros(rows, np.int64), np.zeros(rows, np.int64))


def spans(buffer: Buffer, names: Iterable[str]) -> dict[str, Spans]:
    """Find some features of records by name."""
    rows = len(buffer)
    found = {name.encode(): Spans.none(rows) for name in names}
    walked = np.zeros(rows, bool) if rows < FEW else _together(buffer, found, None)
    for row in np.flatnonzero(~walked).tolist():
        features = _features_of(buffer, row)
        for name, each in found.items():
            each.kind[row], values = features.get(name, (NONE, None))
            if each.kind[row] != NONE:
                each.careful[row] = Careful(int(each.kind[row]), values)
    return {name.decode(): each for name, each in found.items()}


def sequences(buffer: Buffer, names: Collection[str]) -> dict[str, Spans]:
    """Find some lists of features, which a SequenceExample has beside its context, by name."""
    found = {name: Spans.none(len(buffer)) for name in names}
    for each in found.values():
        each.steps = [None] * len(buffer)
    for row in range(len(buffer) if names else 0):
        try:
            for name, steps in _lists(_record(buffer, row)):
                each_of = found.get(name.decode(errors="replace"))
                if each_of is not None and each_of.steps is not None:
                    each_of.steps[row] = steps
        except _Broken as error:
            raise Malformed(row, str(error)) from None
    return found


def _record(buffer: Buffer, row: int) -> bytes:
    return buffer.raw[int(buffer.starts[row]) : int(buffer.ends[row])]


def values_of(step: bytes, kind: int, row: int) -> Any:
    """The values of one feature of such a list: an array, or a list of bytes."""
    try:
        held, values = _feature(step, b"")
    except _Broken as error:
        raise Malformed(row, str(error)) from None
    if held not in (kind, NONE):
        raise Malformed(row, f"holds {KINDS[held]}, not {KINDS[kind]}")
    if kind == BYTES:
        return values or []
    packed = np.frombuffer(bytearray(values or b""), np.uint8)
    return packed.view("<f4") if kind == FLOAT else varints(packed, np.array([len(packed)])).values


def schema(buffer: Buffer) -> dict[str, set[str]]:
    """Every feature of some records, with what it holds."""
    kinds: dict[bytes, set[int]] = {}
    found: dict[bytes, Spans] = {}
    rows = len(buffer)
    walked = np.zeros(rows, bool) if rows < FEW else _together(buffer, found, LONG)
    for name, each in found.items():
        kinds[name] = set(np.unique(each.kind[walked]).tolist())
    for row in np.flatnonzero(~walked).tolist():
        for name, (kind, _) in _features_of(buffer, row).items():
            kinds.setdefault(name, set()).add(kind)
    listed = {
        name.decode(errors="backslashreplace"): {KINDS[kind] for kind in held if kind != NONE}
        or {KINDS[NONE]}
        for name, held in kinds.items()
    }
    for row in np.flatnonzero(~walked).tolist():
        for list_name, inside in _listed(_record(buffer, row)).items():
            known = listed.setdefault(list_name, set())
            known |= {SEQUENCE + KINDS[kind] for kind in inside}
    return listed


def _listed(data: bytes) -> dict[str, set[int]]:
    """The lists of features of a record, with what they hold; none if something else is at their place."""
    try:
        return {
            name.decode(errors="backslashreplace"): {_feature(step, name)[0] for step in steps} or {NONE}
            for name, steps in _lists(data)
        }
    except _Broken:
        return {}


# -- all at once ----------------------------------------------------------------------------------


def _together(buffer: Buffer, found: dict[bytes, Spans], discover: int | None) -> npt.NDArray[np.bool_]:
    """Walk every record in the usual form; say of which ones that was possible. Find names, up to `discover`.

    `features` fills the record; each entry is a key and then a value, which hold nothing else; a list of
    numbers is packed in one piece.
    """
    data, rows, last = buffer.data, len(buffer), len(buffer.data) - PAD
    ends = buffer.ends
    ok = np.ones(rows, bool)
    length, at = _length(data, buffer.starts + 1, last)
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
        at = np.where(live, at, last)  # the others read padding, and are not listened to
        good = data[at] == 0x0A
        length, key = _length(data, at + 1, last)
        end = key + length
        good &= (end <= ends) & (data[key] == 0x0A)
        size, name = _length(data, key + 1, last)
        value = name + size
        good &= value <= end
        value = np.minimum(value, last)
        good &= data[value] == 0x12
        length, kind_at = _length(data, value + 1, last)
        good &= kind_at + length == end
        tag = data[kind_at]
        length, body = _length(data, kind_at + 1, last)
        absent = kind_at == end
        good &= absent | (((tag == 0x0A) | (tag == 0x12) | (tag == 0x1A)) & (body + length == end))
        kind = np.where(absent, 0, tag >> 3).astype(np.uint8)
        packed = (kind >= FLOAT) & (body < end)
        length, inner = _length(data, np.minimum(body + 1, last), last)
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
    """Give the entries of one step to the features whose names they have; say whose names are too many."""
    name, size, kind, start, end = entry
    left = live.copy()
    # Most files have the same features in the same order: the one that came at this step before is likely.
    tried = order[step:] + order[:step] if step < len(order) else list(order)
    while True:
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


def _length(data: Bytes, at: Ints, last: int) -> tuple[Ints, Ints]:
    """Read a varint at each place that is a length; one that is too long leads out of the buffer."""
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
    return value, np.minimum(after, last)


# -- one by one -----------------------------------------------------------------------------------


def _features_of(buffer: Buffer, row: int) -> dict[bytes, tuple[int, Any]]:
    """Walk one record by the rules of the format alone: name, kind and values of each feature."""
    data = buffer.data[int(buffer.starts[row]) : int(buffer.ends[row])].tobytes()
    found: dict[bytes, tuple[int, Any]] = {}
    try:
        for number, (name, feature) in enumerate(_features(data)):
            if number == WIDEST:
                raise _Broken(f"a record with more than {WIDEST:,} features")
            name.decode()
            found[name] = feature
    except _Broken as error:
        raise Malformed(row, str(error)) from None
    except UnicodeDecodeError as error:
        raise Malformed(row, f"the name of a feature is not UTF-8: {error.object!r:.60}") from None
    return found


class _Broken(ValueError):
    """Bytes that do not follow the format."""


def _features(data: bytes) -> Iterator[tuple[bytes, tuple[int, Any]]]:
    """Name, kind and values of each feature; one that comes twice counts as it came last."""
    for number, wire, payload in _fields(data, "the Example"):
        if number != 1:
            continue
        if wire != 2:
            raise _Broken("this is not a tf.train.Example: its field 1 is not a message")
        for inner, inner_wire, entry in _fields(payload, "the features"):
            if inner != 1:
                continue
            if inner_wire != 2:
                raise _Broken("this is not a tf.train.Example: a feature is not a message")
            yield _entry(entry)


def _entry(data: bytes) -> tuple[bytes, tuple[int, Any]]:
    key, value = _pair(data)
    return key, _feature(value, key)


def _pair(data: bytes) -> tuple[bytes, bytes]:
    """The key and the value of an entry."""
    key, value = b"", b""
    for number, wire, payload in _fields(data, "an entry of the features"):
        if number in (1, 2) and wire != 2:
            raise _Broken("a feature without a name or a value that could be read")
        if number == 1:
            key = payload
        elif number == 2:
            value = value + payload  # messages that come in parts are one message
    return key, value


def _lists(data: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Name and features of each list of a SequenceExample."""
    for number, wire, payload in _fields(data, "the SequenceExample"):
        if number != 2:
            continue
        if wire != 2:
            raise _Broken("this is not a tf.train.SequenceExample: its field 2 is not a message")
        for inner, inner_wire, entry in _fields(payload, "the lists of features"):
            if inner != 1:
                continue
            if inner_wire != 2:
                raise _Broken("this is not a tf.train.SequenceExample: a list is not a message")
            key, value = _pair(entry)
            steps = [p for n, w, p in _fields(value, "a list of features") if n == 1 and _is(w, 2, key)]
            if len(steps) > MOST:
                raise _Broken(f"the list {key.decode(errors='replace')!r} has more than {MOST:,} steps")
            yield key, steps


def _feature(data: bytes, key: bytes) -> tuple[int, Any]:
    kind, body = NONE, b""
    for number, wire, payload in _fields(data, "a feature"):
        if number not in (BYTES, FLOAT, INT64):
            continue
        if wire != 2:
            raise _Broken(f"the feature {key.decode(errors='replace')!r} is not a list")
        kind, body = number, (body + payload if number == kind else payload)
    if kind == NONE:
        return NONE, None
    if kind == BYTES:
        return kind, _list_of_texts(body, key)
    parts = []
    for number, wire, payload in _fields(body, "a list of numbers"):
        if number != 1:
            continue
        if wire == 2 or wire == (5 if kind == FLOAT else 0):
            parts.append(payload)
        else:
            raise _Broken(f"the feature {key.decode(errors='replace')!r} has a value of a wrong type")
    values = b"".join(parts)
    if kind == FLOAT and any(len(part) % 4 for part in parts):
        raise _Broken(f"the feature {key.decode(errors='replace')!r} ends inside a number")
    if kind == INT64 and any(part and part[-1] >= 0x80 for part in parts):
        raise _Broken(f"the feature {key.decode(errors='replace')!r} ends inside a number")
    return kind, values


def _list_of_texts(body: bytes, key: bytes = b"") -> list[bytes]:
    found = [p for n, w, p in _fields(body, "a list of bytes") if n == 1 and _is(w, 2, key)]
    if len(found) > MOST:
        raise _Broken(f"the feature {key.decode(errors='replace')!r} has more than {MOST:,} texts")
    return found


def _is(wire: int, wanted: int, key: bytes) -> bool:
    if wire != wanted:
        raise _Broken(f"the feature {key.decode(errors='replace')!r} has a value of a wrong type")
    return True


def _fields(data: bytes, what: str) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and bytes of each field of a message; a varint as it is written."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, what)
        number, wire = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise _Broken(f"{what} has a field that no message can have")
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
            raise _Broken(f"{what} has a field of an unknown kind ({wire})")
        if at > end:
            raise _Broken(f"{what} ends inside a field")
        yield number, wire, data[begin:at]


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + DEEP, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
        shift += 7
    raise _Broken(
        f"{what} ends inside a number" if at + DEEP > len(data) else f"{what} has a number too long"
    )


# -- values ---------------------------------------------------------------------------------------


class Values(NamedTuple):
    """All values of one feature, behind each other, and where those of each record begin and end."""

    values: Any
    """An array of numbers, or a list of bytes."""
    splits: Ints


def numbers(buffer: Buffer, each: Spans, kind: int) -> Values:
    """The numbers of a feature in every record; none where it is missing."""
    pieces, sizes = _pieces(buffer, each, kind)
    joined = np.frombuffer(pieces, np.uint8)
    if kind == FLOAT:
        wrong = np.flatnonzero(sizes % 4)
        if len(wrong):
            raise Malformed(int(wrong[0]), "a list of floats ends inside a number")
        return Values(joined.view("<f4"), _splits(sizes // 4))
    return varints(joined, sizes)


def varints(data: Bytes, sizes: Ints) -> Values:
    """Decode packed varints, those of all records together."""
    if not len(data):
        return Values(np.zeros(0, np.int64), _splits(np.zeros(len(sizes), np.int64)))
    final = data < 0x80
    bounds = np.cumsum(sizes)
    filled = sizes > 0
    if final.all():
        return Values(data.astype(np.int64), _splits(sizes))
    unfinished = np.flatnonzero(filled & ~final[np.maximum(bounds - 1, 0)])
    if len(unfinished):
        raise Malformed(int(unfinished[0]), "a list of ints ends inside a number")
    ends = np.flatnonzero(final)
    widths = np.diff(ends, prepend=-1)
    widest = int(widths.max())
    if widest > DEEP:
        start = ends[np.argmax(widths > DEEP)] + 1 - widths[np.argmax(widths > DEEP)]
        row = int(np.searchsorted(bounds, start, side="right"))
        raise Malformed(row, "a list of ints has a number that is too long")
    # At each byte, what a number would be that begins there.
    kind: Any = np.uint32 if widest <= 4 else np.uint64
    parts = (data & 0x7F).astype(kind)
    values = parts.copy()
    goes_on = (~final[:-1]).astype(kind)
    for _ in range(widest - 1):
        values[:-1] = parts[:-1] | (values[1:] << kind(7)) * goes_on
    found = values.take(ends + 1 - widths).astype(np.uint64).view(np.int64)
    return Values(found, _with_zero(np.searchsorted(ends, bounds, side="left")))


def texts(buffer: Buffer, each: Spans) -> Values:
    """The bytes of a feature in every record; none where it is missing."""
    rows, starts, stops = text_spans(buffer, each)
    values = _cut(buffer, starts, stops)
    splits = _splits(np.bincount(rows, minlength=len(buffer)))
    alone = {row: list(found.values) for row, found in each.careful.items() if found.kind == BYTES}
    if not alone:
        return Values(values, splits)
    limits = itertools.pairwise(splits.tolist())
    lists = [alone.get(row, values[begin:end]) for row, (begin, end) in enumerate(limits)]
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    return Values(list(itertools.chain.from_iterable(lists)), _splits(sizes))


def _cut(buffer: Buffer, starts: Ints, stops: Ints) -> list[bytes]:
    """Some parts of a buffer, each as an object."""
    sizes, data = stops - starts, buffer.data
    width = int(sizes.max(initial=0))
    if 0 < width <= SHORT and len(sizes) > FEW and data[np.maximum(stops - 1, 0)].all():
        # NumPy makes objects faster than a loop does, but strips zeros at their end: there are none.
        places = np.arange(width)
        cells = data[np.minimum(starts[:, None] + places, len(data) - 1)]
        cells[places >= sizes[:, None]] = 0
        found: list[bytes] = cells.view(f"S{width}")[:, 0].tolist()
        return found
    raw = buffer.raw
    return [raw[begin:end] for begin, end in zip(starts.tolist(), stops.tolist(), strict=True)]


def text_spans(buffer: Buffer, each: Spans) -> tuple[Ints, Ints, Ints]:
    """The record of each text, and where it begins and ends; but for records that were walked alone."""
    data, last = buffer.data, len(buffer.data) - PAD
    wanted = each.kind == BYTES
    wanted[list(each.careful)] = False
    live = np.flatnonzero(wanted & (each.starts < each.ends))
    at, ends = each.starts[live], each.ends[live]
    none = np.zeros(0, np.int64)
    found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
    alone: list[int] = []
    while len(live) and len(found) <= LONG:
        length, start = _length(data, at + 1, last)
        stop = start + length
        bad = (data[at] != 0x0A) | (stop > ends)
        if bad.any():  # a form that is allowed and that nobody writes, or none at all: look closely
            alone += live[bad].tolist()
            live, start, stop, ends = live[~bad], start[~bad], stop[~bad], ends[~bad]
        found.append((live, start, stop))
        more = stop < ends
        if not more.all():
            live, stop, ends = live[more], stop[more], ends[more]
        at = stop
    alone += live.tolist()
    for row in alone:
        wanted[row] = False
        each.careful[row] = _reread(buffer, each, row)
    rows, starts, stops = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if alone:
        keep = wanted[rows]
        rows, starts, stops = rows[keep], starts[keep], stops[keep]
    if len(found) == 2:
        return rows, starts, stops
    order = np.argsort(rows, kind="stable")
    return rows[order], starts[order], stops[order]


def single(buffer: Buffer, each: Spans) -> tuple[Ints, Ints] | None:
    """Where the one text of every record lies; None if a record has none or several, or was walked alone."""
    rows, starts, stops = text_spans(buffer, each)
    is_one = len(rows) == len(buffer) and not each.careful and bool((rows == np.arange(len(rows))).all())
    return (starts, stops) if is_one else None


def _reread(buffer: Buffer, each: Spans, row: int) -> Careful:
    body = buffer.data[int(each.starts[row]) : int(each.ends[row])].tobytes()
    try:
        values = _list_of_texts(body)
    except _Broken as error:
        raise Malformed(row, str(error)) from None
    return Careful(BYTES, values)


def _pieces(buffer: Buffer, each: Spans, kind: int) -> tuple[Any, Ints]:
    """The packed values of all records in one piece, and how many bytes each has."""
    here = each.kind == kind
    starts = np.where(here, each.starts, 0)
    ends = np.where(here, each.ends, 0)
    sizes = ends - starts
    if not each.careful and here.all():
        return joined(buffer, starts, ends), sizes
    pieces = _parts(buffer, starts, ends)
    for row, (own, values) in each.careful.items():
        pieces[row] = values if own == kind else b""
        sizes[row] = len(pieces[row])
    return bytearray().join(pieces), sizes


def joined(buffer: Buffer, starts: Ints, ends: Ints) -> Any:
    """Parts of a buffer behind each other, in memory that can be written to, as tensors want it."""
    sizes, strides = ends - starts, np.diff(starts)
    if len(starts) > 1 and strides[0] > 0 and (strides == strides[0]).all() and (sizes == sizes[0]).all():
        view = np.lib.stride_tricks.as_strided(
            buffer.data[int(starts[0]) :], (len(starts), int(sizes[0])), (int(strides[0]), 1)
        )
        return np.ascontiguousarray(view).reshape(-1)
    return bytearray().join(_parts(buffer, starts, ends))


def _parts(buffer: Buffer, starts: Ints, ends: Ints) -> list[Any]:
    raw = memoryview(buffer.raw)
    return [raw[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _splits(sizes: Ints) -> Ints:
    return _with_zero(np.cumsum(sizes))


def _with_zero(bounds: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), bounds))
