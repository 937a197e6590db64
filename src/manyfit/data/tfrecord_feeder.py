"""A feeder over TFRecord files."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from manyfit.config.typed.kinds import FromProject, Kind
from manyfit.config.typed.roles import FEATURE
from manyfit.core.errors import UsageError
from manyfit.data.batch import Batch
from manyfit.data.feeders import Feeder, check_feeder, parameter_name, squeeze_target
from manyfit.data.order import Order
from manyfit.data.overlap import Contents, spread
from manyfit.data.post_op import call_post_op, each_row, stack_values, to_ragged
from manyfit.data.tfrecord.columns import Columns, load_or_decode
from manyfit.data.tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    Mapper,
    SequenceFeature,
    VarLenFeature,
)
from manyfit.data.tfrecord.indexing import find_entries
from manyfit.data.tfrecord.ragged import Ragged
from manyfit.data.tfrecord.records import Records

log = logging.getLogger("manyfit")
Features: TypeAlias = Annotated[Feature | Mapping[str, Feature], FEATURE]
"""Features by name. The role makes a config name the class of each of them by `type`."""
TOGETHER: Final = 4096
"""The largest number of rows that are read at once."""
AT_ONCE: Final = 1 << 24
"""The largest number of bytes that are read at once; at least one batch is read."""
IN_ALL: Final = 1 << 27
"""The largest number of bytes that are prefetched."""
UNKNOWN: Final = 1 << 20
"""The assumed number of bytes of a decoded row of unknown size."""


class TFRecordExamplesFeeder(Feeder):
    """A feeder over TFRecord files of `tf.train.Example`, without TensorFlow.

    The checksums of every record are verified when it is read. The files must be indexed
    (`manyfit data index`), which allows random access and detects changed files; `auto_generate_meta` indexes
    them on first use.

    A single feature is passed to the model as an array, several as a dict by name; characters that are not
    valid in parameter names become `_`. The first label is the target; other labels are passed to the model
    by name.
    """

    takes_shards = True
    is_read_in_ranges = True
    """Whether a shard is a range of records, so that a worker reads only its part of the files."""

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
        """Set the options; no file is opened yet.

        - `file_patterns`: files, patterns or folders, local or remote (such as s3://).
        - `features_map`, `labels_map`: features by name, such as FixedLenFeature.
        - `shuffle_buffer_size`: accepted for variants, but unused: shuffling is a true permutation.
        - `max_examples`: use only the first rows.
        - `num_parallel_maps`: threads that decode images. `num_parallel_reads`: threads that read and parse.
        - `prefetch`: number of pieces, of several batches each, to read in advance.
        - `compression`: gzip, zlib or none; detected by default.
        - `cache`: keep decoded columns in the user's cache, or in the given folder, and memory-map them.
        - `feed_as_dict`: pass a single feature to the model by name, too.
        - `id_feature`: the feature with the row IDs of reports; by default, IDs are file name and number.
        - `post_op`: a function that is applied to each row: `post_op(features, labels)` returns both, each by
          name (without `labels_map`, only features). Its random numbers depend on seed, epoch and row.
        """
        file_patterns = _list_patterns(file_patterns)
        features_map = _mapping(features_map, "features_map")
        labels_map = _mapping(labels_map, "labels_map") if labels_map is not None else None
        check_feeder(TFRecordExamplesFeeder.__init__, locals())
        self.file_patterns = list(file_patterns)
        self.features = features_map
        self.labels = labels_map or {}
        self.post_op = post_op
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
        self._wanted = _key_columns(self.features, self.labels)

    @property
    def records(self) -> Records:
        """The records, after the names and sizes of the files were compared with the index."""
        if self._records is None:
            known = find_entries(self.file_patterns, self.auto_generate_meta, self.compression)
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
        """Yield batches from step `start`, for the number of epochs in `order`."""
        own = self.order(order)
        per_epoch = own.steps(len(self))
        found = self._read(own.walk(len(self), start), own.batch_size)
        for step, (columns, index) in enumerate(found, start):
            yield self._batch(columns, index, step // per_epoch, order.seed)

    def _read(
        self, plan: Iterator[npt.NDArray[np.int64]], batch_size: int
    ) -> Iterator[tuple[dict[str, Any], npt.NDArray[np.int64]]]:
        """Yield the columns of each batch: from the cache, or from the files, several batches at a time."""
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
        """Read pieces in order, some of them in advance."""

        def read(indices: list[npt.NDArray[np.int64]]) -> Any:
            return indices, self.records.columns(np.concatenate(indices), self._wanted, each)

        ahead = max(self.prefetch, self.reads - 1)
        if not ahead:
            yield from map(read, pieces)
            return
        waiting: deque[Future[Any]] = deque()
        # One more reader if images are decoded, so that the decoders need not wait for reads.
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
            # Do not wait: this generator may be finalized in any thread, including one of the pool.
            pool.shutdown(wait=False, cancel_futures=True)

    def columns(self) -> Columns:
        """Return all rows, decoded and cached."""
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
        """Return the number of rows to read at once."""
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
        others = {parameter_name(name): label for name, label in zip(self.labels, labels, strict=True)}
        inputs: Any = {parameter_name(name): column for name, column in features.items()}
        if len(labels) > 1:
            inputs = {**dict(itertools.islice(others.items(), 1, None)), **inputs}
        elif len(features) == 1 and not self.feed_as_dict:
            (inputs,) = features.values()
        return Batch(inputs, squeeze_target(labels[0]) if labels else None, index)

    def _apply_post_op(
        self, columns: Mapping[str, Any], index: npt.NDArray[np.int64], epoch: int, seed: int | None
    ) -> Mapping[str, Any]:
        """Return the columns after every `post_op` was applied to each of their rows."""
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
        """Return the values of `id_feature`, else file names and record numbers: train-00000-of-00002:17."""
        if self.id_feature is None:
            return self.records.ids(index)
        rows = np.asarray(index, np.int64)
        kinds = [file.entry.features.get(self.id_feature, "") for file in self.records.files]
        dtype: Literal["int64", "string"] = "int64" if "int64" in kinds else "string"
        wanted = {"id": (self.id_feature, FixedLenFeature([1], dtype))}
        found = self.records.columns(rows, wanted)["id"][:, 0]
        return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in found]

    def contents(self, most: int) -> Contents:
        """Yield hashes of the bytes of at most `most` records."""
        rows = spread(len(self), most)
        for begin in range(0, len(rows), TOGETHER):
            part = rows[begin : begin + TOGETHER]
            found = self.records.read(part)
            bounds = zip(part.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
            yield from ((row, hash(found.raw[begin:end])) for row, begin, end in bounds)

    def fingerprint(self) -> str:
        """Return a hash of the digests of the files, in order, and of the number of rows in use."""
        text = "\n".join([*self.records.digests(), str(len(self))])
        return hashlib.sha256(text.encode()).hexdigest()


class _Threads:
    """A `map` that uses several threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count, "manyfit-decode") if count > 1 else None

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """Map a function over items; each thread takes the next item when it has finished one."""
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


def _list_patterns(given: Any) -> Any:
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if isinstance(given, Sequence):
        return [os.fspath(p) if isinstance(p, os.PathLike) else p for p in given]
    return given


def _key_columns(
    features: Mapping[str, Feature], labels: Mapping[str, Feature]
) -> dict[str, tuple[str, Feature]]:
    """Return each feature and label under a unique key: a feature and a label may have the same name."""
    return {
        **{f"feature {name}": (name, feature) for name, feature in features.items()},
        **{f"label {name}": (name, feature) for name, feature in labels.items()},
    }


def _mapping(given: Any, name: str) -> dict[str, Feature]:
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{name} must be a mapping from names to features, such as {{label: {{type: FixedLenFeature}}}}"
        )
    return dict(given)


def _check_names(features: Mapping[str, Feature], labels: Mapping[str, Feature]) -> None:
    """Check that there are features, and that no two columns are passed to the model under one name."""
    if not features:
        raise UsageError("features_map is empty: name at least one feature")
    seen: dict[str, str] = {}
    for name in [*features, *list(labels)[1:]]:
        other = seen.setdefault(parameter_name(name), name)
        if other != name or (name in features and name in list(labels)[1:]):
            raise UsageError(
                f"{other!r} and {name!r} would both be passed to the model as {parameter_name(name)!r}; "
                "remove one of them"
            )


def _assemble(feature: Feature, column: Any) -> Any:
    if isinstance(feature, VarLenFeature | SequenceFeature | ImageFeature):
        return feature.batch(column)
    return column
