"""Samplers of a user's loaders: their order as a function of (seed, epoch)."""

from __future__ import annotations

import copy
import hashlib
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from manyfit.core.seeds import derive
from manyfit.data.randomness import own_randomness, seed_for

log = logging.getLogger("manyfit")


MOST_VALUES: Final = 10_000
"""How many values of a sampler are looked at; those of a longer list hold no generators."""


class SeededSampler:
    """A sampler that is seeded for each epoch.

    What else it carries from epoch to epoch, such as a counter, is reproduced: to return an epoch out of
    turn, it is set back to what it was when it was made, and iterated once for each epoch before. Runs with
    different seeds that share a sampler pay for this in every epoch.
    """

    def __init__(self, sampler: Any, dataset: Any) -> None:
        self.sampler = sampler
        self._parts = _find_parts(sampler)
        self._shared = {id(each): each for each in (dataset, *self._parts)}
        self._here: tuple[int, int] | None = None
        """The seed and the epoch that the sampler returns next."""
        self._after = ""
        """What the sampler was after the last epoch."""
        self._has_warned = False
        self._made: list[dict[str, Any]] | None = None
        try:
            if any(not type(each).__module__.startswith("torch.") for each in self._parts):
                self._made = [self._copy(_read_attributes(each)) for each in self._parts]
        except Exception as error:  # an object of the user's that cannot be copied
            log.warning(
                "the sampler %s cannot be copied (%s): if it changes from epoch to epoch, a resumed run "
                "reads other rows", type(sampler).__name__, error,
            )  # fmt: skip

    def _copy(self, values: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(values, dict(self._shared))

    def epoch(self, seed: int, epoch: int) -> list[Any]:
        """Return what the sampler yields in an epoch."""
        here, self._here = self._here, None
        if here == (seed, epoch):
            self._check_changed()
        elif self._made is not None:
            for each, made in zip(self._parts, self._made, strict=True):
                _write_attributes(each, self._copy(made))
            for before in range(epoch):
                self._iterate(seed, before)
        found = self._iterate(seed, epoch)
        self._here, self._after = (seed, epoch + 1), self._digest()
        return found

    def _check_changed(self) -> None:
        """Say that a sampler was changed from outside, which a resumed run does not repeat."""
        if not self._has_warned and self._digest() != self._after:
            self._has_warned = True
            log.warning(
                "the sampler %s was changed between two epochs: a resumed run reads other rows, since a "
                "sampler is iterated again as it was made", type(self.sampler).__name__,
            )  # fmt: skip

    def _digest(self) -> str:
        """Return a hash of the numbers, texts and arrays of the sampler."""
        found = hashlib.sha256()
        for part in self._parts:
            for value in _iterate_values(part):
                if isinstance(value, bool | int | float | str):
                    found.update(repr(value).encode())
                elif hasattr(value, "detach") and hasattr(value, "cpu"):
                    found.update(value.detach().cpu().contiguous().numpy().tobytes())
                elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
                    found.update(value.tobytes())
        return found.hexdigest()

    def _iterate(self, seed: int, epoch: int) -> list[Any]:
        number = derive(seed, "sampler", epoch)
        with own_randomness():
            seed_for(number)
            for each in self._parts:
                for value in _iterate_values(each):
                    _reseed(value, number)
                if callable(getattr(each, "set_epoch", None)):
                    each.set_epoch(epoch)
            return list(self.sampler)


def _find_parts(sampler: Any) -> list[Any]:
    """Return a sampler and all samplers that it holds, each once."""
    from torch.utils.data import Sampler

    found: list[Any] = []
    waiting = [sampler]
    while waiting:
        each = waiting.pop()
        if any(each is known for known in found) or not _is_open(each):
            continue
        found.append(each)
        waiting += [value for value in _iterate_values(each) if isinstance(value, Sampler)]
        waiting += [each.sampler] if hasattr(each, "sampler") else []
    return found


def _is_open(value: Any) -> bool:
    """Return whether to look at the attributes of an object: it is neither a class nor data."""
    from torch.utils.data import Dataset

    is_data = isinstance(value, type | Dataset | np.ndarray) or hasattr(value, "numpy")
    return not is_data and (hasattr(value, "__dict__") or bool(_list_slots(value)))


def _list_slots(value: Any) -> list[str]:
    """Return the attributes that the classes of an object declare as slots."""
    slots = [vars(cls).get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _read_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name."""
    found = {name: getattr(value, name) for name in _list_slots(value) if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _write_attributes(value: Any, found: Mapping[str, Any]) -> None:
    """Set the attributes of an object to those that were read, and remove others."""
    for name in _read_attributes(value).keys() - found.keys():
        delattr(value, name)
    for name, item in found.items():
        object.__setattr__(value, name, item)


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yield what an object holds: its attributes, and what containers and plain objects among them hold."""
    waiting, seen = list(_read_attributes(value).values()), {id(value)}
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        each = waiting.pop()
        if id(each) in seen and not isinstance(each, bool | int | float | str):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, list | tuple | set | deque):
            waiting += list(each)[:MOST_VALUES]
        elif isinstance(each, Mapping):
            waiting += list(each.values())[:MOST_VALUES]
        elif _is_own(each):
            waiting += _read_attributes(each).values()


def _is_own(value: Any) -> bool:
    """Return whether an object is of a class of the user's, not of Python or a library of numbers."""
    if isinstance(value, SimpleNamespace):
        return True
    name = type(value).__module__.partition(".")[0]
    return name not in (*sys.stdlib_module_names, "torch", "numpy") and _is_open(value)


def _reseed(value: Any, seed: int) -> None:
    """Seed a generator of torch, Python or NumPy; leave anything else alone."""
    import torch

    if isinstance(value, torch.Generator):
        value.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    elif isinstance(value, random.Random):
        value.seed(seed)
    elif isinstance(value, np.random.RandomState):
        value.seed(seed & 0xFFFF_FFFF)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = type(value.bit_generator)(seed).state
