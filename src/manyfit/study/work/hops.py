"""The schedule of trials that hop from shard to shard: which trial visits which shard next, and where."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from manyfit.core.position import Position

VisitOrder: TypeAlias = Literal["cyclic", "free"]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, and the shards that it has."""

    name: str
    shards: tuple[int, ...]
    speed: float = 1.0
    """Relative to the others: of the free workers, the fastest takes the longest work."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The next visit of a trial."""

    trial: str
    shard: int
    worker: str


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a trial is: the open epoch, the shards that it has visited, and whether the last is complete."""

    epoch: int = 0
    path: tuple[int, ...] = ()
    is_within: bool = False
    closed: tuple[tuple[int, ...], ...] = ()
    """The shards of the epochs before, by epoch; empty where their order was cyclic."""
    is_measured: bool = True
    """Whether the validation at the end of the last epoch is complete, or not due."""
    measured: bytes = b""
    """What was collected from the first shards of its rows."""
    visited: int = 0
    """The number of these shards."""

    @staticmethod
    def read(position: Mapping[str, Any], is_measured: bool = True) -> Stage:
        """Return the stage of a position, as a manifest has it."""
        closed = tuple(tuple(shards) for shards in position.get("visits", ()))
        return Stage(
            int(position.get("epoch", 0)), tuple(position.get("path", ())), bool(position.get("within", 0)),
            closed, is_measured,
        )  # fmt: skip

    def next_shards(self, shards: int, first: int, order: VisitOrder, measured: int = 0) -> list[int]:
        """Return the shards that may be visited next; `measured` is the number of those of validation rows.

        >>> Stage(0, (2, 3)).next_shards(4, 2, "cyclic"), Stage(0, (2, 3)).next_shards(4, 2, "free")
        ([0], [0, 1])
        """
        if self.measures(measured):
            return [(first + self.visited) % measured]
        if self.is_within:
            return [self.path[-1]]
        done = set(self.path)
        cycle = ((first + len(done) + visit) % shards for visit in range(shards))
        left = (shard for shard in cycle if shard not in done)
        return [next(left)] if order == "cyclic" else list(left)

    def measures(self, measured: int) -> bool:
        """Return whether the next visit is to one of `measured` shards of validation rows."""
        return measured > 1 and not self.is_measured and not self.path

    def until(self, shards: int, measured: int = 0) -> Position:
        """Return the position at the end of the next visit; validation rows are visited last in an epoch."""
        if self.measures(measured):
            return Position(self.epoch - 1, shards + self.visited + 1)
        return Position(self.epoch, len(self.path) + (not self.is_within))

    def visits(self, shard: int) -> tuple[tuple[int, ...], ...]:
        """Return the shards that each epoch visits first, including the next one of the open epoch."""
        closed = (*self.closed, *((),) * (self.epoch - len(self.closed)))
        return (*closed, self.path if self.is_within else (*self.path, shard))

    def after(self, shard: int, shards: int) -> Stage:
        """Return the stage after a complete visit."""
        path = self.visits(shard)[-1]
        return Stage(self.epoch + 1) if len(path) == shards else Stage(self.epoch, path)


class Hops:
    """The trials that wait for a visit, as columns, so that a choice among thousands takes microseconds."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.trials: list[str] = []
        self.work: npt.NDArray[np.float64] = np.zeros(16)
        """The work that is left, in seconds."""
        self.open: npt.NDArray[np.bool_] = np.zeros((shards, 16), bool)
        """By shard: the waiting trials that may visit it next."""
        self.waiting: npt.NDArray[np.int64] = np.zeros(shards, np.int64)
        """By shard: the number of these trials."""
        self._rows: dict[str, int] = {}
        self._shards: dict[str, list[int]] = {}
        """By waiting trial: the shards that it may visit next."""

    def put(self, trial: str, shards: Iterable[int], work: float) -> None:
        """Let a trial wait for one of these shards."""
        self.remove(trial)
        row = self._rows.get(trial)
        if row is None:
            row = self._rows[trial] = len(self.trials)
            self.trials.append(trial)
            if row == len(self.work):
                self.work = np.concatenate([self.work, np.zeros_like(self.work)])
                self.open = np.concatenate([self.open, np.zeros_like(self.open)], axis=1)
        self.work[row] = work
        there = self._shards[trial] = list(shards)
        self.open[there, row] = True
        self.waiting[there] += 1

    @property
    def count(self) -> int:
        """The number of trials that wait."""
        return len(self._shards)

    def list_waiting(self, shard: int) -> list[str]:
        """Return the trials that may visit a shard next."""
        rows = np.flatnonzero(self.open[shard, : len(self.trials)])
        return [self.trials[row] for row in rows]

    def remove(self, trial: str) -> None:
        """Let a trial no longer wait."""
        there = self._shards.pop(trial, None)
        if there is not None:
            self.waiting[there] -= 1
            self.open[there, self._rows[trial]] = False


def pick(hops: Hops, free: Iterable[Worker]) -> Hop | None:
    """Return the next visit: for a free worker, the waiting trial with the longest work left.

    A pure function: it changes nothing. Free workers are given with the fastest first.
    """
    for worker in free:
        there = [shard for shard in worker.shards if hops.waiting[shard]]
        if not there:
            continue
        count = len(hops.trials)
        fits = hops.open[there[0], :count] if len(there) == 1 else hops.open[there, :count].any(axis=0)
        row = int(np.where(fits, hops.work[:count], -1.0).argmax())
        shard = next(shard for shard in there if hops.open[shard, row])
        return Hop(hops.trials[row], shard, worker.name)
    return None


def place_shards(
    names: Sequence[str],
    shards: int,
    speeds: Mapping[str, float] | None = None,
    *,
    replicas: int = 1,
    present: Collection[str] | None = None,
    holds: Mapping[str, Sequence[int]] | None = None,
) -> list[Worker]:
    """Distribute shards over workers; with more workers than shards, several workers have the same shard.

    With `replicas`, each shard is on that many workers. `present` are those of `names` that are there now, in
    the order of the result: the shards of the others are given to those that have the fewest. `holds` are
    shards that workers already have: they get as many as otherwise, but these first.

    >>> [worker.shards for worker in place_shards(["a", "b"], 3)]
    [(0, 2), (1,)]
    >>> [worker.shards for worker in place_shards(["a", "b", "c"], 2)]
    [(0,), (1,), (0,)]
    >>> [worker.shards for worker in place_shards(["a", "b", "c"], 3, replicas=2)]
    [(0, 1), (1, 2), (0, 2)]
    >>> [worker.shards for worker in place_shards(["a", "b", "c"], 3, present=["a", "c"])]
    [(0, 1), (2,)]
    >>> [worker.shards for worker in place_shards(["a", "b"], 3, holds={"b": [0]})]
    [(1, 2), (0,)]
    """
    count, known = len(names), speeds or {}
    own = [(i % shards,) if count >= shards else tuple(range(i, shards, count)) for i in range(count)]
    if holds:
        here = [name for name in names if present is None or name in present]
        own = _prefer(own, [holds.get(name, ()) if name in here else () for name in names])
    held = {
        name: {shard for more in range(min(replicas, count)) for shard in own[(i + more) % count]}
        for i, name in enumerate(names)
        if present is None or name in present
    }
    for shard in range(shards) if held else ():
        if not any(shard in there for there in held.values()):
            min(held.values(), key=len).add(shard)
    here = list(names) if present is None else list(present)
    return [Worker(name, tuple(sorted(held[name])), known.get(name, 1.0)) for name in here]


def _prefer(own: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return how shards are distributed if each worker gets as many as before, first those that it holds."""
    left = sorted(shard for shards in own for shard in shards)
    found: list[list[int]] = [[] for _ in own]
    for i in sorted(range(len(own)), key=lambda i: len(held[i])):  # who holds few has little choice
        found[i] = [shard for shard in dict.fromkeys(held[i]) if shard in left][: len(own[i])]
        for shard in found[i]:
            left.remove(shard)
    for shards, mine in zip(own, found, strict=True):
        while len(mine) < len(shards):
            mine.append(left.pop(0))
    return [tuple(sorted(mine)) for mine in found]
