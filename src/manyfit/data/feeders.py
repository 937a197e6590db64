"""Feeders: sources that say themselves how large their batches are, and whether they are shuffled."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from manyfit.config.typed.arguments import check_arguments
from manyfit.config.typed.kinds import FromProject, Kind
from manyfit.config.typed.roles import FEATURE, FEEDER
from manyfit.core.errors import UsageError
from manyfit.data.batch import Batch
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.post_op import call_post_op, each_row, stack_values, to_ragged
from manyfit.data.source import ArraySource, Source, Split
from manyfit.data.tfrecord import metadata
from manyfit.data.tfrecord.columns import Columns, load_or_decode
from manyfit.data.tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    Mapper,
    SequenceFeature,
    VarLenFeature,
)
from manyfit.data.tfrecord.ragged import Ragged
from manyfit.data.tfrecord.records import Records

log = logging.getLogger("manyfit")

Features: TypeAlias = Annotated[Feature | Mapping[str, Feature], FEATURE]
"""Features by name. (The role says that each of them is named by its `type`.)"""

TOGETHER: Final = 4096
"""Rows that are read together, at most."""
AT_ONCE: Final = 1 << 24
"""Bytes of them, at most; but never less than a batch."""
IN_ALL: Final = 1 << 27
"""Bytes of all that is read ahead."""
UNKNOWN: Final = 1 << 20
"""Bytes of a decoded row whose size nobody knows."""


class Feeder(ABC):
    """A source with a batch size and an order of its own.

    In training, rows are shuffled if the feeder says so: a true permutation, anew each epoch. An evaluation
    sees every row exactly once, as they lie, and never drops the last ones.
    """

    batch_size: int | None
    shuffle: bool
    drop_remainder: bool

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on."""

    @abstractmethod
    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content."""

    def order(self, order: Order) -> Order:
        """The order of a run, with what the feeder says about it."""
        training = order.seed is not None
        own = replace(
            order,
            batch_size=self.batch_size or order.batch_size,
            seed=order.seed if self.shuffle else None,
            drop_remainder=self.drop_remainder and training,
        )
        if training and own.drop_remainder and len(self) and not own.steps(len(self)):
            raise UsageError(
                f"drop_remainder leaves nothing: there are {own.count(len(self))} rows, and a batch has "
                f"{own.batch_size}"
            )
        return own

    def steps(self, order: Order) -> int:
        """Batches in an epoch."""
        return self.order(order).steps(len(self))


class TFRecordExamplesFeeder(Feeder):
    """Rows of TFRecord files that hold `tf.train.Example`, without TensorFlow.

    Every record is checked when it is read. The files must have been indexed (`manyfit data index`), so that
    any record can be read at any time and changed files are found; `auto_generate_meta` does it at the start.

    A single feature is handed to the model as an array, several as a dict by name; in names, whatever cannot
    stand in the name of a parameter becomes `_`. The first label is the target; others go to the model by
    name.
    """

    def __init__(
        self,
        file_patterns: Annotated[str | Sequence[str], Kind.NEUTRAL, FromProject],
        features_map: Features,
        labels_map: Features | None = None,
        batch_size: Annotated[int, Gt(0)] | None = None,
        shuffle: bool = True,
        shuffle_buffer_size: Annotated[int | None, Kind.NEUTRAL, Gt(0)] = None,
        max_examples: Annotated[int, Gt(0)] | None = None,
        drop_remainder: bool = False,
        num_parallel_maps: Annotated[int | None, Kind.NEUTRAL, Gt(0), Le(256)] = None,
        num_parallel_reads: Annotated[int, Kind.NEUTRAL, Gt(0), Le(64)] = 1,
        prefetch: Annotated[int, Kind.NEUTRAL, Ge(0), Le(64)] = 1,
        auto_generate_meta: Annotated[bool, Kind.NEUTRAL] = False,
        compression: Annotated[Literal["gzip", "zlib", "none", "GZIP", "ZLIB"] | None, Kind.NEUTRAL] = None,
        cache: Annotated[bool | str, Kind.NEUTRAL, FromProject] = False,
        feed_as_dict: bool = False,
        id_feature: Annotated[str | None, Kind.NEUTRAL] = None,
        post_op: Callable[..., Any] | None = None,
    ) -> None:
        """Say what is read; nothing is opened yet.

        - `file_patterns`: files, patterns or folders, here or in a store such as s3://.
        - `features_map`, `labels_map`: features by name, such as FixedLenFeature.
        - `shuffle_buffer_size`: changes nothing, because a shuffle is a true permutation; variants have it.
        - `max_examples`: only the first rows.
        - `num_parallel_maps`: threads that decode images. `num_parallel_reads`: threads that read and parse.
        - `prefetch`: how much is read ahead, in pieces of several batches.
        - `compression`: gzip, zlib or none; found by itself, if nobody says.
        - `cache`: keep decoded columns, in the user's cache or in a folder, and map them into memory.
        - `feed_as_dict`: hand a single feature to the model by name, too.
        - `id_feature`: a feature that names each row in reports; else file and number do.
        - `post_op`: what is done to each row: `post_op(features, labels)` is given both by name, and returns
          both (without `labels_map`, features only). What it draws at random is a function of seed, epoch and
          row.
        """
        if isinstance(file_patterns, str | os.PathLike):
            file_patterns = [os.fspath(file_patterns)]
        elif isinstance(file_patterns, Sequence):
            file_patterns = [os.fspath(p) if isinstance(p, os.PathLike) else p for p in file_patterns]
        features_map = _mapping(features_map, "features_map")
        labels_map = _mapping(labels_map, "labels_map") if labels_map is not None else None
        _check(TFRecordExamplesFeeder.__init__, locals())
        self.file_patterns = list(file_patterns)
        self.features = features_map
        self.labels = labels_map or {}
        self.post_op = post_op
        if not self.features:
            raise UsageError("features_map is empty: which features are to be read?")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.max_examples = max_examples
        self.drop_remainder = drop_remainder
        self.maps = num_parallel_maps or min(8, 1 + (os.cpu_count() or 1))
        self.reads = num_parallel_reads
        self.prefetch = prefetch
        self.auto_generate_meta = auto_generate_meta
        self.compression = None if compression is None else compression.lower().replace("none", "")
        self.cache = cache
        self.feed_as_dict = feed_as_dict
        self.id_feature = id_feature
        _check_names(self.features, self.labels)
        self._records: Records | None = None
        self._is_said = False
        self._kept: Columns | None = None
        self._wanted: dict[str, tuple[str, Feature]] = {
            **{f"feature {name}": (name, feature) for name, feature in self.features.items()},
            **{f"label {name}": (name, feature) for name, feature in self.labels.items()},
        }

    @property
    def records(self) -> Records:
        """The files, opened; their names and sizes have been compared with the index."""
        if self._records is None:
            known = metadata.find_entries(self.file_patterns, self.auto_generate_meta, self.compression)
            found = Records(known)
            found.check(list(self._wanted.values()))
            self._records = found
        return self._records

    def __len__(self) -> int:
        rows = len(self.records)
        if self.max_examples is not None and self.max_examples > rows and not self._is_said:
            self._is_said = True
            shown = ", ".join(self.file_patterns)
            log.warning("max_examples is %d, but %s has %d rows", self.max_examples, shown, rows)
        return rows if self.max_examples is None else min(rows, self.max_examples)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on, epoch after epoch, as often as the order says."""
        own = self.order(order)
        per_epoch = own.steps(len(self))
        found = self._read(own.walk(len(self), start), own.batch_size)
        for step, (columns, index) in enumerate(found, start):
            yield self._batch(columns, index, step // per_epoch, order.seed)

    def _read(
        self, plan: Iterator[npt.NDArray[np.int64]], batch_size: int
    ) -> Iterator[tuple[dict[str, Any], npt.NDArray[np.int64]]]:
        """The columns of each batch: from what is kept, or from the files, and then several at a time."""
        if self.cache:
            whole = self.columns()
            yield from ((whole.gather(index), index) for index in plan)
            return
        steps = max(1, self._together() // batch_size)
        log.debug("reading %d batches of %d rows at a time", steps, batch_size)
        pieces = iter(lambda: list(itertools.islice(plan, steps)), [])
        with _Threads(self.maps if self._decodes() else 1) as decoders:
            for indices, columns in self._ahead(pieces, decoders.each):
                begin = 0
                for index in indices:
                    end = begin + len(index)
                    yield {key: found[begin:end] for key, found in columns.items()}, index
                    begin = end

    def _ahead(
        self, pieces: Iterator[list[npt.NDArray[np.int64]]], each: Mapper
    ) -> Iterator[tuple[list[npt.NDArray[np.int64]], dict[str, Any]]]:
        """Read pieces in order, some of them before they are asked for."""

        def read(indices: list[npt.NDArray[np.int64]]) -> Any:
            return indices, self.records.columns(np.concatenate(indices), self._wanted, each)

        ahead = max(self.prefetch, self.reads - 1)
        if not ahead:
            yield from map(read, pieces)
            return
        waiting: deque[Future[Any]] = deque()
        # One more where images are decoded, so that the decoders need not wait for what is read.
        readers = self.reads + (self._decodes() and self.maps > 1)
        pool = ThreadPoolExecutor(readers, "manyfit-feeder")
        try:
            for piece in pieces:
                waiting.append(pool.submit(read, piece))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # Not waiting: what fails may be put away in any thread, also in one of these.
            pool.shutdown(wait=False, cancel_futures=True)

    def columns(self) -> Columns:
        """Every row, decoded and kept."""
        if self._kept is None:
            features = {key: feature for key, (_, feature) in self._wanted.items()}
            with _Threads(self.maps if self._decodes() else 1) as decoders:
                self._kept = load_or_decode(
                    self.cache,
                    self.fingerprint(),
                    len(self),
                    features,
                    lambda rows: self.records.columns(rows, self._wanted, decoders.each),
                    self._together(),
                )
        return self._kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def _decodes(self) -> bool:
        return any(isinstance(feature, ImageFeature) for _, feature in self._wanted.values())

    def _together(self) -> int:
        """Rows that are read together."""
        known = [feature.row() for _, feature in self._wanted.values()]
        decoded = sum(
            math.prod(each[0]) * np.dtype(each[1]).itemsize if each is not None else 0 for each in known
        )
        if self._decodes() and None in known:
            decoded += UNKNOWN
        size = sum(file.frames.size for file in self.records.files) / max(1, len(self.records))
        pieces = 1 + max(self.prefetch, self.reads - 1)
        budget = min(AT_ONCE, IN_ALL // pieces)
        return int(min(TOGETHER, max(1, budget // max(1, int(decoded + size)))))

    def _batch(
        self, columns: Mapping[str, Any], index: npt.NDArray[np.int64], epoch: int, seed: int | None
    ) -> Batch:
        columns = self._apply_post_op(columns, index, epoch, seed)
        made = {key: _assemble(self._wanted[key][1], column) for key, column in columns.items()}
        features = {name: made[f"feature {name}"] for name in self.features}
        labels = [made[f"label {name}"] for name in self.labels]
        others = {_identifier(name): label for name, label in zip(self.labels, labels, strict=True)}
        inputs: Any = {_identifier(name): column for name, column in features.items()}
        if len(labels) > 1:
            inputs = {**dict(itertools.islice(others.items(), 1, None)), **inputs}
        elif len(features) == 1 and not self.feed_as_dict:
            (inputs,) = features.values()
        return Batch(inputs, _target(labels[0]) if labels else None, index)

    def _apply_post_op(
        self, columns: Mapping[str, Any], index: npt.NDArray[np.int64], epoch: int, seed: int | None
    ) -> Mapping[str, Any]:
        """The columns after what is done to each row of them."""
        own = {key: op for key, (_, each) in self._wanted.items() if (op := getattr(each, "post_op", None))}
        if not own and self.post_op is None:
            return columns
        lists = {key: list(column) for key, column in columns.items()}

        def row(place: int) -> dict[str, Any]:
            values = {key: found[place] for key, found in lists.items()}
            values |= {key: operation(values[key]) for key, operation in own.items()}
            if self.post_op is None:
                return values
            features, labels = call_post_op(
                self.post_op,
                {name: values[f"feature {name}"] for name in self.features},
                {name: values[f"label {name}"] for name in self.labels},
            )
            return {f"feature {n}": v for n, v in features.items()} | {
                f"label {n}": v for n, v in labels.items()
            }

        rows = each_row(row, index, epoch, seed)
        return {
            key: to_ragged(self._wanted[key][0], [each[key] for each in rows], column.values)
            if isinstance(column, Ragged)
            else stack_values(self._wanted[key][0], [each[key] for each in rows], column.dtype)
            for key, column in columns.items()
        }

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The name of a file and the number of a record in it, such as train-00000-of-00002:17."""
        if self.id_feature is None:
            return self.records.ids(index)
        rows = np.asarray(index, np.int64)
        kinds = [file.entry.features.get(self.id_feature, "") for file in self.records.files]
        dtype: Literal["int64", "string"] = "int64" if "int64" in kinds else "string"
        wanted = {"id": (self.id_feature, FixedLenFeature([1], dtype))}
        found = self.records.columns(rows, wanted)["id"][:, 0]
        return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in found]

    def contents(self, most: int) -> Contents:
        """What some of the records hold, as they lie in their files."""
        rows = spread(len(self), most)
        for begin in range(0, len(rows), TOGETHER):
            part = rows[begin : begin + TOGETHER]
            found = self.records.read(part)
            bounds = zip(part.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
            yield from ((row, hash(found.raw[begin:end])) for row, begin, end in bounds)

    def fingerprint(self) -> str:
        """The digests of the files, in their order, and how many rows are used."""
        text = "\n".join([*self.records.digests(), str(len(self))])
        return hashlib.sha256(text.encode()).hexdigest()


class _Threads:
    """A `map` that uses several threads, while there is something to do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, "manyfit-decode") if count > 1 else None

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """`map`; each thread takes the next item when it is done with one."""
        if self._pool is None:
            return map(function, items)
        given = list(items)
        found: list[Any] = [None] * len(given)
        places = iter(range(len(given)))

        def work() -> None:
            for place in places:
                found[place] = function(given[place])

        for done in [self._pool.submit(work) for _ in range(min(self._count, len(given)))]:
            done.result()
        return found

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _mapping(given: Any, name: str) -> dict[str, Feature]:
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{name} is a mapping from names to features, such as {{label: {{type: FixedLenFeature}}}}"
        )
    return dict(given)


def _check_names(features: Mapping[str, Feature], labels: Mapping[str, Feature]) -> None:
    """See that no two columns would reach the model under one name."""
    seen: dict[str, str] = {}
    for name in [*features, *list(labels)[1:]]:
        other = seen.setdefault(_identifier(name), name)
        if other != name or (name in features and name in list(labels)[1:]):
            raise UsageError(
                f"{other!r} and {name!r} would both reach the model as {_identifier(name)!r}; leave one out"
            )


def _assemble(feature: Feature, column: Any) -> Any:
    if isinstance(feature, VarLenFeature | SequenceFeature | ImageFeature):
        return feature.batch(column)
    return column


def _check(target: Any, given: Mapping[str, Any]) -> None:
    """Hold arguments from Python to what a config is held to."""
    if given.get("max_examples") == -1:
        raise UsageError("max_examples must be greater than 0, not -1; to read all rows, leave it out")
    check_arguments(target, {name: value for name, value in given.items() if name != "self"})


def _target(label: Any) -> Any:
    """Class numbers that are written as lists of one are numbers."""
    is_numbers = label.ndim == 2 and label.shape[1] == 1 and label.dtype.kind == "i"
    return label[:, 0] if is_numbers else label


def _identifier(name: str) -> str:
    """The name of a feature as a parameter can be called.

    >>> _identifier("image/encoded")
    'image_encoded'
    """
    made = re.sub(r"\W", "_", name)
    return f"_{made}" if made[:1].isdigit() else made


class MemorySamplesFeeder(Feeder):
    """Rows that are in memory: arrays, lists, tables of pandas, or dicts of them by column."""

    def __init__(
        self,
        x: Any,
        y: Any = None,
        feed_as_dict: bool = False,
        batch_size: Annotated[int, Gt(0)] | None = None,
        shuffle: bool = True,
        drop_remainder: bool = False,
        max_examples: Annotated[int, Gt(0)] | None = None,
        post_op: Callable[..., Any] | None = None,
    ) -> None:
        """Say what is fed: `x` to the model, `y` as the target.

        Several columns (a dict, a table, rows that are dicts) are handed to the model by name. With
        `feed_as_dict`, the columns of an array are so, too: x0, x1 …

        `post_op` is done to each row: `post_op(x, y)` returns both, `post_op(x)` where there is no `y`.
        """
        _check(MemorySamplesFeeder.__init__, {k: v for k, v in locals().items() if k not in ("x", "y")})
        self.batch_size = batch_size
        self.post_op = post_op
        self.shuffle = shuffle
        self.drop_remainder = drop_remainder
        inputs = _columns(x, "x")
        if feed_as_dict and not isinstance(inputs, dict):
            flat = inputs.reshape(len(inputs), -1)
            inputs = {f"x{i}": flat[:, i] for i in range(flat.shape[1])}
        target = None if y is None else _columns(y, "y")
        if isinstance(target, dict):
            first, *rest = target
            if rest and not isinstance(inputs, dict):
                raise UsageError(
                    f"y has several columns ({', '.join(target)}), so x must have named ones, too"
                )
            inputs = {**{name: target[name] for name in rest}, **inputs} if rest else inputs
            target = target[first]
        rows = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
        if max_examples is not None and max_examples > rows:
            log.warning("max_examples is %d, but x has %d rows", max_examples, rows)
        if max_examples is not None:
            target = None if target is None else target[:max_examples]
            inputs = (
                {name: column[:max_examples] for name, column in inputs.items()}
                if isinstance(inputs, dict)
                else inputs[:max_examples]
            )
        self._rows = ArraySource(inputs, None if target is None else _target(target))

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on."""
        own = self.order(order)
        found = self._rows.batches(own, start)
        if self.post_op is None:
            return found
        per_epoch = own.steps(len(self))
        return (
            self._apply_post_op(batch, step // per_epoch, order.seed)
            for step, batch in enumerate(found, start)
        )

    def _apply_post_op(self, batch: Batch, epoch: int, seed: int | None) -> Batch:
        """A batch after what is done to each row of it."""
        is_named, operation = isinstance(batch.inputs, Mapping), self.post_op
        assert operation is not None
        inputs: dict[str, Any] = (
            dict(batch.inputs) if isinstance(batch.inputs, Mapping) else {"x": batch.inputs}
        )
        labels = {} if batch.target is None else {"y": batch.target}

        def row(place: int) -> tuple[dict[str, Any], dict[str, Any]]:
            x = {name: column[place] for name, column in inputs.items()}
            given = [x if is_named else x["x"], *(column[place] for column in labels.values())]
            found = operation(*given)
            if labels and not (isinstance(found, tuple) and len(found) == 2):
                raise UsageError("post_op must return (x, y), as it is given them")
            x, *rest = found if labels else (found,)
            if is_named and (not isinstance(x, Mapping) or set(x) != set(inputs)):
                raise UsageError(f"post_op must return the columns {', '.join(inputs)}")
            return dict(x) if is_named else {"x": x}, dict(zip(labels, rest, strict=True))

        rows = each_row(row, batch.index, epoch, seed)
        made = {
            name: stack_values(name, [x[name] for x, _ in rows], column.dtype)
            for name, column in inputs.items()
        }
        target = stack_values("y", [y["y"] for _, y in rows], labels["y"].dtype) if labels else None
        return replace(batch, inputs=made if is_named else made["x"], target=target)

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Row numbers."""
        return self._rows.ids(index)

    def contents(self, most: int) -> Contents:
        """What some of the rows hold."""
        return self._rows.contents(most)

    def fingerprint(self) -> str:
        """A hash of every column."""
        return self._rows.fingerprint()


def _columns(given: Any, name: str) -> Any:
    """An array, or arrays by name."""
    if hasattr(given, "to_dict") and hasattr(given, "columns"):  # a table of pandas
        return {_identifier(str(column)): _array(given[column], name) for column in given.columns}
    if isinstance(given, Mapping):
        return {_identifier(str(key)): _array(column, f"{name}.{key}") for key, column in given.items()}
    if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
        keys = list(given[0])
        if any(set(row) != set(keys) for row in given):
            raise UsageError(f"the rows of {name} have not all the same columns: {', '.join(map(str, keys))}")
        return {_identifier(str(key)): _array([row[key] for row in given], f"{name}.{key}") for key in keys}
    return _array(given, name)


def _array(values: Any, name: str) -> Any:
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name} is not an array: {error}") from None
    if found.dtype == object and all(isinstance(value, str) for value in found.reshape(-1)):
        found = found.astype(str)
    if found.dtype == object or not found.ndim:
        raise UsageError(f"{name} is not an array of numbers or text")
    return found.astype(np.float32) if found.dtype == np.float64 else found


class Feeders:
    """The data of a run: a feeder for each split. The batch size is that of the training feeder.

    data: {class: manyfit.feeders.Feeders, train: {type: TFRecordExamplesFeeder, …}, validation: {…}}
    """

    def __init__(
        self,
        train: Annotated[Source, FEEDER],
        validation: Annotated[Source | None, FEEDER] = None,
        test: Annotated[Source | None, FEEDER] = None,
        batch_size: Annotated[int, Gt(0)] = 32,
    ) -> None:
        self.batch_size = getattr(train, "batch_size", None) or batch_size
        self._splits = {"train": train, "validation": validation, "test": test}

    def source(self, split: Split) -> Source | None:
        """The rows of one split."""
        return self._splits[split]
