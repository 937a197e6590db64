"""The plan of ETL: which rows are used, and in which file of which shard each of them is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.core.seeds import derive
from manyfit.data.etl.tables import EtlTable, downloads
from manyfit.data.etl.worker import EtlPart

Policy: TypeAlias = Literal["stop", "skip", "quarantine"]
MOST_ROWS: Final = 4096
"""The most rows of one file."""
LEAST_ROWS: Final = 64


@dataclass(frozen=True)
class EtlOptions:
    """How tables are divided and prepared."""

    fraction: float = 1.0
    """The share of the rows of each table that are used, chosen at random."""
    seed: int = 0
    shards: int = 2
    capacities: Sequence[float] = ()
    """The relative sizes of the shards; equal by default."""
    workers: int | None = None
    """The number of processes; by default, one per core."""
    on_error: Policy = "stop"
    """What to do if a row cannot be prepared: stop, leave it out, or also write it to a file."""


def check_options(options: EtlOptions) -> None:
    """Raise an error for impossible options."""
    numbers = (options.fraction, *options.capacities)
    if not all(isinstance(number, int | float | np.number) for number in numbers):
        raise UsageError(f"fraction and capacities must be numbers, not {list(numbers)}")
    if type(options.shards) is not int or type(options.workers or 1) is not int or (options.workers or 1) < 1:
        raise UsageError(
            f"shards and workers must be positive integers, not {options.shards!r} and {options.workers!r}"
        )
    if options.on_error not in get_args(Policy):
        raise UsageError(f"on_error must be one of {', '.join(get_args(Policy))}, not {options.on_error!r}")
    if not 0 < options.fraction <= 1:
        raise UsageError(f"fraction must be greater than 0 and at most 1, not {options.fraction}")
    if options.shards < 1:
        raise UsageError(f"shards must be at least 1, not {options.shards}")
    given = options.capacities
    if given and (len(given) != options.shards or min(given) <= 0 or not all(map(math.isfinite, given))):
        raise UsageError(
            f"capacities must be {options.shards} positive numbers, one for each shard, not {list(given)}"
        )


@dataclass(frozen=True)
class PlannedPart:
    """A part, and the rows of a table that it has."""

    part: EtlPart
    table: EtlTable
    index: Sequence[int]

    @property
    def key(self) -> tuple[str, str]:
        """The split, and the name of the file."""
        return self.part.mode, self.part.name

    def fill(self) -> EtlPart:
        """Return the part with its rows."""
        return replace(self.part, rows=self.table.take(self.index))


def plan_parts(spec: Any, table: EtlTable, folder: Path, options: EtlOptions) -> Iterator[PlannedPart]:
    """Yield the parts of a table: each row is in exactly one. It does not depend on the number of workers."""
    place = folder / table.mode
    place.mkdir(exist_ok=True)
    rows = choose_rows(table, options)
    size = max(LEAST_ROWS, min(MOST_ROWS, len(rows) // 64))
    columns = downloads(spec)
    begin = 0
    for shard, count in enumerate(divide(len(rows), options)):
        for number, at in enumerate(range(begin, begin + count, size)):
            index = rows[at : min(at + size, begin + count)]
            part = EtlPart(
                str(place), f"{shard:05d}-{number:05d}.arrow", table.mode, table.object_dir,
                [table.ids[i] for i in index], (), columns, options.on_error == "stop",
                derive(options.seed, "etl", table.mode),
            )  # fmt: skip
            yield PlannedPart(part, table, index)
        begin += count


def choose_rows(table: EtlTable, options: EtlOptions) -> list[int]:
    """Return the rows of a table that are used: shuffled for training, in their order otherwise."""
    seed = derive(options.seed, "rows", table.mode)
    order = np.random.RandomState(np.random.MT19937(seed)).permutation(len(table))
    chosen = order[: max(1, round(options.fraction * len(table)))]
    return [int(row) for row in (chosen if table.mode == "train" else np.sort(chosen))]


def divide(rows: int, options: EtlOptions) -> list[int]:
    """Return the sizes of the shards, in proportion to their capacities; fewer than planned for few rows.

    >>> divide(10, EtlOptions(shards=3, capacities=(2, 1, 1)))
    [5, 3, 2]
    """
    count = min(options.shards, rows)
    weights = np.asarray(options.capacities or [1.0] * options.shards, dtype=float)[:count]
    exact = weights / weights.sum() * rows
    sizes = np.floor(exact).astype(int)
    for i in np.argsort(sizes - exact, kind="stable")[: rows - int(sizes.sum())]:
        sizes[i] += 1
    while sizes.min() < 1:
        sizes[sizes.argmin()] += 1
        sizes[sizes.argmax()] -= 1
    return [int(size) for size in sizes]
