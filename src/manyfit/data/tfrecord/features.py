"""Feature types: how a feature of an Example becomes a column of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Gt

from manyfit.config.typed.arguments import check_arguments
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.data.tfrecord import images, lists
from manyfit.data.tfrecord.fill_values import check_pad, default_array, fill_value
from manyfit.data.tfrecord.message import BYTES, FLOAT, INT64, KINDS, NONE
from manyfit.data.tfrecord.ragged import Ragged, as_objects
from manyfit.data.tfrecord.wire import Buffer, Malformed, Spans

Dtype: TypeAlias = Literal["float32", "int64", "string"]
Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or a function like it that uses several threads."""
WIRE: Final = {"float32": FLOAT, "int64": INT64, "string": BYTES}
WIDE: Final = {"float32": "<f4", "int64": "<i8"}


class Feature(ABC):
    """A feature of an Example, as a column of a batch."""

    @abstractmethod
    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return the values of this feature in several records: an array with one row per record."""

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and type of a row, or None if rows differ."""
        return None


def column_of(feature: Feature, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
    """Return the values of a feature; raise if a record has another kind of values under its name."""
    wanted = wire_type(feature)
    wrong = np.flatnonzero((spans.kind != NONE) & (spans.kind != wanted))
    if len(wrong):
        row = int(wrong[0])
        raise Malformed(row, f"holds {KINDS[int(spans.kind[row])]}, not {KINDS[wanted]}")
    return feature.column(buffer, spans, each)


def wire_type(feature: Feature) -> int:
    """Return the kind of values that a feature has in the wire format."""
    return WIRE[getattr(feature, "dtype", "string")] if isinstance(feature, _Plain) else BYTES


class _Plain(Feature):
    """A feature whose values are used as stored."""


@dataclass(frozen=True)
class FixedLenFeature(_Plain):
    """A feature with the same shape in every record.

    >>> FixedLenFeature(shape=[28, 28], dtype="float32").row()
    ((28, 28), '<f4')
    """

    shape: Sequence[Annotated[int, Ge(0)]] = ()
    dtype: Dtype = "float32"
    default_value: Any = None
    """The value for records without this feature; by default, they are an error."""

    def __post_init__(self) -> None:
        check_arguments(FixedLenFeature, vars(self))
        if self.default_value is not None:
            default_array(self.default_value, self.dtype, self.shape)

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and type, or None for text."""
        return (tuple(self.shape), WIDE[self.dtype]) if self.dtype in WIDE else None

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return an array of shape (rows, *shape)."""
        rows, count = len(buffer), math.prod(self.shape)
        kind = WIRE[self.dtype]
        missing = np.flatnonzero(spans.kind == NONE)
        if len(missing) and self.default_value is None:
            raise Malformed(int(missing[0]), "is missing, and has no default_value")
        found = lists.texts(buffer, spans) if kind == BYTES else lists.read_numbers(buffer, spans, kind)
        counts = np.diff(found.splits)
        wrong = np.flatnonzero((counts != count) & (spans.kind != NONE))
        if len(wrong):
            row = int(wrong[0])
            shape = list(self.shape)
            raise Malformed(row, f"has {counts[row]} values, but the shape {shape} needs {count}")
        values = found.values
        if not len(missing):
            return values.reshape(rows, *self.shape)
        whole = np.empty((rows, *self.shape), values.dtype)
        present = spans.kind != NONE
        whole[present] = values.reshape(-1, *self.shape)
        whole[missing] = default_array(self.default_value, self.dtype, self.shape)
        return whole


@dataclass(frozen=True)
class VarLenFeature(_Plain):
    """A feature with any number of values in every record.

    The rows of a batch are padded at the end, to the longest row or to `length`; longer rows are truncated.
    With `ragged`, each row keeps its length: a PyTorch model receives a nested tensor.
    """

    dtype: Dtype = "float32"
    pad: Any = None
    """The padding value: by default 0, or empty text."""
    length: Annotated[int, Gt(0)] | None = None
    ragged: bool = False
    allow_missing: bool = False
    """Accept a data set in which no record has this feature, which is an error by default."""

    def __post_init__(self) -> None:
        check_arguments(VarLenFeature, vars(self))
        if self.ragged and (self.length is not None or self.pad is not None):
            raise UsageError("a ragged feature is not padded: remove pad and length")
        check_pad(self.pad, self.dtype)

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return rows of different lengths, which are padded when a batch is assembled."""
        kind = WIRE[self.dtype]
        found = lists.texts(buffer, spans) if kind == BYTES else lists.read_numbers(buffer, spans, kind)
        return Ragged(found.values, found.splits)

    def batch(self, rows: Ragged) -> Any:
        """Return rows of different lengths as one array."""
        if self.ragged:
            return rows.rows()
        return rows.padded(fill_value(self.pad, self.dtype), self.length)


@dataclass(frozen=True)
class RawFeature(Feature):
    """An array that is stored as raw bytes."""

    shape: Sequence[Annotated[int, Ge(0)]]
    dtype: Literal[
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "float32", "float64",
    ] = "uint8"  # fmt: skip

    def __post_init__(self) -> None:
        check_arguments(RawFeature, vars(self))

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and type, which all rows share."""
        return tuple(self.shape), np.dtype(self.dtype).str

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return an array of shape (rows, *shape)."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        places = lists.find_single(buffer, spans)
        if places is not None:
            sizes, whole = places[1] - places[0], lists.join_parts(buffer, *places)
        else:
            values = read_single(buffer, spans)
            sizes, whole = np.fromiter(map(len, values), np.int64, len(values)), bytearray().join(values)
        wrong = np.flatnonzero(sizes != size)
        if len(wrong):
            row = int(wrong[0])
            raise Malformed(row, f"has {sizes[row]} bytes, but an array of its shape has {size}")
        return np.frombuffer(whole, np.dtype(self.dtype)).reshape(len(sizes), *self.shape)


@dataclass(frozen=True)
class ImageFeature(Feature):
    """An encoded image (JPEG, PNG, BMP, GIF), decoded, and optionally resized and scaled.

    Float pixels are in 0 … 1, with `standard_scaling` in -1 … 1; uint8 pixels are in 0 … 255. A row has the
    shape (height, width, channels), or, with `channels_first` for PyTorch, (channels, height, width).
    With `count`, a record has that many images, and their number is the first dimension of a row.
    """

    resize_height: Annotated[int, Gt(0)] | None = None
    resize_width: Annotated[int, Gt(0)] | None = None
    channels: Literal[0, 1, 3, 4] = 3
    """0: keep the channels of the image."""
    decode_format: Literal["jpeg", "png", "bmp", "gif", "auto"] = "auto"
    enforced_dtype: Literal["float32", "float16", "uint8"] = "float32"
    standard_scaling: bool = False
    channels_first: bool = False
    count: Annotated[int, Gt(0)] | None = None
    pad: bool = False
    """Pad with zeros if a record has fewer images than `count`."""
    post_op: Callable[..., Any] | None = None
    """A function that is applied to each decoded image, such as an augmentation."""

    def __post_init__(self) -> None:
        check_arguments(ImageFeature, vars(self))
        if (self.resize_height is None) != (self.resize_width is None):
            raise UsageError("set both resize_height and resize_width to resize images; one is missing")
        if self.standard_scaling and self.enforced_dtype == "uint8":
            raise UsageError("standard_scaling requires floats: set enforced_dtype: float32")
        if self.pad and self.count is None:
            raise UsageError("pad requires count, which is missing")
        if self.count is not None and self._image_shape() is None:
            raise UsageError(
                "with count, all images must have one size: set resize_height, resize_width and channels"
            )

    def row(self) -> tuple[tuple[int, ...], str] | None:
        """Return the shape and type if images are resized and their channels are set, else None."""
        shape = self._image_shape()
        if shape is None:
            return None
        return shape if self.count is None else (self.count, *shape), np.dtype(self.enforced_dtype).str

    def _image_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one image, or None if images differ."""
        if self.resize_height is None or self.resize_width is None or not self.channels:
            return None
        shape = (self.resize_height, self.resize_width, self.channels)
        return (shape[2], *shape[:2]) if self.channels_first else shape

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return an array of shape (rows, height, width, channels), or objects if image sizes can differ."""
        import_optional("PIL.Image", "images")
        known = self.row()
        if known is None:
            values = read_single(buffer, spans)
            return as_objects(
                [_raise_malformed(found, i) for i, found in enumerate(each(self.decode, values))]
            )
        values, rows, places = self._values(buffer, spans)
        made = (np.zeros if self.pad else np.empty)((len(buffer), *known[0]), known[1])
        into = [
            made[row] if self.count is None else made[row, i] for row, i in zip(rows, places, strict=True)
        ]
        for row, found in zip(rows, each(self._decode_into, zip(values, into, strict=True)), strict=True):
            _raise_malformed(found, row)
        return made

    def _values(self, buffer: Buffer, spans: Spans) -> tuple[list[bytes], list[int], list[int]]:
        """Return all encoded images, with the record of each and its position in the record."""
        if self.count is None:
            values = read_single(buffer, spans)
            return values, list(range(len(values))), [0] * len(values)
        found = lists.texts(buffer, spans)
        counts = np.diff(found.splits)
        wrong = np.flatnonzero((counts > self.count) | (counts < (0 if self.pad else self.count)))
        if len(wrong):
            row, most = int(wrong[0]), "at most " if self.pad else ""
            hint = "" if self.pad or counts[row] > self.count else " (pad: true adds empty images)"
            raise Malformed(row, f"has {counts[row]} images, but count requires {most}{self.count}{hint}")
        rows = np.repeat(np.arange(len(counts)), counts)
        return found.values.tolist(), rows.tolist(), (np.arange(len(rows)) - found.splits[rows]).tolist()

    def batch(self, rows: Any) -> Any:
        """Return images as one array; they must have one size."""
        if rows.dtype != object:
            return rows
        shapes = {row.shape for row in rows}
        if len(shapes) > 1:
            shown = " and ".join(str(shape) for shape in sorted(shapes)[:2])
            raise UsageError(
                f"images of different sizes in one batch ({shown}): set resize_height and resize_width"
            )
        return np.stack(list(rows))

    def decode(self, data: bytes, into: Any = None) -> Any:
        """Decode one image, into an array if given; return the reason as text if it cannot be read."""
        width, height = self.resize_width, self.resize_height
        size = None if width is None or height is None else (height, width)
        try:
            found = images.pixels(data, self.decode_format, self.channels, size)
        except images.Unreadable as error:
            return str(error)
        found = found.transpose(2, 0, 1) if self.channels_first else found
        if self.enforced_dtype == "uint8":
            return found if into is None else np.copyto(into, found)
        into = np.empty(found.shape, self.enforced_dtype) if into is None else into
        scaled = into if into.dtype == np.float32 else np.empty(found.shape, np.float32)
        np.multiply(found, np.float32(2 / 255 if self.standard_scaling else 1 / 255), out=scaled)
        if self.standard_scaling:
            scaled -= np.float32(1)
        if scaled is not into:
            np.copyto(into, scaled, casting="same_kind")
        return into

    def _decode_into(self, given: tuple[bytes, Any]) -> Any:
        return self.decode(*given)


@dataclass(frozen=True)
class SequenceFeature(_Plain):
    """A feature list of a `tf.train.SequenceExample`: any number of steps, each with values of one shape.

    The rows of a batch are padded at the end, to the longest row or to `length`; longer rows are truncated.
    The context of such a record is read by the other feature types.
    """

    shape: Sequence[Annotated[int, Ge(0)]] = ()
    dtype: Dtype = "float32"
    pad: Any = None
    length: Annotated[int, Gt(0)] | None = None
    allow_missing: bool = False
    """Treat a record without this feature as one without steps, which is an error by default."""

    def __post_init__(self) -> None:
        check_arguments(SequenceFeature, vars(self))
        check_pad(self.pad, self.dtype)

    def column(self, buffer: Buffer, spans: Spans, each: Mapper = map) -> Any:
        """Return rows of different lengths, whose values have a shape."""
        kind, width = WIRE[self.dtype], math.prod(self.shape)
        assert spans.steps is not None
        whole: list[Any] = []
        counts = np.zeros(len(buffer), np.int64)
        for row, steps in enumerate(spans.steps):
            if steps is None and not self.allow_missing:
                raise Malformed(row, "is missing")
            counts[row] = len(steps or ())
            for number, step in enumerate(steps or ()):
                found = lists.values_of(step, kind, row)
                if len(found) != width:
                    shape = list(self.shape)
                    told = f"has {len(found)} values in step {number}, but the shape {shape} needs {width}"
                    raise Malformed(row, told)
                whole.append(found)
        if kind == BYTES:
            values = as_objects([value for step in whole for value in step])
        else:
            values = np.concatenate(whole) if whole else np.zeros(0, WIDE[self.dtype])
        splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return Ragged(values.reshape(len(whole), *self.shape), splits)

    def batch(self, rows: Ragged) -> Any:
        """Return an array of shape (rows, steps, *shape)."""
        return rows.padded(fill_value(self.pad, self.dtype), self.length)


def _raise_malformed(found: Any, row: int) -> Any:
    if isinstance(found, str):
        raise Malformed(row, found)
    return found


def read_single(buffer: Buffer, spans: Spans) -> list[bytes]:
    """Return the single value of every record; raise if a record has none or several."""
    missing = np.flatnonzero(spans.kind == NONE)
    if len(missing):
        raise Malformed(int(missing[0]), "is missing")
    found = lists.texts(buffer, spans)
    wrong = np.flatnonzero(np.diff(found.splits) != 1)
    if len(wrong):
        count = int(np.diff(found.splits)[wrong[0]])
        raise Malformed(int(wrong[0]), f"has {count} values, but must have one")
    values: list[bytes] = found.values.tolist()
    return values
