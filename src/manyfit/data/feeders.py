"""Feeders: sources that define their own batch size and shuffling."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Gt

from manyfit.config.typed.arguments import check_arguments
from manyfit.config.typed.roles import FEEDER
from manyfit.core.errors import UsageError
from manyfit.data.batch import Batch
from manyfit.data.order import Order
from manyfit.data.source import Source, Split


class Feeder(ABC):
    """A source with its own batch size and order.

    With `shuffle`, training uses a true permutation of all rows, reshuffled every epoch. Evaluation reads
    every row exactly once, in storage order, and never drops an incomplete batch.
    """

    batch_size: int | None
    shuffle: bool
    drop_remainder: bool

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`."""

    @abstractmethod
    def ids(self, index: npt.NDArray[np.int64]) -> list[str]:
        """Return the IDs of some rows."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the contents."""

    def order(self, order: Order) -> Order:
        """Return the order of a run with the feeder's own settings applied."""
        training = order.seed is not None
        own = replace(
            order,
            batch_size=self.batch_size or order.batch_size,
            seed=order.seed if self.shuffle else None,
            drop_remainder=self.drop_remainder and training,
        )
        if training and own.drop_remainder and len(self) and not own.steps(len(self)):
            raise UsageError(
                f"drop_remainder leaves no batch: there are {own.count(len(self))} rows, and a batch has "
                f"{own.batch_size}"
            )
        return own

    def steps(self, order: Order) -> int:
        """Return the number of batches in an epoch."""
        return self.order(order).steps(len(self))


def check_feeder(target: Any, given: Mapping[str, Any]) -> None:
    """Check arguments from Python by the same rules as those from a config."""
    if given.get("max_examples") == -1:
        raise UsageError("max_examples must be greater than 0, not -1; to read all rows, leave it out")
    check_arguments(target, {name: value for name, value in given.items() if name != "self"})


def squeeze_target(label: Any) -> Any:
    """Return integer labels of shape (rows, 1) as shape (rows,): they are class numbers."""
    is_numbers = label.ndim == 2 and label.shape[1] == 1 and label.dtype.kind == "i"
    return label[:, 0] if is_numbers else label


def parameter_name(name: str) -> str:
    """Return the name of a feature as a valid parameter name.

    >>> parameter_name("image/encoded")
    'image_encoded'
    """
    made = re.sub(r"\W", "_", name)
    return f"_{made}" if made[:1].isdigit() else made


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
        """Return the rows of one split."""
        return self._splits[split]
