"""Generators of one split: created by the loader, checked, augmented, preprocessed and batched."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.tracebacks import user_frame
from manyfit.data import nested
from manyfit.data.batch import Batch
from manyfit.data.order import Order
from manyfit.data.randomness import own_randomness, seed_for
from manyfit.pipeline.components import AugmentorBase, DataLoaderBase, PreprocessorBase

WAITING: Final = 1 << 30
"""Bytes of rows, beyond a few epochs and batches, that a preprocessor may consume before it yields a batch.
A shuffle buffer is smaller; a list of an endless generator is not."""
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
    """Return whether a value is a `tf.data.Dataset`."""
    return hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator")


@dataclass
class SplitGenerators:
    """The components of one split, and the generators that they return."""

    split: str
    loader: DataLoaderBase
    augmentor: AugmentorBase | None
    preprocessor: PreprocessorBase
    batch_size: int
    make_loader: Callable[[], DataLoaderBase] | None = None
    _fresh: Any = None
    """Rows that have not been read yet: creating them may take long."""
    _steps: int = 0
    _taken: int = 0
    """Rows that the preprocessor has consumed for its next batch."""

    def __post_init__(self) -> None:
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
        """Return the number of batches in an epoch, as `batchify` reports it."""
        return self._steps if order.limit is None else -(-order.count(self._rows) // self.batch_size)

    @property
    def remade_by(self) -> str:
        """The class that may drop or duplicate rows between the loader and the model."""
        return type(self.preprocessor).__name__

    def renew(self) -> None:
        """Restore the loader to its initial state: it may have shuffled its own lists since."""
        if self.make_loader is not None:
            self.loader = self.make_loader()

    def create(self) -> tuple[Any, int]:
        """Return the rows and the row count of the loader, after checking their structure."""
        method = METHODS[self.split]
        found = self.call(self.loader, method)
        name = f"{type(self.loader).__name__}.{method}"
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise UsageError(
                f"{name} must return a generator and its number of data points, not {found!r:.80}"
            )
        rows, count = found
        if not hasattr(count, "__index__") or count < 0:
            raise UsageError(
                f"{name} must return the number of data points as its second value, not {count!r:.80}"
            )
        if is_dataset(rows):
            self._check_row(rows.element_spec, name)
        elif not isinstance(rows, Iterable):
            raise UsageError(
                f"{name} must return a generator or a tf.data.Dataset as its first value, "
                f"not a {type(rows).__name__}"
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
            what = "an ID" if self.split == "test" else "a weight, 1.0 if all data points count equally"
            raise UsageError(
                f"{name} must yield {ROW[self.split]}, but its third value is None; yield {what}"
            )

    def endless(self) -> Any:
        """Return the loader's rows for training; a generator that ends is created again."""
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
                        f"{self.remade_by} has consumed {self._taken} data points without yielding a batch: "
                        "the training generator is endless; do not exhaust it with list() or sorted()"
                    )
                yield (row[0], row[1], 1.0) if self.split == "test" else row
                count += 1
            if not count:
                raise self._count_error("none")
            rows, _ = self.create()

    def _exactly(self, rows: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for row in itertools.islice(rows, len(self)):
            yield row
            count += 1
        if count < len(self):
            raise self._count_error(str(count) if count else "none")

    def _count_error(self, found: str) -> UsageError:
        name = f"{type(self.loader).__name__}.{METHODS[self.split]}"
        return UsageError(f"{name} reports {len(self)} data points, but yields {found}")

    def pipeline(self, rows: Any, has_weights: bool = True) -> tuple[Any, int]:
        """Augment, preprocess and batch rows. Without weights, the third value of a row is left unchanged."""
        if self.augmentor is not None:
            training = self.split == "train"
            rows = self.call(
                self.augmentor, "add_augmentation" if training else "add_validation_augmentation", rows
            )
        with contextlib.nullcontext() if has_weights else _weightless(self.preprocessor):
            found = self.call(self.preprocessor, "add_preprocess", rows, self._rows)
        name = f"{type(self.preprocessor).__name__}.batchify"
        if not (isinstance(found, tuple | list) and len(found) == 2 and hasattr(found[1], "__index__")):
            raise UsageError(f"{name} must return a generator of batches and the number of batches per epoch")
        if found[1] < 1:
            raise UsageError(f"{name} reports {found[1]} batches per epoch")
        return found[0], int(found[1])

    def call(self, component: Any, method: str, *args: Any) -> Any:
        """Call a method of a component; errors name the component."""
        try:
            return getattr(component, method)(*args)
        except ManyfitError:
            raise
        except Exception as error:
            folder = self.loader.data_dir
            hint = (
                f" (the folder {folder} does not exist)" if folder is not None and not folder.exists() else ""
            )
            raise UsageError(
                f"{type(component).__name__}.{method} failed: {type(error).__name__}: {error}{hint}\n"
                f"  at {user_frame(error)}"
            ) from error

    def next_of(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, or None at the end."""
        self._taken = 0
        try:
            return next(batches)
        except StopIteration:
            return None
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                return None  # a generator that called next() on an exhausted one
            raise

    def batch(self, values: Any, done: int) -> Batch:
        """Build a batch from the values of the preprocessor; the test split has no weights."""
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


def seed_with_tensorflow(seed: int) -> None:
    """Seed every global random generator, including TensorFlow's if it is imported."""
    seed_for(seed)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed & 0x7FFF_FFFF)


def arrays(value: Any) -> Any:
    """Convert values to arrays with the same nesting; double precision becomes single."""
    if isinstance(value, dict):
        return {name: arrays(item) for name, item in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and value and hasattr(value[0], "shape")):
        return tuple(arrays(item) for item in value)
    found = np.asarray(value)
    return found.astype(np.float32) if found.dtype == np.float64 else found


@contextlib.contextmanager
def _weightless(preprocessor: Any) -> Iterator[None]:
    """Disable the weight preprocessing of a preprocessor."""
    preprocessor.add_weight_preprocess = lambda generator: generator
    try:
        yield
    finally:
        del preprocessor.add_weight_preprocess


def is_tensor(value: Any) -> bool:
    """Return whether a value is a TensorFlow tensor."""
    return hasattr(getattr(value, "dtype", None), "is_floating")
