"""Cross-validation: the rows that are not test rows, divided into folds, of which one is for validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data.dataset import DatasetSource
from manyfit.data.nested import concatenate, is_nested, map_arrays, named_arrays, shapes
from manyfit.data.source import ArraySource, Source, gather, once
from manyfit.data.splitting import RowNumbers, assign_folds


def make_fold(
    sources: Sequence[Source], fold: int, folds: int, seed: int = 0, stratify: str | None = None
) -> tuple[Source, Source]:
    """Return the training and the validation rows of a fold of the rows of some sources, taken together."""
    pool = join_sources(sources)
    labels: Any = None if stratify is None else read_labels(pool, stratify)
    which = assign_folds(len(pool), folds, seed, labels)
    return pool.take(np.flatnonzero(which != fold)), pool.take(np.flatnonzero(which == fold))


class ArrayPool:
    """The rows of several sources of arrays."""

    def __init__(self, sources: Sequence[ArraySource]) -> None:
        first, *rest = sources
        for other in rest:
            if shapes(other.inputs) != shapes(first.inputs) or shapes(other.target) != shapes(first.target):
                raise UsageError("the training and the validation rows have different shapes")
        self.inputs = concatenate([each.inputs for each in sources])
        self.target = concatenate([each.target for each in sources])
        self.weight = concatenate([each.weight for each in sources])
        self.ids = [id_ for each in sources for id_ in each.ids(np.arange(len(each)))]
        if len(set(self.ids)) != len(self.ids):  # each split counts its rows from 0
            self.ids = [str(row) for row in range(len(self.ids))]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: RowNumbers) -> ArraySource:
        """Return some rows."""
        inputs, target, weight = (
            map_arrays(lambda array: gather(array, rows), each)
            for each in (self.inputs, self.target, self.weight)
        )
        return ArraySource(inputs, target, [self.ids[row] for row in rows.tolist()], weight)


class PooledRows:
    """Some rows of several map-style data sets."""

    def __init__(self, datasets: Sequence[Any], rows: RowNumbers, ids: Sequence[str]) -> None:
        self.datasets = datasets
        self.rows = rows
        self.ids = list(ids)
        self._ends = np.cumsum([len(each) for each in datasets])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        place = int(self.rows[row])
        which = int(np.searchsorted(self._ends, place, side="right"))
        return self.datasets[which][place - (int(self._ends[which - 1]) if which else 0)]


class DatasetPool:
    """The rows of several map-style data sets."""

    def __init__(self, sources: Sequence[DatasetSource]) -> None:
        self.sources = sources
        self.ids = [id_ for each in sources for id_ in each.ids(np.arange(len(each)))]
        if len(set(self.ids)) != len(self.ids):
            self.ids = [str(row) for row in range(len(self.ids))]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: RowNumbers) -> DatasetSource:
        """Return some rows."""
        datasets = [each.dataset for each in self.sources]
        chosen = PooledRows(datasets, rows, [self.ids[row] for row in rows.tolist()])
        return self.sources[0].over(chosen)


def join_sources(sources: Sequence[Source]) -> ArrayPool | DatasetPool:
    """Return the rows of several sources together; only rows that can be read in any order can be joined."""
    if all(isinstance(each, ArraySource) for each in sources):
        return ArrayPool([each for each in sources if isinstance(each, ArraySource)])
    found = [each for each in sources if isinstance(each, DatasetSource) and each.can_be_joined]
    if len(found) == len(sources):
        return DatasetPool(found)
    names = listing(sorted({type(each).__name__ for each in sources}))
    raise UsageError(
        f"rows cannot be divided into folds if they come from {names}, which decides on their order"
    )


def read_labels(pool: ArrayPool | DatasetPool, name: str) -> npt.NDArray[Any]:
    """Return the values that folds are balanced by: the target, or a target or an input of this name."""
    if isinstance(pool, ArrayPool):
        inputs, target = pool.inputs, pool.target
    else:
        batches = list(once(pool.take(np.arange(len(pool))), 256))
        inputs = concatenate([map_arrays(np.asarray, batch.inputs) for batch in batches])
        target = concatenate([map_arrays(np.asarray, batch.target) for batch in batches])
    known = dict(named_arrays(inputs)) if is_nested(inputs) else {}
    known |= dict(named_arrays(target)) if is_nested(target) else {"target": target}
    labels = known.get(name)
    if labels is None:
        names = [key for key, value in known.items() if value is not None]
        best = nearest(name, names)
        hint = f"did you mean {best!r}?" if best else f"there are {listing(names) or 'no targets'}"
        raise UsageError(f"stratify: the rows have no {name!r}; {hint}")
    labels = np.asarray(labels)
    if labels.ndim != 1 or (not np.issubdtype(labels.dtype, np.integer) and labels.dtype.kind not in "USOb"):
        raise UsageError(
            f"stratify: {name!r} has {labels.dtype} of shape {labels.shape[1:]}, not one class per row"
        )
    return labels
