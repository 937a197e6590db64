"""The shards of the training rows: given in the config, or by the data itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from manyfit.config import Config
from manyfit.core.errors import UsageError
from manyfit.data.layout import Layout
from manyfit.data.order import Order


def find_layout(config: Config, source: Any, batch_size: int) -> Layout | None:
    """Return how training rows are divided into shards; None if they are not.

    A limit on training rows is divided among the shards.
    """
    own: Layout | None = getattr(source, "layout", None)
    wanted = config.run.data.beside.get("shards")
    first = config.run.data.beside.get("first_shard")
    if own is None and wanted is None:
        if first:
            where = config.origin("data.first_shard")
            raise UsageError(f"{where}: data.first_shard: the data has no shards; set data.shards")
        return None
    where = config.origin("data.shards") or config.run.data.origin
    if own is not None and wanted is not None and wanted != own.shards:
        raise UsageError(f"{where}: data.shards: the data is already divided into {own.shards} shards")
    if own is None and not getattr(type(source), "takes_shards", False):
        raise UsageError(
            f"{where}: data.shards: a {type(source).__name__} cannot be divided into shards, because its "
            "rows cannot be read in any order; use arrays, a map-style data set or TFRecord files"
        )
    limit = config.run.train.limit
    if limit.overfit is not None:
        raise UsageError(
            f"{config.origin('train.limit.overfit') or where}: train.limit.overfit: rows that are divided "
            "into shards cannot be overfitted; remove it, or data.shards"
        )
    try:
        is_scattered = not getattr(source, "is_read_in_ranges", False)
        found = own or Layout.divide(len(source), wanted or 1, is_scattered)
    except UsageError as error:
        raise UsageError(f"{where}: data.shards: {error}") from None
    if first is not None and first >= found.shards:
        raise UsageError(
            f"{config.origin('data.first_shard')}: data.first_shard: there are {found.shards} shards, "
            f"numbered from 0, so there is no shard {first}"
        )
    if limit.train is None:
        return found
    return replace(found, most=max(1, -(-limit.train * batch_size // found.shards)))


def find_visits(config: Config, layout: Layout | None) -> tuple[tuple[int, ...], ...]:
    """Return the shards that each epoch visits first, as the config gives them."""
    given = config.run.data.beside.get("visits") or ()
    where = config.origin("data.visits")
    if given and layout is None:
        raise UsageError(f"{where}: data.visits: the data has no shards; set data.shards")
    for number, shards in enumerate(given):
        wrong = [shard for shard in shards if layout is None or not 0 <= shard < layout.shards]
        if wrong or len(set(shards)) < len(shards):
            reason = f"there is no shard {wrong[0]}" if wrong else "a shard is visited once in an epoch"
            raise UsageError(f"{where}: data.visits[{number}]: {list(shards)}: {reason}")
    return tuple(tuple(shards) for shards in given)


def check_visits(config: Config, order: Order) -> None:
    """Raise an error for a shard without a batch."""
    for shard, size in enumerate(order.layout.sizes) if order.layout is not None else ():
        if not order.batches_of(size):
            where = config.origin("data.shards") or config.run.data.origin
            raise UsageError(
                f"{where}: data.shards: drop_remainder leaves no batch of shard {shard}, which has {size} "
                f"rows: a batch has {order.batch_size}"
            )
