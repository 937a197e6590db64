"""Rows divided into splits or folds: seeded, and stratified by a label on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive

RowNumbers: TypeAlias = npt.NDArray[np.int64]


def permute(rows: int, seed: int, purpose: str) -> RowNumbers:
    """Return the row numbers in an order that depends only on the seed and the purpose."""
    # RandomState's streams are frozen by NumPy's compatibility policy; Generator's methods are not.
    state = np.random.RandomState(np.random.MT19937(derive(seed, purpose)))
    return state.permutation(rows).astype(np.int64, copy=False)


def arrange(rows: int, seed: int, purpose: str, labels: Sequence[Any] | None = None) -> RowNumbers:
    """Return the row numbers shuffled; with labels, also sorted by them, each label in random order."""
    order = permute(rows, seed, purpose)
    if labels is None:
        return order
    _, codes = np.unique(np.asarray(labels), return_inverse=True)
    return order[np.argsort(codes[order], kind="stable")]


def assign_folds(rows: int, folds: int, seed: int = 0, labels: Sequence[Any] | None = None) -> RowNumbers:
    """Return the fold of each row. Folds differ in size by at most one row, and so does each label in them.

    >>> np.bincount(assign_folds(10, 3)).tolist()
    [4, 3, 3]
    """
    if not 2 <= folds <= rows:
        raise UsageError(f"{rows} rows cannot be divided into {folds} folds")
    found = np.empty(rows, dtype=np.int64)
    # Dealing out rows that are sorted by label, like cards, balances every label and the sizes of the folds.
    found[arrange(rows, seed, "folds", labels)] = np.arange(rows) % folds
    return found


def divide_rows(
    rows: int, validation: float, test: float, seed: int = 0, labels: Sequence[Any] | None = None
) -> dict[str, RowNumbers]:
    """Return the sorted row numbers of each split; `validation` and `test` are fractions of the rows."""
    if validation < 0 or test < 0 or validation + test >= 1:
        raise UsageError(
            f"validation + test must be at least 0 and less than 1 to leave rows for training, not "
            f"{validation} + {test}"
        )
    order = arrange(rows, seed, "split", labels)
    if labels is not None:  # each label is spread evenly over the whole range
        keys = np.empty(rows)
        _, codes, counts = np.unique(np.asarray(labels)[order], return_inverse=True, return_counts=True)
        within = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = (within + 0.5) / counts[codes]
        order = order[np.lexsort((permute(rows, seed, "ties"), keys))]  # rare labels tie: in random order
    first, second = round(rows * validation), round(rows * test)
    bounds = {"validation": (0, first), "test": (first, first + second), "train": (first + second, rows)}
    return {split: np.sort(order[begin:end]) for split, (begin, end) in bounds.items()}
