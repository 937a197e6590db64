"""Overlap of splits: rows that two splits share, estimated within a few seconds."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

MOST: Final = 50_000
"""The largest number of rows of a split that are compared."""
SECONDS: Final = 2.0
"""The time limit for reading the rows of a split."""
TOLERATED: Final = 0.01
"""The share of duplicate rows that is considered accidental."""

Contents = Iterator[tuple[int, Hashable]]
"""Row numbers, each with a hash of the content that is valid within this process."""


@runtime_checkable
class Comparable(Protocol):
    """A source whose rows can be compared with those of another source."""

    def contents(self, most: int) -> Contents:
        """Yield row numbers and content hashes of at most `most` rows, before any random augmentation."""
        ...


@dataclass(frozen=True)
class Overlap:
    """Rows of a split that are also in another split, among those that were compared."""

    rows: Sequence[int]
    looked_at: int
    share: float
    """The estimated share of the split."""
    tolerated: float
    """The share that is expected, given the duplicates within the training split."""

    @property
    def is_error(self) -> bool:
        """Whether the overlap is too large to be accidental."""
        return self.share > self.tolerated


class Compared:
    """The rows of the training split, for comparison with other splits."""

    def __init__(self, train: Any) -> None:
        self.source = train
        self._seen: Counter[Hashable] | None = None

    def overlap(self, other: Any) -> Overlap | None:
        """Return the overlap of another split with the training split; None if they cannot be compared."""
        mine, theirs = indices_of(self.source), indices_of(other)
        if mine is not None and theirs is not None and mine[0] is theirs[0]:
            shared = np.flatnonzero(np.isin(theirs[1], mine[1]))
            return Overlap(shared.tolist(), len(theirs[1]), len(shared) / max(1, len(theirs[1])), 0.0)
        if not (isinstance(self.source, Comparable) and isinstance(other, Comparable)):
            return self._by_ids(other)
        if self._seen is None:
            self._seen = Counter(content for _, content in sample_contents(self.source))
        seen, found = self._seen, sample_contents(other)
        if not seen or not found:
            return None
        total: int = len(self.source)  # type: ignore[arg-type]
        part = min(1.0, seen.total() / total)
        rows = [row for row, content in found if content in seen]
        usual = sum(count for count in seen.values() if count > 1) / seen.total() / part
        by_content = Overlap(rows, len(found), len(rows) / len(found) / part, max(TOLERATED, 2 * usual))
        return by_content if by_content.is_error else self._by_ids(other) or by_content

    def _by_ids(self, other: Any) -> Overlap | None:
        """Return the rows whose IDs occur in the training split, even if their contents differ there."""
        mine, theirs = ids_of(self.source), ids_of(other)
        if mine is None or theirs is None:
            return None
        places = {id_: place for place, id_ in enumerate(mine)}
        rows = [row for row, id_ in enumerate(theirs) if id_ in places]
        # Numbers, and names in the same order in both splits, may simply restart in each split.
        if all(theirs[row].isdecimal() for row in rows):
            return None
        if 2 * sum(places[theirs[row]] == row for row in rows) >= len(rows):
            return None
        return Overlap(rows, len(theirs), len(rows) / len(theirs), 0.0)


def sample_contents(source: Comparable) -> list[tuple[int, Hashable]]:
    """Return the contents of as many rows as can be read within the time limit."""
    ends = time.monotonic() + SECONDS
    return list(itertools.takewhile(lambda _: time.monotonic() < ends, source.contents(MOST)))


def contents_of(source: Any, most: int) -> Contents:
    """Yield the contents of at most `most` rows of a source; nothing if they cannot be compared."""
    return iter(source.contents(most)) if isinstance(source, Comparable) else iter(())


def spread(rows: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most `most` row numbers: a random sample, but always the same one."""
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.RandomState(0).choice(rows, most, replace=False)).astype(np.int64)


def inner(source: Any) -> Any:
    """Return the innermost source, without its wrappers."""
    while getattr(source, "is_around", False):
        source = source.source
    return source


def ids_of(source: Any) -> Sequence[str] | None:
    """Return the IDs that were given to the rows of a source; None if there are none."""
    found: Sequence[str] | None = getattr(inner(source), "given_ids", None)
    return found


def indices_of(source: Any) -> tuple[Any, npt.NDArray[np.int64]] | None:
    """Return the underlying data set and the row numbers if a source is a `torch.utils.data.Subset`."""
    dataset: Any = getattr(inner(source), "dataset", None)
    index: Any = None
    while type(dataset).__name__ == "Subset" and hasattr(dataset, "indices"):
        own = np.asarray(dataset.indices, dtype=np.int64)
        index = own if index is None else own[index]
        dataset = dataset.dataset
    return None if index is None else (dataset, index)
