"""A feeder over rows in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Gt

from manyfit.core.errors import UsageError
from manyfit.data.batch import Batch
from manyfit.data.feeders import Feeder, check_feeder, parameter_name, squeeze_target
from manyfit.data.order import Order
from manyfit.data.overlap import Contents
from manyfit.data.post_op import each_row, stack_values
from manyfit.data.resident import Resident
from manyfit.data.source import ArraySource

log = logging.getLogger("manyfit")


class MemorySamplesFeeder(Feeder):
    """A feeder over rows in memory: arrays, lists, pandas DataFrames, or dicts of columns."""

    takes_shards = True

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
        """Set the inputs `x` and the target `y`.

        Several columns (a dict, a DataFrame, rows that are dicts) are passed to the model by name. With
        `feed_as_dict`, so are the columns of an array: x0, x1 …

        `post_op` is applied to each row: `post_op(x, y)` returns both; without `y`, it is `post_op(x)`.
        """
        check_feeder(MemorySamplesFeeder.__init__, {k: v for k, v in locals().items() if k not in ("x", "y")})
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
                    f"y has several columns ({', '.join(target)}), so x must have named columns, too"
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
        self._rows = ArraySource(inputs, None if target is None else squeeze_target(target))

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield batches from step `start`."""
        own = self.order(order)
        found = self._rows.batches(own, start)
        if self.post_op is None:
            return found
        per_epoch = own.steps(len(self))
        return (
            self._apply_post_op(batch, step // per_epoch, order.seed)
            for step, batch in enumerate(found, start)
        )

    def resident(self, order: Order) -> Resident | str:
        """Return the columns, unless `post_op` makes other rows of them."""
        return "post_op is applied to each row" if self.post_op else self._rows.resident(self.order(order))

    def _apply_post_op(self, batch: Batch, epoch: int, seed: int | None) -> Batch:
        """Return the batch after `post_op` was applied to each of its rows."""
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
                raise UsageError("post_op must return (x, y), like its arguments")
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
        """Return the row numbers as text."""
        return self._rows.ids(index)

    def contents(self, most: int) -> Contents:
        """Yield the contents of at most `most` rows."""
        return self._rows.contents(most)

    def fingerprint(self) -> str:
        """Return a hash of every column."""
        return self._rows.fingerprint()


def _columns(given: Any, name: str) -> Any:
    """Return an array, or arrays by column name."""
    if hasattr(given, "to_dict") and hasattr(given, "columns"):  # a pandas DataFrame
        return {parameter_name(str(column)): _array(given[column], name) for column in given.columns}
    if isinstance(given, Mapping):
        return {parameter_name(str(key)): _array(column, f"{name}.{key}") for key, column in given.items()}
    if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
        keys = list(given[0])
        if any(set(row) != set(keys) for row in given):
            raise UsageError(
                f"the rows of {name} must all have the same columns: {', '.join(map(str, keys))}"
            )
        return {
            parameter_name(str(key)): _array([row[key] for row in given], f"{name}.{key}") for key in keys
        }
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
