"""The kind of a field: part of the identity of a run, a budget, neither, or derived from other fields.

Marks are part of annotations: in manyfit's schema, in custom sections and in signatures of components::

    @dataclass
    class Augment:
        strength: float                                    # identity, the default
        workers: Annotated[int, Kind.NEUTRAL] = 2
        pixels: Annotated[int, Derived(lambda a: a.side ** 2)] = 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The effect of a field on a run."""

    IDENTITY = "identity"
    """A different value is a different run: the result changes."""
    BUDGET = "budget"
    """A different value extends or shortens the same run."""
    NEUTRAL = "neither"
    """A different value does not change the result: paths, logging, devices."""


class Verbatim:
    """A mark for a mapping passed on as written, as a `ConfigStruct`; `class` is an ordinary key in it."""


class FromProject:
    """A mark for text that names files, patterns or URLs; paths are relative to the project root."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A field that is computed once from the complete section and then frozen."""

    compute: Callable[[Any], Any]
