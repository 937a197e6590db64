"""Samplers of a user's loaders: their order as a function of (seed, epoch)."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from manyfit.core.seeds import derive
from manyfit.data.randomness import own_randomness, seed_for

log = logging.getLogger("manyfit")


class SeededSampler:
    """A sampler that is seeded for each epoch.

    What else it carries from epoch to epoch, such as a counter, is reproduced: to return an epoch out of
    turn, it is set back to what it was when it was made, and iterated once for each epoch before. Runs with
    different seeds that share a sampler pay for this in every epoch.
    """

    def __init__(self, sampler: Any, dataset: Any) -> None:
        self.sampler = sampler
        self._parts = _find_parts(sampler)
        self._here: tuple[int, int] | None = None
        """The seed and the epoch that the sampler returns next."""
        own = [each for each in self._parts if not type(each).__module__.startswith("torch.")]
        self._made: list[dict[str, Any]] | None = None
        shared = {id(each): each for each in (dataset, *self._parts)}
        try:
            self._made = [copy.deepcopy(vars(each), dict(shared)) for each in self._parts] if own else None
        except Exception as error:  # an object of the user's that cannot be copied
            log.warning(
                "the sampler %s cannot be copied (%s): if it changes from epoch to epoch, a resumed run "
                "reads other rows", type(sampler).__name__, error,
            )  # fmt: skip
        self._shared = shared

    def epoch(self, seed: int, epoch: int) -> list[Any]:
        """Return what the sampler yields in an epoch."""
        here, self._here = self._here, None
        if self._made is not None and here != (seed, epoch):
            for each, made in zip(self._parts, self._made, strict=True):
                each.__dict__.clear()
                each.__dict__.update(copy.deepcopy(made, dict(self._shared)))
            for before in range(epoch):
                self._iterate(seed, before)
        found = self._iterate(seed, epoch)
        self._here = (seed, epoch + 1)
        return found

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
        if any(each is known for known in found) or not hasattr(each, "__dict__"):
            continue
        found.append(each)
        waiting += [value for value in _iterate_values(each) if isinstance(value, Sampler)]
        waiting += [each.sampler] if hasattr(each, "sampler") else []
    return found


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yield the attributes of an object, and what lists and dicts among them hold."""
    for each in vars(value).values():
        yield each
        if isinstance(each, list | tuple) and len(each) < 100:
            yield from each
        elif isinstance(each, dict) and len(each) < 100:
            yield from each.values()


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
