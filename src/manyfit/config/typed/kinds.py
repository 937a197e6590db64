"""What a field is to a run: part of its identity, a budget, neither, or derived from other fields.

Marks stand in annotations, in manyfit's own schema, in users' sections and in components' signatures::

    @dataclass
    class Augment:
        strength: float                                    # identity, unless it says otherwise
        workers: Annotated[int, Kind.NEUTRAL] = 2
        pixels: Annotated[int, Derived(lambda a: a.side ** 2)] = 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How a change of a field changes a run."""

    IDENTITY = "identity"
    """Another value is another run: the result changes."""
    BUDGET = "budget"
    """Another value is more or less of the same run: it can be extended."""
    NEUTRAL = "neither"
    """Another value changes nothing about the result: paths, logging, devices."""


class Verbatim:
    """A mark for a mapping that is handed on as it was written: a `ConfigStruct`, in which `class` is a key
    like any other."""


class FromProject:
    """A mark for text that names files, with patterns or in a store: it counts from the project's root."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A field that is computed from the finished section, once; after that it is frozen."""

    compute: Callable[[Any], Any]
