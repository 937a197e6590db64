"""Feature values, extracted from many records at once."""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from manyfit.data.tfrecord.message import BYTES, DEEP, FLOAT, KINDS, NONE, Broken, feature, list_of_texts
from manyfit.data.tfrecord.ragged import as_objects
from manyfit.data.tfrecord.wire import LONG, PAD, Buffer, Bytes, Careful, Ints, Malformed, Spans, lengths

BLOCK: Final = 8
"""The number of bytes values of a list that are parsed before finished lists are set aside."""
TINY: Final = 6
"""The average number of bytes of a value up to which single bytes are gathered."""
SHORT: Final = 32
"""The largest number of bytes of a short value; at most `PAD`."""


class FeatureValues(NamedTuple):
    """All values of one feature, concatenated, and the offsets of the records."""

    values: Any
    """An array of numbers, or an object array of bytes."""
    splits: Ints


def read_numbers(buffer: Buffer, each: Spans, kind: int) -> FeatureValues:
    """Return the numbers of a feature in every record; none where it is missing."""
    pieces, sizes = _pieces(buffer, each, kind)
    joined = np.frombuffer(pieces, np.uint8)
    if kind == FLOAT:
        wrong = np.flatnonzero(sizes % 4)
        if len(wrong):
            raise Malformed(int(wrong[0]), "a list of floats ends inside a number")
        return FeatureValues(joined.view("<f4"), _splits(sizes // 4))
    return varints(joined, sizes)


def varints(data: Bytes, sizes: Ints) -> FeatureValues:
    """Decode the packed varints of all records at once."""
    if not len(data):
        return FeatureValues(np.zeros(0, np.int64), _splits(np.zeros(len(sizes), np.int64)))
    final = data < 0x80
    bounds = np.cumsum(sizes)
    filled = sizes > 0
    if final.all():
        return FeatureValues(data.astype(np.int64), _splits(sizes))
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
    # For each byte, the number that would start there.
    kind: Any = np.uint32 if widest <= 4 else np.uint64
    parts = (data & 0x7F).astype(kind)
    values = parts.copy()
    goes_on = (~final[:-1]).astype(kind)
    for _ in range(widest - 1):
        values[:-1] = parts[:-1] | (values[1:] << kind(7)) * goes_on
    found = values.take(ends + 1 - widths).astype(np.uint64).view(np.int64)
    return FeatureValues(found, _with_zero(np.searchsorted(ends, bounds, side="left")))


def texts(buffer: Buffer, each: Spans) -> FeatureValues:
    """Return the bytes values of a feature in every record; none where it is missing."""
    rows, starts, stops = text_spans(buffer, each)
    values = _slice_objects(buffer, starts, stops)
    splits = _splits(np.bincount(rows, minlength=len(buffer)))
    alone = {row: as_objects(found.values) for row, found in each.careful.items() if found.kind == BYTES}
    if not alone:
        return FeatureValues(values, splits)
    limits = itertools.pairwise(splits.tolist())
    parts = [alone.get(row, values[begin:end]) for row, (begin, end) in enumerate(limits)]
    return FeatureValues(np.concatenate(parts), _splits(np.fromiter(map(len, parts), np.int64, len(parts))))


def _slice_objects(buffer: Buffer, starts: Ints, stops: Ints) -> Any:
    """Return parts of a buffer as bytes objects."""
    sizes = stops - starts
    # NumPy creates objects of short values faster than a loop, but strips trailing zero bytes.
    is_short = (sizes <= SHORT) & (buffer.data[np.maximum(stops - 1, 0)] != 0)
    if len(sizes) and is_short.all():
        return _slice_short(buffer, starts, sizes)
    made = np.empty(len(sizes), object)
    made[is_short] = _slice_short(buffer, starts[is_short], sizes[is_short])
    others = np.flatnonzero(~is_short)
    bounds = zip(starts[others].tolist(), stops[others].tolist(), strict=True)
    made[others] = as_objects([buffer.raw[begin:end] for begin, end in bounds])
    return made


def _slice_short(buffer: Buffer, starts: Ints, sizes: Ints) -> Any:
    """Return values of at most `SHORT` bytes, by way of cells of equal width, zeroed after each value."""
    width = -(-int(sizes.max(initial=1)) // 8) * 8
    cell = np.dtype(f"V{width}")
    # A view with the cell that starts at each byte of the buffer.
    every = np.ndarray((len(buffer.raw) - width + 1,), cell, buffer.raw, strides=(1,))
    keep = np.where(np.arange(width) < np.arange(width + 1)[:, None], 0xFF, 0).astype(np.uint8)
    made = every[starts].view(np.uint64)
    made &= keep.view(cell)[:, 0][sizes].view(np.uint64)
    return made.view(f"S{width}").astype(object)


def text_spans(buffer: Buffer, each: Spans) -> tuple[Ints, Ints, Ints]:
    """Return the record, start and end of each bytes value, except in individually parsed records."""
    wanted = each.kind == BYTES
    wanted[list(each.careful)] = False
    wanted &= each.starts < each.ends
    found = _short_spans(buffer, each, np.flatnonzero(wanted))
    return found if found is not None else _any_spans(buffer, each, wanted)


def _short_spans(buffer: Buffer, each: Spans, live: Ints) -> tuple[Ints, Ints, Ints] | None:
    """Return the same if every list has the usual form and values shorter than 128 bytes, else None."""
    data = buffer.data
    at, ends = each.starts[live], each.ends[live]
    if not _are_short(data, at):
        return None
    counts = np.zeros(len(buffer), np.int64)
    blocks: list[tuple[Ints, Ints, npt.NDArray[np.bool_]]] = []
    while len(live):
        if len(blocks) * BLOCK >= LONG:
            return None
        heads = np.empty((BLOCK, len(live)), np.int64)
        for head in heads:
            head[:] = at
            # A finished list stays at its end.
            at = np.where(at < ends, at + 2 + data.take(at + 1, mode="clip"), at)
        inside = heads < ends
        blocks.append((live, heads, inside))
        counts[live] += inside.sum(axis=0)
        if (at > ends).any():
            return None
        more = at < ends
        live, at, ends = live[more], at[more], ends[more]
    begins = np.cumsum(counts) - counts
    whole = np.empty(int(counts.sum()), np.int64)
    for number, (rows, heads, inside) in enumerate(blocks):
        places = begins[rows] + np.arange(number * BLOCK, (number + 1) * BLOCK)[:, None]
        whole[places[inside]] = heads[inside]
    if not _are_short(data, whole):
        return None
    return np.repeat(np.arange(len(counts)), counts), whole + 2, whole + 2 + data.take(whole + 1)


def _are_short(data: Bytes, heads: Ints) -> bool:
    return bool(((data.take(heads) == 0x0A) & (data.take(heads + 1) < 0x80)).all())


def _any_spans(buffer: Buffer, each: Spans, wanted: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    data, last = buffer.data, len(buffer.data) - PAD
    live = np.flatnonzero(wanted)
    at, ends = each.starts[live], each.ends[live]
    none = np.zeros(0, np.int64)
    found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
    alone: list[int] = []
    while len(live) and len(found) <= LONG:
        length, start = lengths(data, at + 1, last)
        stop = start + length
        bad = (data[at] != 0x0A) | (stop > ends)
        if bad.any():  # an unusual but valid form, or an invalid one: parse it individually
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


def find_single(buffer: Buffer, each: Spans) -> tuple[Ints, Ints] | None:
    """Return the positions of the values if every record has exactly one in the usual form, else None."""
    rows, starts, stops = text_spans(buffer, each)
    is_one = len(rows) == len(buffer) and not each.careful and bool((rows == np.arange(len(rows))).all())
    return (starts, stops) if is_one else None


def _reread(buffer: Buffer, each: Spans, row: int) -> Careful:
    body = buffer.data[int(each.starts[row]) : int(each.ends[row])].tobytes()
    try:
        values = list_of_texts(body)
    except Broken as error:
        raise Malformed(row, str(error)) from None
    return Careful(BYTES, values)


def values_of(step: bytes, kind: int, row: int) -> Any:
    """Return the values of one step of a feature list: an array, or a list of bytes."""
    try:
        held, values = feature(step, b"")
    except Broken as error:
        raise Malformed(row, str(error)) from None
    if held not in (kind, NONE):
        raise Malformed(row, f"holds {KINDS[held]}, not {KINDS[kind]}")
    if kind == BYTES:
        return values or []
    packed = np.frombuffer(bytearray(values or b""), np.uint8)
    if kind == FLOAT:
        return packed.view("<f4")
    try:
        return varints(packed, np.array([len(packed)])).values
    except Malformed as error:
        raise Malformed(row, error.reason) from None


def _pieces(buffer: Buffer, each: Spans, kind: int) -> tuple[Any, Ints]:
    """Return the concatenated packed values of all records, and the number of bytes of each."""
    here = each.kind == kind
    starts = np.where(here, each.starts, 0)
    ends = np.where(here, each.ends, 0)
    sizes = ends - starts
    if not each.careful and here.all():
        return join_parts(buffer, starts, ends), sizes
    raw = memoryview(buffer.raw)
    pieces: list[Any] = [raw[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    for row, (own, values) in each.careful.items():
        pieces[row] = values if own == kind else b""
        sizes[row] = len(pieces[row])
    return bytearray().join(pieces), sizes


def join_parts(buffer: Buffer, starts: Ints, ends: Ints) -> Any:
    """Concatenate parts of a buffer in writable memory, as tensors require."""
    sizes, strides = ends - starts, np.diff(starts)
    if len(starts) > 1 and strides[0] > 0 and (strides == strides[0]).all() and (sizes == sizes[0]).all():
        view = np.lib.stride_tricks.as_strided(
            buffer.data[int(starts[0]) :], (len(starts), int(sizes[0])), (int(strides[0]), 1)
        )
        return np.ascontiguousarray(view).reshape(-1)
    bounds = _splits(sizes)
    if bounds[-1] <= len(sizes) * TINY:
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes)
        return buffer.data.take(places)
    raw = memoryview(buffer.raw)
    parts = zip(starts.tolist(), ends.tolist(), strict=True)
    return bytearray().join([raw[begin:end] for begin, end in parts])


def _splits(sizes: Ints) -> Ints:
    return _with_zero(np.cumsum(sizes))


def _with_zero(bounds: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), bounds))
