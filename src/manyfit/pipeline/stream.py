"""Generators of data points as a source: positioned by (seed, step), walked once for a report.

A generator can only be read from its beginning. So a stream of training batches is cut into segments of whole
epochs, about 2,000 batches each; each begins with generators made anew under seeds of its own. A start in the
middle reads, and drops, what comes before it in its segment, and nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.seeds import derive
from manyfit.core.trace import user_frame
from manyfit.data.batch import Batch
from manyfit.data.dataset import SAMPLED, update
from manyfit.data.order import Order
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.pipeline.components import AugmentorBase, DataLoaderBase, PreprocessorBase

log = logging.getLogger("manyfit")

SEGMENT: Final = 2048
"""Batches after which generators are made anew, at the next end of an epoch."""
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

    def __post_init__(self) -> None:
        with own_randomness():
            seed_with_tensorflow(0)
            self._fresh, self._rows = self.created()
            self._steps = self.pipeline(self._fresh)[1] if self.split == "train" and self._rows else 0

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
        return self._once(order.count(self._rows))

    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """The ids of some rows: of tests, those that came with them; of validation, the loader's index."""
        if any(int(row) not in self._ids for row in index):
            self._read_ids()
        elif self.split == "test" and len(self._ids) == len(self) == len(index):
            self._check_ids([self._ids[row] for row in range(len(self))], METHODS["test"])
        return [self._ids[int(row)] for row in index]

    def fingerprint(self) -> str:
        """The loader's own `fingerprint(split)`, else a hash of the count and of the first data points."""
        own = getattr(self.loader, "fingerprint", None)
        if callable(own):
            return str(own(self.split))
        digest = hashlib.sha256(f"{len(self)}".encode())
        with own_randomness():
            seed_with_tensorflow(0)
            rows, self._fresh = self._fresh if self._fresh is not None else self.created()[0], None
            rows = rows.take(SAMPLED).as_numpy_iterator() if is_dataset(rows) else rows
            for row in itertools.islice(rows, min(SAMPLED, len(self))):
                update(digest, row)
        return digest.hexdigest()

    def check_count(self) -> None:
        """Count the data points of a report: the loader may have said that there are more."""
        rows = self.created()[0]
        count = (
            int(rows.cardinality()) if is_dataset(rows) else sum(1 for _ in itertools.islice(rows, len(self)))
        )
        if 0 <= count < len(self):
            raise self._miscounted(str(count) if count else "none")

    def renew(self) -> None:
        """Take a new loader, which knows nothing of what was made before: it may shuffle its own lists."""
        if self.make_loader is not None:
            self.loader = self.make_loader()

    # -- making generators ------------------------------------------------------------------------

    def created(self) -> tuple[Any, int]:
        """What the loader gives, after a look at its form."""
        method = METHODS[self.split]
        found = self.called(self.loader, method)
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
            rows = self._looked_at(rows, name)
        return rows, int(count)

    def _looked_at(self, rows: Iterable[Any], name: str) -> Iterator[Any]:
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

    def endless(self, once: bool = False) -> Any:
        """The loader's rows; a generator that ends is made anew. `once` says that they are for a report."""
        rows, _ = self.created()
        if not is_dataset(rows):
            return self._repeated(rows, once)
        count = int(rows.cardinality())
        if once and 0 <= count != len(self):  # below 0 it is not known, or without end
            raise self._miscounted(str(count))
        if self.split == "test":  # ids are no weights: a preprocessor could do anything to them
            one = np.float32(1)
            rows = rows.map(lambda x, y, id_: (x, y, one))
        return rows.repeat() if once else rows

    def _repeated(self, rows: Iterator[Any], once: bool) -> Iterator[Any]:
        while True:
            count = 0
            for row in rows:
                if once and self.split == "test" and count < len(self):
                    self._ids[count] = text(row[2])
                yield (row[0], row[1], 1.0) if self.split == "test" else row
                count += 1
            if not count or (once and count < len(self)):
                raise self._miscounted(str(count) if count else "none")
            rows, _ = self.created()

    def _miscounted(self, found: str) -> UsageError:
        name = f"{type(self.loader).__name__}.{METHODS[self.split]}"
        return UsageError(f"{name} says that there are {len(self)} data points, but yields {found}")

    def pipeline(self, rows: Any) -> tuple[Any, int]:
        """Augment, preprocess, batch."""
        if self.augmentor is not None:
            training = self.split == "train"
            rows = self.called(
                self.augmentor, "add_augmentation" if training else "add_validation_augmentation", rows
            )
        found = self.called(self.preprocessor, "add_preprocess", rows, self._rows)
        name = f"{type(self.preprocessor).__name__}.batchify"
        if not (isinstance(found, tuple | list) and len(found) == 2 and hasattr(found[1], "__index__")):
            raise UsageError(f"{name} must return a generator of batches and how many make an epoch")
        if found[1] < 1:
            raise UsageError(f"{name} says that {found[1]} batches make an epoch")
        return found[0], int(found[1])

    def called(self, component: Any, method: str, *args: Any) -> Any:
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

    def _once(self, count: int) -> Iterator[Batch]:
        """Every row once, in its order; what a batch has beyond them is cut off."""
        with own_randomness():
            seed_with_tensorflow(derive(0, "report", self.split))
            if self._report is None:
                found, _ = self.pipeline(self.endless(once=True))
                self._report = found if is_dataset(found) else None
            else:
                found = self._report
            batches = found.as_numpy_iterator() if is_dataset(found) else iter(found)
        done = 0
        for number in itertools.count():
            if done >= count:
                return
            if is_dataset(found):
                values = self.next_of(batches)
            else:
                with own_randomness():
                    seed_for(derive(0, "report", self.split, number))
                    values = self.next_of(batches)
            if values is None:
                name = type(self.preprocessor).__name__
                raise UsageError(f"{name} gave batches with {done} data points, but there are {count}")
            batch = self.batch(values, done)
            batch = batch if done + len(batch) <= count else batch.part(0, count - done)
            done += len(batch)
            yield batch

    def next_of(self, batches: Iterator[Any]) -> Any:
        """The next batch; None at the end."""
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
        first = found
        while isinstance(first, dict | tuple):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        index = np.arange(done, done + len(first), dtype=np.int64)
        return Batch(found, arrays(target), index, None if self.split == "test" else arrays(third))

    def _read_ids(self) -> None:
        if self.split == "train":
            self._ids = {row: str(row) for row in range(len(self))}
        elif self.split == "validation":
            given = self.called(self.loader, "get_validation_index")
            self._check_ids([text(id_) for id_ in given], "get_validation_index")
        else:
            rows = self.created()[0]
            rows = rows.as_numpy_iterator() if is_dataset(rows) else rows
            self._check_ids([text(row[2]) for row in itertools.islice(rows, len(self))], METHODS["test"])

    def _check_ids(self, ids: list[str], method: str) -> None:
        name = f"{type(self.loader).__name__}.{method}"
        if len(ids) != len(self):
            raise UsageError(f"{name} gives {len(ids)} ids for {len(self)} data points")
        if len(set(ids)) != len(ids):
            twice = next(id_ for id_, count in Counter(ids).items() if count > 1)
            raise UsageError(f"{name} gives the id {twice!r} more than once")
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
    def is_native(self) -> bool:
        """Whether `native` can be called."""
        return self._is_native

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
        batch = self._source.batch(self._pulled(self._step), 0)
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
            self._pulled(step)

    def _pulled(self, step: int) -> Any:
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


def text(id_: Any) -> str:
    """An id as text; bytes are decoded."""
    plain = id_.item() if hasattr(id_, "item") else id_
    return plain.decode(errors="replace") if isinstance(plain, bytes) else str(plain)
