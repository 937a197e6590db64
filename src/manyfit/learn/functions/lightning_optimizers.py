"""What `configure_optimizers` of a Lightning module returns, in all its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest

KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name", "reduce_on_plateau")


@dataclass
class Schedule:
    """A schedule, and when it is stepped."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None


def read_optimizers(found: Any, name: str) -> tuple[dict[str, Optimizer], list[Schedule]]:
    """Return the optimizers by name and the schedules."""
    where = f"{name}.configure_optimizers"
    optimizers: list[Optimizer] = []
    schedules: list[Schedule] = []
    if found is None:
        return {}, []
    if _is_pair(found):
        optimizers = list(found[0])
        schedules = [_schedule(each, where) for each in found[1]]
    else:
        for each in found if isinstance(found, list | tuple) else [found]:
            if isinstance(each, Mapping):
                unknown = [key for key in each if key not in ("optimizer", "lr_scheduler", "monitor")]
                if unknown or "optimizer" not in each:
                    raise UsageError(
                        f"{where}: a dict has optimizer and lr_scheduler, not {listing(list(each))}"
                    )
                optimizers.append(each["optimizer"])
                if each.get("lr_scheduler") is not None:
                    schedules.append(_schedule(each["lr_scheduler"], where, each.get("monitor")))
            else:
                optimizers.append(each)
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise UsageError(f"{where} returned {each!r:.60}, which is not an optimizer")
    return {f"optimizer_{i}": each for i, each in enumerate(optimizers)}, schedules


def _is_pair(found: Any) -> bool:
    return (
        isinstance(found, tuple | list)
        and len(found) == 2
        and all(isinstance(part, list | tuple) for part in found)
        and not any(isinstance(each, Optimizer) for each in found[1])
    )


def _schedule(given: Any, where: str, monitor: str | None = None) -> Schedule:
    options = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    for key in options:
        if key not in KEYS:
            best = nearest(key, KEYS)
            raise UsageError(
                f"{where}: a scheduler has no key {key!r}" + (f"; did you mean {best!r}?" if best else "")
            )
    interval = options.get("interval", "epoch")
    if interval not in ("epoch", "step"):
        raise UsageError(f"{where}: interval must be 'epoch' or 'step', not {interval!r}")
    made = Schedule(
        options.get("scheduler"), interval, int(options.get("frequency", 1)), options.get("monitor", monitor)
    )
    if not hasattr(made.scheduler, "step"):
        raise UsageError(f"{where}: {made.scheduler!r:.60} is not a scheduler")
    if isinstance(made.scheduler, ReduceLROnPlateau) and made.monitor is None:
        raise UsageError(
            f"{where}: ReduceLROnPlateau needs a monitor: {{'scheduler': ..., 'monitor': 'val_loss'}}"
        )
    return made
