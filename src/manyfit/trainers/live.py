"""Copies of objects that live in this process, for runs whose config cannot rebuild them."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Final

from torch import nn

from manyfit.trainers.trainer import Trainer

COPIED: Final = "manyfit.trainers.live"
_known: dict[str, Any] = {}
_numbers = itertools.count(1)


def keep_live(trainer: Any) -> str:
    """Remember a trainer under a key."""
    key = trainer.__dict__.setdefault("_key", str(next(_numbers)))
    _known[key] = trainer
    return str(key)


def forget_live(key: str) -> None:
    """Forget a trainer."""
    _known.pop(key, None)


def copy_model(key: str) -> nn.Module:
    """Return a copy of the model of a trainer."""
    found: nn.Module = copy.deepcopy(_known[key].model)
    return found


def copy_trainer(key: str) -> Trainer:
    """Return a new trainer of the same class, with the same arguments."""
    known = _known[key]
    found: Trainer = type(known)(**known._given)
    return found
