"""The names that Lightning modules log values under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def shorten_name(name: str) -> str:
    """Return a name without the split, which manyfit adds."""
    for prefix in ("train_", "val_", "test_", "valid_", "training_", "validation_"):
        name = name.removeprefix(prefix)
    return name


def normalize_name(name: str) -> str:
    """Return a name whose prefix, if it has one, is `train_` or `val_`."""
    for prefix, usual in (("training_", "train_"), ("validation_", "val_"), ("valid_", "val_")):
        if name.startswith(prefix):
            return usual + name.removeprefix(prefix)
    return name


def pick_numbers(returned: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the single numbers among what a step has returned, by short name."""
    numbers = {name: v for name, v in returned.items() if isinstance(v, Tensor) and v.numel() == 1}
    return {shorten_name(name): value for name, value in numbers.items()}
