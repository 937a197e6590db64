"""What a feature of an Example becomes: one array for many records."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Gt

from manyfit.core.errors import UsageError
from manyfit.core.lazy import optional
from manyfit.data.tfrecord import wire
from manyfit.data.tfrecord.ragged import Ragged, as_objects
from manyfit.data.tfrecord.wire import BYTES, FLOAT, INT64, KINDS, NONE, Buffer, Malformed, Spans

Dtype: TypeAlias = Literal["float32", "int64", "string"]
Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or one that uses several threads."""

WIRE: Final = {"float32": FLOAT, "int64": INT64, "string": BYTES}
LARGEST: Final = 1 << 28
"""Pixels of an image that is decoded; a file that says that it has more is not believed."""


class Feature(ABC):
    """One feature of an Example, as a column of a batch."""

    @abstractmethod
    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """The values of this feature in several records: an array with a row for each of them."""

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """The shape and type of one row, if all rows have the same."""
        return None


def column_of(feature: Feature, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
    """The values of a feature, after seeing that no record holds something else under its name."""
    wanted = kind_of(feature)
    wrong = np.flatnonzero((spans.kind != NONE) & (spans.kind != wanted))
    if len(wrong):
        row = int(wrong[0])
        raise Malformed(row, f"holds {KINDS[int(spans.kind[row])]}, not {KINDS[wanted]}")
    return feature.column(buffer, spans, each)


def kind_of(feature: Feature) -> int:
    """What a feature holds on the wire."""
    return WIRE[getattr(feature, "dtype", "string")] if isinstance(feature, _Plain) else BYTES


class _Plain(Feature):
    """Values as they lie in the record."""


@dataclass(frozen=True)
class FixedLenFeature(_Plain):
    """The same number of values in every record, in some shape.

    >>> FixedLenFeature(shape=[28, 28], dtype="float32").row()
    ((28, 28), '<f4')
    """

    shape: Sequence[Annotated[int, Ge(0)]] = ()
    dtype: Dtype = "float32"
    default_value: Any = None
    """What a record has that lacks this feature; without it, that is an error."""

    def __post_init__(self) -> None:
        if self.default_value is not None:
            self._default()

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Of one shape, unless it is text."""
        known = {"float32": "<f4", "int64": "<i8"}
        return (tuple(self.shape), known[self.dtype]) if self.dtype in known else None

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """An array of shape (rows, *shape)."""
        rows, count = len(buffer), math.prod(self.shape)
        kind = WIRE[self.dtype]
        missing = np.flatnonzero(spans.kind == NONE)
        if len(missing) and self.default_value is None:
            raise Malformed(int(missing[0]), "is missing, and has no default_value")
        found = wire.texts(buffer, spans) if kind == BYTES else wire.numbers(buffer, spans, kind)
        counts = np.diff(found.splits)
        wrong = np.flatnonzero((counts != count) & (spans.kind != NONE))
        if len(wrong):
            row = int(wrong[0])
            shape = list(self.shape)
            raise Malformed(row, f"has {counts[row]} values, but the shape {shape} takes {count}")
        values = as_objects(found.values) if kind == BYTES else found.values
        if not len(missing):
            return values.reshape(rows, *self.shape)
        whole = np.empty((rows, *self.shape), values.dtype)
        present = spans.kind != NONE
        whole[present] = values.reshape(-1, *self.shape)
        whole[missing] = self._default()
        return whole

    def _default(self) -> Any:
        given = self.default_value
        if self.dtype == "string":
            values = given if isinstance(given, list | tuple) else [given]
            if not all(isinstance(value, str | bytes) for value in values):
                raise UsageError(f"the default_value of a string feature is text, not {given!r}")
            made = as_objects([v.encode() if isinstance(v, str) else v for v in values])
        else:
            try:
                made = np.asarray(given)
            except ValueError as error:
                raise UsageError(f"the default_value {given!r} is not an array: {error}") from None
            fits = made.dtype.kind in ("iu" if self.dtype == "int64" else "iuf")
            if not fits:
                raise UsageError(f"the default_value {given!r} is not of the type {self.dtype}")
            made = made.astype("<i8" if self.dtype == "int64" else "<f4")
        if made.size not in (1, math.prod(self.shape)):
            raise UsageError(f"the default_value {given!r} does not fit the shape {list(self.shape)}")
        return made.reshape(self.shape) if made.size == math.prod(self.shape) else made.reshape(())[()]


@dataclass(frozen=True)
class VarLenFeature(_Plain):
    """Any number of values in every record.

    A batch is padded at the end of its rows, to its longest one or to `length`; longer rows are cut there.
    With `ragged`, each row stays as long as it is: a model of PyTorch is given a nested tensor.
    """

    dtype: Dtype = "float32"
    pad: Any = None
    """What fills short rows: 0, or empty text, if nobody says."""
    length: Annotated[int, Gt(0)] | None = None
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.ragged and (self.length is not None or self.pad is not None):
            raise UsageError("a ragged feature is not padded: leave out pad and length")
        if self.pad is not None and not isinstance(self.pad, str if self.dtype == "string" else int | float):
            raise UsageError(f"pad: {self.pad!r} is not of the type {self.dtype}")

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Rows of different lengths: batches are padded when they are put together."""
        kind = WIRE[self.dtype]
        found = wire.texts(buffer, spans) if kind == BYTES else wire.numbers(buffer, spans, kind)
        return Ragged(as_objects(found.values) if kind == BYTES else found.values, found.splits)

    def batch(self, rows: Ragged) -> Any:
        """Rows of different lengths as one array."""
        if self.ragged:
            return rows.rows()
        fill: Any = (b"" if self.dtype == "string" else 0) if self.pad is None else self.pad
        return rows.padded(fill.encode() if isinstance(fill, str) else fill, self.length)


@dataclass(frozen=True)
class RawFeature(Feature):
    """The memory of an array, written as bytes."""

    shape: Sequence[Annotated[int, Ge(0)]]
    dtype: Literal[
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64",
    ] = "uint8"  # fmt: skip

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Always of one shape."""
        return tuple(self.shape), np.dtype(self.dtype).str

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """An array of shape (rows, *shape)."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        places = wire.single(buffer, spans)
        if places is not None:
            sizes, whole = places[1] - places[0], wire.joined(buffer, *places)
        else:
            values = single(buffer, spans)
            sizes, whole = np.fromiter(map(len, values), np.int64, len(values)), bytearray().join(values)
        wrong = np.flatnonzero(sizes != size)
        if len(wrong):
            row = int(wrong[0])
            raise Malformed(row, f"has {sizes[row]} bytes, but an array of its shape has {size}")
        return np.frombuffer(whole, np.dtype(self.dtype)).reshape(len(sizes), *self.shape)


@dataclass(frozen=True)
class ImageFeature(Feature):
    """An encoded image, decoded, and resized and scaled where that is asked for.

    Pixels of floats are in 0 … 1, with `standard_scaling` in -1 … 1; those of uint8 in 0 … 255. A row has the
    shape (height, width, channels); with `channels_first`, as PyTorch wants it, (channels, height, width).
    """

    resize_height: Annotated[int, Gt(0)] | None = None
    resize_width: Annotated[int, Gt(0)] | None = None
    channels: Literal[0, 1, 3, 4] = 3
    """0: as many as the image has."""
    decode_format: Literal["jpeg", "png", "auto"] = "auto"
    enforced_dtype: Literal["float32", "float16", "uint8"] = "float32"
    standard_scaling: bool = False
    channels_first: bool = False

    def __post_init__(self) -> None:
        if (self.resize_height is None) != (self.resize_width is None):
            raise UsageError("an image is resized by resize_height and resize_width; one of them is missing")
        if self.standard_scaling and self.enforced_dtype == "uint8":
            raise UsageError("standard_scaling needs floats: enforced_dtype: float32")

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Of one shape if images are resized and their channels are known."""
        if self.resize_height is None or self.resize_width is None or not self.channels:
            return None
        shape = (self.resize_height, self.resize_width, self.channels)
        return (shape[2], *shape[:2]) if self.channels_first else shape, np.dtype(self.enforced_dtype).str

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """An array of shape (rows, height, width, channels); images of several sizes stay apart."""
        optional("PIL.Image", "images")
        values = single(buffer, spans)
        known = self.row()
        if known is None:
            return as_objects([_raised(found, i) for i, found in enumerate(each(self.decode, values))])
        made = np.empty((len(values), *known[0]), known[1])
        for i, found in enumerate(each(self.decode, values)):
            made[i] = _raised(found, i)
        return made

    def batch(self, rows: Any) -> Any:
        """Images as one array; they must have one size."""
        if rows.dtype != object:
            return rows
        shapes = {row.shape for row in rows}
        if len(shapes) > 1:
            shown = " and ".join(str(shape) for shape in sorted(shapes)[:2])
            raise UsageError(
                f"images of several sizes in one batch ({shown}): set resize_height and resize_width"
            )
        return np.stack(list(rows))

    def decode(self, data: bytes) -> Any:
        """One image; what is wrong with it, if it cannot be read."""
        from PIL import Image

        formats = {"jpeg": ["JPEG"], "png": ["PNG"], "auto": ["JPEG", "PNG"]}[self.decode_format]
        try:
            image: Any = Image.open(io.BytesIO(data), formats=formats)
            if image.width * image.height > LARGEST:
                return f"an image of {image.width} × {image.height} pixels is too large"
            mode = {
                0: image.mode if image.mode in ("L", "RGB", "RGBA") else "RGB",
                1: "L",
                3: "RGB",
                4: "RGBA",
            }
            if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off instead of scaling
                image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
            if image.format == "JPEG" and self.resize_width is not None and self.channels in (1, 3):
                image.draft(mode[self.channels], (self.resize_width, self.resize_height))
            image = image if image.mode == mode[self.channels] else image.convert(mode[self.channels])
            if self.resize_width is not None and image.size != (self.resize_width, self.resize_height):
                image = image.resize((self.resize_width, self.resize_height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            return f"is not an image that can be read: {error}"
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        pixels = pixels.transpose(2, 0, 1) if self.channels_first else pixels
        if self.enforced_dtype == "uint8":
            return pixels
        scaled = pixels * np.float32(2 / 255 if self.standard_scaling else 1 / 255)
        if self.standard_scaling:
            scaled -= np.float32(1)
        return scaled.astype(self.enforced_dtype, copy=False)


def _raised(found: Any, row: int) -> Any:
    if isinstance(found, str):
        raise Malformed(row, found)
    return found


def single(buffer: Buffer, spans: Spans) -> list[bytes]:
    """The one value that every record has."""
    missing = np.flatnonzero(spans.kind == NONE)
    if len(missing):
        raise Malformed(int(missing[0]), "is missing")
    found = wire.texts(buffer, spans)
    wrong = np.flatnonzero(np.diff(found.splits) != 1)
    if len(wrong):
        count = int(np.diff(found.splits)[wrong[0]])
        raise Malformed(int(wrong[0]), f"has {count} values, but one is needed")
    values: list[bytes] = found.values
    return values
