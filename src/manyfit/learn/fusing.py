"""Whether runs can train in one group, whose steps are computed in one pass: keys, and reasons why not."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Key:
    """What a run must have in common with others: runs with equal keys can train in one group."""

    content: Hashable


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a run cannot train in a group."""

    reason: str


class CompiledStore(Protocol):
    """Where compiled steps are kept."""

    def read(self, key: str) -> bytes | None:
        """Return what was written for a key, or None."""

    def write(self, key: str, data: bytes) -> None:
        """Keep what was compiled. This never fails."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a group is opened."""

    must_pay: bool = False
    """Whether it must be faster than its runs alone."""
    total: int | None = None
    """The step at which training ends, if it is known."""
    is_brief: bool = False
    """Whether it trains a few steps only, for which nothing is compiled."""
    waits: bool = True
    """Whether training waits for the device at its end; if not, others can launch their steps meanwhile."""
    compiled: str = ""
    """The mode in which the steps before were compiled, or `off`; empty if there were none."""
    store: CompiledStore | None = None
    """Where compiled steps are kept, besides the user's cache."""


class NotFusable(Exception):
    """Something that a group cannot do, or does with another result than its runs alone."""


class GroupFailed(Exception):
    """Error of a step of a whole group, with its cause. The runs can go on from their checkpoints."""
