"""The shards of a split: a fixed division of its rows, which belongs to the identity of the data."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive


@dataclass(frozen=True, slots=True)
class Layout:
    """A division of rows into shards. Every row is in exactly one shard.

    >>> layout = Layout.divide(10, 3, is_scattered=False)
    >>> layout.sizes, layout.rows(1).tolist()
    ((4, 3, 3), [4, 5, 6])
    """

    bounds: tuple[int, ...]
    """The position at which each shard begins, and the number of rows."""
    is_scattered: bool = True
    """Whether rows are assigned by a fixed permutation; otherwise a shard is a range of rows.

    Data sets are often sorted by class, and a model that visits one class at a time forgets the others.
    """
    most: int | None = None
    """The most rows of a shard that are used, to try something out; None for all."""

    @staticmethod
    def divide(rows: int, shards: int, is_scattered: bool = True) -> Layout:
        """Divide rows into shards of equal size, give or take one row."""
        if shards > rows:
            raise UsageError(f"{rows} rows cannot be divided into {shards} shards: a shard needs a row")
        least, more = divmod(rows, shards)
        sizes = [least + (shard < more) for shard in range(shards)]
        return Layout(tuple(np.cumsum([0, *sizes]).tolist()), is_scattered)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each shard."""
        whole = (end - begin for begin, end in pairwise(self.bounds))
        return tuple(size if self.most is None else min(size, self.most) for size in whole)

    def rows(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of a shard, in storage order."""
        begin = self.bounds[shard]
        end = begin + self.sizes[shard]
        if not self.is_scattered:
            return np.arange(begin, end, dtype=np.int64)
        return np.sort(_scatter(self.bounds[-1])[begin:end])

    def derive_fingerprint(self, whole: str) -> str:
        """Return the fingerprint of divided rows, from that of the rows."""
        text = f"{self.bounds} {self.is_scattered}" + (f" {self.most}" if self.most is not None else "")
        return f"{whole}:shards-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def layout_of(source: Any) -> Layout | None:
    """Return the shards into which the rows of a source are already divided; None if they are not."""
    found: Layout | None = getattr(source, "layout", None)
    return found if found is not None and found.shards > 1 else None


@functools.lru_cache(maxsize=4)
def _scatter(rows: int) -> npt.NDArray[np.int64]:
    # RandomState's streams are frozen by NumPy's compatibility policy; Generator's methods are not.
    state = np.random.RandomState(np.random.MT19937(derive(0, "shards", rows)))
    return state.permutation(rows).astype(np.int64, copy=False)
