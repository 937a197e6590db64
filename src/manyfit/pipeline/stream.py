"""Generators of data points as a source: positioned by (seed, step), walked once for a report.

A generator can only be read from its beginning. So a stream of training batches is cut into segments of whole
epochs, about 2,000 batches each; each begins with generators made anew under seeds of its own. A start in the
middle reads, and drops, what comes before it in its segment, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.seeds import derive
from manyfit.core.tracebacks import user_frame
from manyfit.data import nested
from manyfit.data.batch import Batch
from manyfit.data.dataset import SAMPLED, hash_row, update
from manyfit.data.order import Order
from manyfit.data.overlap import Contents
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.pipeline.components import AugmentorBase, DataLoaderBase, PreprocessorBase
from manyfit.pipeline.row_numbers import Lost, RowTracker, id_text

log = logging.getLogger("manyfit")

SEGMENT: Final = 2048
"""Batches after which generators are made anew, at the next end of an epoch."""
WAITING: Final = 1 << 30
"""Bytes of rows, beyond a few epochs and batches, that a preprocessor may take before it gives a batch: a
buffer for shuffling is smaller, a list of endless data is not."""
METHODS: Final = {
    "train": "create_training_generator",
    "validation": "create_validation_generator",
    "test": "create_test_generator",
}
ROW: Final = {
    "train": "(x, y, sample_weight)",
    "validation": "(x, y, sample_weight)",
    "test": "(x, y, data_id)",
}


def is_dataset(value: Any) -> bool:
    """Whether something is a `tf.data.Dataset`."""
    return hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator")


@dataclass
class ComponentSource:
    """One split. The preprocessor makes the batches, so their size and number are its own."""

    split: str
    loader: DataLoaderBase
    augmentor: AugmentorBase | None
    preprocessor: PreprocessorBase
    batch_size: int
    make_loader: Callable[[], DataLoaderBase] | None = None
    _ids: dict[int, str] = field(default_factory=dict)
    _fresh: Any = None
    """Rows that nobody has read yet: a loader may take long to make them."""
    _report: Any = None
    """The pipeline of a report, where it can be walked again and again."""
    _tracked: tuple[Any, RowTracker, int] | None = None
    """The same with numbers: the pipeline, who counts what comes back, and how many batches there are."""
    _steps: int = 0
    _is_proven: bool = False
    _taken: int = 0
    """Rows that the preprocessor has taken for its next batch."""
    _padding: int = 0
    """Rows beyond the last one of a report, to fill its last batch."""

    def __post_init__(self) -> None:
        self._padding = self.batch_size
        with own_randomness():
            seed_with_tensorflow(0)
            self._fresh, self._rows = self.create()
            self._is_native = is_dataset(self._fresh)
            if self.split == "train" and self._rows:
                rows = self._fresh if self._is_native else self._repeat(self._fresh)
                self._steps = self.pipeline(rows)[1]

    def __len__(self) -> int:
        return self._rows

    def steps(self, order: Order) -> int:
        """Batches in an epoch, as `batchify` says."""
        return self._steps if order.limit is None else -(-order.count(self._rows) // self.batch_size)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start` on, epoch after epoch; or every data point once, for a report."""
        if order.epochs is None:
            return Feed(self, order, start)
        if order.epochs != 1 or start:
            raise UsageError("generators are walked once, from the beginning, or without end")
        count = order.count(self._rows)
        return self._by_number(count) if self.split == "test" else self._in_order(count)

    @property
    def remade_by(self) -> str:
        """Who may leave out rows, or make several of one, between the loader and the model."""
        return type(self.preprocessor).__name__

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows: of tests, those that came with them; of validation, the loader's index."""
        if any(int(row) not in self._ids for row in index):
            self._read_ids()
        return [self._ids[int(row)] for row in index]

    def fingerprint(self) -> str:
        """The loader's own `fingerprint(split)`, else a hash of the count and of the first data points."""
        own = getattr(self.loader, "fingerprint", None)
        if callable(own):
            return str(own(self.split))
        digest = hashlib.sha256(f"{len(self)}".encode())
        with own_randomness():
            seed_with_tensorflow(0)
            rows, self._fresh = self._fresh if self._fresh is not None else self.create()[0], None
            rows = rows.take(SAMPLED).as_numpy_iterator() if is_dataset(rows) else rows
            for row in itertools.islice(rows, min(SAMPLED, len(self))):
                update(digest, row)
        return digest.hexdigest()

    def prove(self) -> None:
        """Raise unless validation comes as it was said: so many rows, in an order that nobody changes.

        Its ids are those of the loader's index, so nothing but the order says which row is which.
        """
        if self._is_proven or self.split != "validation" or not len(self):
            return
        first, second = self._digests(0), self._digests(1)
        if len(first) < len(self):
            raise self._count_error(str(len(first) or "none"))
        moved = sum(a != b for a, b in itertools.zip_longest(first[: len(self)], second[: len(self)]))
        if moved:
            raise UsageError(
                f"{type(self.loader).__name__}.{METHODS[self.split]} gives {moved} of {len(self)} data "
                "points otherwise, or at another place, when it is called again, so that their ids cannot be "
                "told: it must not shuffle, nor go on where it stopped"
            )
        if first[len(self) :] not in ([], first[:1]):  # it may begin anew
            raise self._count_error("more")
        try:
            came = [batch.index.astype(np.float64) for batch in self._by_number(len(self))]
            numbers = np.concatenate(came) if came else np.zeros(0)
        except Lost:
            numbers = self._weights(len(self))  # somebody changes weights: their order is told from them
        if len(numbers) != len(self) or (np.diff(numbers) <= 0).any():
            lost = len(self) - len(np.unique(numbers))
            what = f"leaves out {lost} of {len(self)} data points" if lost > 0 else "changes the order"
            raise UsageError(
                f"{self.remade_by} {what} of the validation split, so their ids cannot be told: it must give "
                "every data point once, in the order in which they come"
            )
        self._is_proven = True

    def contents(self, most: int) -> Contents:
        """What the first data points hold, as the loader gives them."""
        with own_randomness():
            seed_with_tensorflow(0)
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            for number, row in enumerate(itertools.islice(rows, min(most, len(self)))):
                yield number, hash_row(row[:2])

    def _digests(self, number: int) -> list[bytes]:
        """A hash of every data point, and of what may come after the last one, under a seed of its own."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "proof", self.split, number))
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            return [hash_row(row[:2]) for row in itertools.islice(rows, len(self) + 1)]

    def renew(self) -> None:
        """Take the loader as it was at first: it may have shuffled its own lists meanwhile."""
        if self.make_loader is not None:
            self.loader = self.make_loader()

    # -- making generators ------------------------------------------------------------------------

    def create(self) -> tuple[Any, int]:
        """What the loader gives, after a look at its form."""
        method = METHODS[self.split]
        found = self.call(self.loader, method)
        name = f"{type(self.loader).__name__}.{method}"
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise UsageError(f"{name} must return a generator and the number of its rows, not {found!r:.80}")
        rows, count = found
        if not hasattr(count, "__index__") or count < 0:
            raise UsageError(f"{name} must return the number of data points second, not {count!r:.80}")
        if is_dataset(rows):
            self._check_row(rows.element_spec, name)
        elif not isinstance(rows, Iterable):
            raise UsageError(
                f"{name} must return a generator or a tf.data.Dataset first, not a {type(rows).__name__}"
            )
        else:
            rows = self._inspect(rows, name)
        return rows, int(count)

    def _inspect(self, rows: Iterable[Any], name: str) -> Iterator[Any]:
        first = True
        for row in rows:
            if first:
                self._check_row(row, name)
                first = False
            yield row

    def _check_row(self, row: Any, name: str) -> None:
        if not (isinstance(row, tuple | list) and len(row) == 3):
            count = f"{len(row)} values" if isinstance(row, tuple | list) else f"a {type(row).__name__}"
            raise UsageError(f"{name} must yield {ROW[self.split]}, but yields {count}")
        if row[2] is None:
            what = "an id" if self.split == "test" else "a weight: 1.0, if all rows count the same"
            raise UsageError(f"{name} must yield {ROW[self.split]}, but its third value is None; give {what}")

    def endless(self) -> Any:
        """The loader's rows, for training; a generator that ends is made anew."""
        rows, _ = self.create()
        if is_dataset(rows):
            return rows
        return self._repeat(rows)

    def _repeat(self, rows: Iterator[Any]) -> Iterator[Any]:
        self._taken, most = 0, 0
        while True:
            count = 0
            for row in rows:
                if not most:
                    size = sum(np.asarray(array).nbytes for _, array in nested.named_arrays(row[:2]))
                    most = WAITING // (size + 500) + 4 * self._rows + 100 * self.batch_size
                self._taken += 1
                if self._taken > most:
                    raise UsageError(
                        f"{self.remade_by} has taken {self._taken} data points without giving a batch: "
                        "the training generator is endless; do not exhaust it with list() or sorted()"
                    )
                yield (row[0], row[1], 1.0) if self.split == "test" else row
                count += 1
            if not count:
                raise self._count_error("none")
            rows, _ = self.create()

    def _pad(self) -> Any:
        """The loader's rows once, and some more to fill the last batch: their weights are no numbers."""
        rows, _ = self.create()
        padding = self._padding
        if is_dataset(rows):
            count = int(rows.cardinality())
            if 0 <= count != len(self):  # below 0 it is not known, or without end
                raise self._count_error(str(count))
            return rows.take(len(self)).concatenate(rows.take(padding).map(_without_weight))
        return itertools.chain(
            self._exactly(rows),
            (_without_weight(*row) for row in itertools.islice(self._repeat(self.create()[0]), padding)),
        )

    def _exactly(self, rows: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for row in itertools.islice(rows, len(self)):
            yield row
            count += 1
        if count < len(self):
            raise self._count_error(str(count) if count else "none")

    def _count_error(self, found: str) -> UsageError:
        name = f"{type(self.loader).__name__}.{METHODS[self.split]}"
        return UsageError(f"{name} says that there are {len(self)} data points, but yields {found}")

    def pipeline(self, rows: Any, has_weights: bool = True) -> tuple[Any, int]:
        """Augment, preprocess, batch. Where numbers stand in the place of weights, these are left alone."""
        if self.augmentor is not None:
            training = self.split == "train"
            rows = self.call(
                self.augmentor, "add_augmentation" if training else "add_validation_augmentation", rows
            )
        with contextlib.nullcontext() if has_weights else _weightless(self.preprocessor):
            found = self.call(self.preprocessor, "add_preprocess", rows, self._rows)
        name = f"{type(self.preprocessor).__name__}.batchify"
        if not (isinstance(found, tuple | list) and len(found) == 2 and hasattr(found[1], "__index__")):
            raise UsageError(f"{name} must return a generator of batches and how many make an epoch")
        if found[1] < 1:
            raise UsageError(f"{name} says that {found[1]} batches make an epoch")
        return found[0], int(found[1])

    def call(self, component: Any, method: str, *args: Any) -> Any:
        """Call a method of a component; what it raises names it."""
        try:
            return getattr(component, method)(*args)
        except ManyfitError:
            raise
        except Exception as error:
            folder = self.loader.data_dir
            hint = f" (there is no folder {folder})" if folder is not None and not folder.exists() else ""
            raise UsageError(
                f"{type(component).__name__}.{method} failed: {type(error).__name__}: {error}{hint}\n"
                f"  at {user_frame(error)}"
            ) from error

    # -- reading them -----------------------------------------------------------------------------

    def _in_order(self, count: int) -> Iterator[Batch]:
        """Every row once, known by its place; what a batch has beyond the last one is cut off."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "report", self.split))
            found = self._report
            if found is None:
                found, batches = self.pipeline(self._pad())
                if self._grown(batches):
                    found, _ = self.pipeline(self._pad())
                self._report = found if is_dataset(found) else None
        done = 0
        for values in self._pull(found):
            batch = self.batch(values, done)
            batch = batch if done + len(batch) <= count else batch.part(0, count - done)
            done += len(batch)
            if _has_padding(batch.weight):
                break
            yield batch
            if done >= count:
                return
        raise UsageError(f"{self.remade_by} gave batches with {done} data points, but there are {count}")

    def _by_number(self, count: int) -> Iterator[Batch]:
        """Rows in the order in which they come, known by the numbers that they carry."""
        for is_text in (True, False) if self._is_native and self.split == "test" else (False,):
            try:
                found, track, batches = self._number_rows(is_text)
                track.begin(count, batches)
                pulled = self._pull(found)
                first = next(pulled, None)
                if first is not None and self._grown(1, len(self.batch(first, 0))):
                    self._tracked = None  # there is too little to fill its last batch
                    return (yield from self._by_number(count))
                break
            except Exception:  # a preprocessor that wants numbers; what else is wrong is said the second time
                self._tracked = None
                if not is_text:
                    raise
        for values in itertools.chain([first] if first is not None else [], pulled):
            batch = self.batch(values, 0)
            try:
                numbers, own = track.take(values[2], len(batch))
            except Lost as error:
                raise Lost(
                    f"{self.remade_by} makes {error} of the third value of a data point, by which its id is "
                    "found again; weights may be changed in add_weight_preprocess"
                ) from None
            if self.split == "test":
                self._ids = track.ids
            if own.any():
                yield Batch(select_rows(batch.inputs, own), select_rows(batch.target, own), numbers[own])
            if track.is_over:
                break
        self._missing(track)

    def _missing(self, track: RowTracker) -> None:
        """A data set that does not know its length may have fewer rows than were said."""
        if track.times.all():
            return
        rows = self.create()[0]
        count = int(rows.reduce(np.int64(0), lambda n, _: n + 1)) if is_dataset(rows) else len(self)
        if count < len(self):
            raise self._count_error(str(count) if count else "none")

    def _number_rows(self, is_text: bool) -> tuple[Any, RowTracker, int]:
        """The pipeline of a report whose rows carry numbers, who counts them, and how many batches it has."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "report", self.split))
            if self._tracked is not None:
                self._tracked[1].forget()
                return self._tracked
            track = RowTracker(len(self), self._padding, self._count_error)
            rows, _ = self.create()
            if is_dataset(rows):
                is_text = is_text and self.split == "test" and track.takes_text(rows.element_spec[2])
                found, batches = self.pipeline(track.dataset(rows, is_text), has_weights=False)
                if self._grown(batches):
                    track = RowTracker(len(self), self._padding, self._count_error)
                    found, batches = self.pipeline(track.dataset(rows, is_text), has_weights=False)
                if is_dataset(found):
                    if is_text and found.element_spec[2].dtype.name != "string":
                        raise Lost("another type")
                    self._tracked = found, track, batches
            else:
                found, batches = self.pipeline(track.rows(rows, lambda: self.create()[0]), has_weights=False)
                self._grown(batches)
                track.padding = self._padding
            return found, track, batches

    def _grown(self, batches: int, rows: int | None = None) -> bool:
        """Whether batches turn out to be larger than the config says, so that more is needed to fill one."""
        size = -(-(len(self) if rows is None else rows) // batches)
        if size <= self._padding:
            return False
        self._padding = size
        return True

    def _weights(self, count: int) -> npt.NDArray[np.float64]:
        """What a preprocessor makes of increasing weights."""
        found, _, _ = self._number_rows(False)
        parts: list[Any] = []
        for values in self._pull(found):
            parts.append(np.asarray(values[2], dtype=np.float64).reshape(-1))
            if sum(map(len, parts)) >= count:
                break
        return np.concatenate(parts)[:count] if parts else np.zeros(0)

    def _pull(self, found: Any) -> Iterator[Any]:
        """Batches, until there are no more; what is drawn at random is a function of their number."""
        is_native = is_dataset(found)
        batches = found.as_numpy_iterator() if is_native else iter(found)
        for number in itertools.count():
            if is_native:
                values = self.next_of(batches)
            else:
                with own_randomness():
                    seed_for(derive(0, "report", self.split, number))
                    values = self.next_of(batches)
            if values is None:
                return
            yield values

    def next_of(self, batches: Iterator[Any]) -> Any:
        """The next batch; None at the end."""
        self._taken = 0
        try:
            return next(batches)
        except StopIteration:
            return None
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                return None  # a generator that asks another one for more than it has
            raise

    def batch(self, values: Any, done: int) -> Batch:
        """A batch as the preprocessor made it; a test has no weights."""
        if not (isinstance(values, tuple | list) and len(values) == 3):
            what = (
                f"{len(values)} parts" if isinstance(values, tuple | list) else f"a {type(values).__name__}"
            )
            name = type(self.preprocessor).__name__
            raise UsageError(f"the batches of {name} must be {ROW[self.split]}, but have {what}")
        inputs, target, third = values
        found = arrays(inputs)
        index = np.arange(done, done + nested.count_rows(found), dtype=np.int64)
        return Batch(found, arrays(target), index, None if self.split == "test" else arrays(third))

    def _read_ids(self) -> None:
        if self.split == "train":
            self._ids = {row: str(row) for row in range(len(self))}
        elif self.split == "validation":
            given = self.call(self.loader, "get_validation_index")
            given = range(len(self)) if given is None else given
            self._check_ids([id_text(id_) for id_ in given], "get_validation_index")
        else:
            rows = self.create()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            self._check_ids([id_text(row[2]) for row in itertools.islice(rows, len(self))], METHODS["test"])

    def _check_ids(self, ids: list[str], method: str) -> None:
        if len(ids) != len(self):
            name = f"{type(self.loader).__name__}.{method}"
            raise UsageError(f"{name} gives {len(ids)} ids for {len(self)} data points")
        self._ids = dict(enumerate(ids))


class Feed(Iterator[Batch]):
    """Training batches without end. A pipeline of TensorFlow can also be read as such, by `native`."""

    def __init__(self, source: ComponentSource, order: Order, start: int) -> None:
        self._source = source
        self._seed = order.seed or 0
        self._limited = order.limit is not None
        per_epoch = source.steps(order)
        self._length = per_epoch * (1 if self._limited else -(-SEGMENT // per_epoch))
        self._step = start
        self._left = 0
        self._batches: Iterator[Any] = iter(())
        self._is_native = False
        self._open()

    @property
    def framework(self) -> str:
        """TensorFlow, if the pipeline is one of `tf.data`."""
        return "tensorflow" if self._is_native else ""

    def native(self, most: int) -> tuple[Any, int]:
        """An iterator of TensorFlow, and how many batches may be taken from it now: at most so many."""
        if not self._left:
            self._open()
        count = min(most, self._left)
        self._step += count
        self._left -= count
        return self._batches, count

    def __next__(self) -> Batch:
        if not self._left:
            self._open()
        batch = self._source.batch(self._pull(self._step), 0)
        self._step += 1
        self._left -= 1
        return batch

    def _open(self) -> None:
        """Begin the segment of the next step, and read up to that."""
        segment, skipped = divmod(self._step, self._length)
        seed_with_tensorflow(derive(self._seed, "segment", 0 if self._limited else segment))
        self._source.renew()
        found, _ = self._source.pipeline(self._source.endless())
        self._left = self._length - skipped
        self._is_native = is_dataset(found)
        if skipped:
            log.info("reading and dropping %d batches, up to where the data stood", skipped)
        if skipped and self._is_native and found.options().deterministic is False:
            log.warning(
                "the pipeline of TensorFlow is not deterministic: going on within an epoch is not exact"
            )
        if self._is_native:
            self._batches = iter(found.repeat().skip(skipped).take(self._left).prefetch(2))
            return
        self._batches = iter(found)
        for step in range(self._step - skipped, self._step):
            self._pull(step)

    def _pull(self, step: int) -> Any:
        if not self._is_native:
            seed_for(derive(self._seed, "batch", step % self._length if self._limited else step))
        values = self._source.next_of(self._batches)
        if values is None:  # a batchify that ends is begun again
            self._batches = iter(self._source.pipeline(self._source.endless())[0])
            values = self._source.next_of(self._batches)
        if values is None:
            name = type(self._source.preprocessor).__name__
            raise UsageError(f"the batches of {name} have ended before the first one")
        return values


def seed_with_tensorflow(seed: int) -> None:
    """Seed every global generator, TensorFlow's too if it is there."""
    seed_for(seed)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed & 0x7FFF_FFFF)


def arrays(value: Any) -> Any:
    """Arrays, nested as they came, in single precision where they were in double."""
    if isinstance(value, dict):
        return {name: arrays(item) for name, item in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and value and hasattr(value[0], "shape")):
        return tuple(arrays(item) for item in value)
    found = np.asarray(value)
    return found.astype(np.float32) if found.dtype == np.float64 else found


def select_rows(value: Any, rows: npt.NDArray[np.bool_]) -> Any:
    """Some rows of arrays, nested as they are."""
    return value if rows.all() else nested.map_arrays(lambda array: array[rows], value)


@contextlib.contextmanager
def _weightless(preprocessor: Any) -> Iterator[None]:
    """A preprocessor that does nothing to weights."""
    preprocessor.add_weight_preprocess = lambda generator: generator
    try:
        yield
    finally:
        del preprocessor.add_weight_preprocess


def _without_weight(x: Any, y: Any, weight: Any) -> Any:
    """A data point that only fills a batch: its weight is no number, where a weight can be that."""
    if is_tensor(weight):
        tf: Any = sys.modules["tensorflow"]
        return (
            x,
            y,
            tf.fill(tf.shape(weight), tf.constant(np.nan, weight.dtype))
            if weight.dtype.is_floating
            else weight,
        )
    return x, y, weight * np.nan if isinstance(weight, float | np.floating | np.ndarray) else weight


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor of TensorFlow."""
    return hasattr(getattr(value, "dtype", None), "is_floating")


def _has_padding(weight: Any) -> bool:
    return weight is not None and np.asarray(weight).dtype.kind == "f" and bool(np.isnan(weight).any())
