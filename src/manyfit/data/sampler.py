"""Samplers of a user's loaders: their order as a function of (seed, epoch)."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
        self._shared = {id(each): each for each in (dataset, *self._parts, *_find_kept(self._parts))}
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
                _set_back(each, self._copy(made))
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
        import torch

        found = hashlib.sha256()
        for value in (value for part in self._parts for value in _iterate_values(part)):
            if isinstance(value, bool | int | float | str):
                found.update(repr(value).encode())
            elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
                found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
                found.update(value.tobytes())
        return found.hexdigest()

    def _iterate(self, seed: int, epoch: int) -> list[Any]:
        number = derive(seed, "sampler", epoch)
        with own_randomness():
            seed_for(number)
            values = (value for each in self._parts for value in _iterate_values(each))
            for place, value in enumerate(value for value in values if _is_generator(value)):
                _reseed(value, derive(number, "generator", place))
            for each in self._parts:
                if callable(getattr(each, "set_epoch", None)):
                    each.set_epoch(epoch)
            return list(self.sampler)


def _find_parts(sampler: Any) -> list[Any]:
    """Return a sampler and all plain objects that it holds, other samplers among them, each once."""
    found: list[Any] = []
    waiting = [sampler]
    while waiting:
        each = waiting.pop()
        if any(each is known for known in found):
            continue
        found.append(each)
        waiting += [value for value in _iterate_values(each) if _is_part(value)]
    return found


def _find_kept(parts: Sequence[Any]) -> list[Any]:
    """Return what samplers hold but do not own: data sets and modules."""
    return [value for part in parts for value in _iterate_values(part) if _is_foreign(value)]


def _is_foreign(value: Any) -> bool:
    from torch import nn
    from torch.utils.data import Dataset

    return isinstance(value, Dataset | nn.Module)


def _is_part(value: Any) -> bool:
    """Return whether to look at the attributes of an object: a sampler, or an object of the user's."""
    from torch.utils.data import Sampler

    if isinstance(value, Sampler | SimpleNamespace):
        return True
    name = type(value).__module__.partition(".")[0]
    if isinstance(value, type) or _is_foreign(value) or name in (*sys.stdlib_module_names, "torch", "numpy"):
        return False
    return hasattr(value, "__dict__") or bool(_list_slots(value))


def _list_slots(value: Any) -> list[str]:
    """Return the attributes that the classes of an object declare as slots."""
    slots = [vars(cls).get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _read_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name."""
    found = {name: getattr(value, name) for name in _list_slots(value) if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _set_back(value: Any, made: Mapping[str, Any]) -> None:
    """Set the attributes of an object to those that it was made with; what others may share, in place."""
    now = _read_attributes(value)
    for name in now.keys() - made.keys():
        delattr(value, name)
    for name, item in made.items():
        object.__setattr__(value, name, _fill(now.get(name), item))


def _fill(now: Any, made: Any) -> Any:
    """Return `made`, or `now` with its contents."""
    import torch

    if type(now) is not type(made) or now is made:
        return made
    if isinstance(now, torch.Tensor) and now.shape == made.shape and now.dtype == made.dtype:
        with torch.no_grad():
            now.copy_(made)
    elif isinstance(now, np.ndarray) and now.shape == made.shape and now.dtype == made.dtype:
        now[...] = made
    elif isinstance(now, list):
        now[:] = made
    elif isinstance(now, dict | set):
        now.clear()
        now.update(made)
    elif isinstance(now, torch.Generator):
        now.set_state(made.get_state())
    else:
        return made
    return now


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object, and what containers among them hold."""
    waiting, seen = list(_read_attributes(value).values()), set[int]()
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, list | tuple | set | deque):
            waiting += itertools.islice(each, MOST_VALUES)
        elif isinstance(each, Mapping):
            waiting += itertools.islice(each.values(), MOST_VALUES)


def _is_generator(value: Any) -> bool:
    import torch

    kinds = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
    return isinstance(value, kinds)


def _reseed(value: Any, seed: int) -> None:
    """Seed a generator of torch, Python or NumPy."""
    import torch

    if isinstance(value, torch.Generator):
        value.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    elif isinstance(value, random.Random):
        value.seed(seed)
    elif isinstance(value, np.random.RandomState):
        value.seed(seed & 0xFFFF_FFFF)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = type(value.bit_generator)(seed).state
