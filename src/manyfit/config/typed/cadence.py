"""Cadences, how often something happens: `10ep`, `0.5ep`, `500ba` or `90s`."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, cast

ONE: Final = r"\d{1,12}(\.\d{1,12})?(ep|ba|s)"
PATTERN: Final = rf"^{ONE}$"
SEVERAL: Final = rf"^(auto|validation|{ONE})(, ?(auto|validation|{ONE}))*$"
"""Several cadences, of which the first one due applies; `auto` and `validation` are keywords."""


WORDS: Final = ("auto", "validation")


def parse_cadences(text: str) -> tuple[list[Cadence], list[str]]:
    """Parse several cadences: return the intervals and the keywords.

    >>> parse_cadences("100ba, validation")[1]
    ['validation']
    """
    parts = re.split(", ?", text)
    return [Cadence.parse(part) for part in parts if part not in WORDS], [p for p in parts if p in WORDS]


@dataclass(frozen=True, slots=True)
class Cadence:
    """An interval in epochs, batches (steps) or seconds. Exact: 0.1 epochs is a fraction, not a float."""

    amount: Fraction
    unit: Literal["ep", "ba", "s"]

    @staticmethod
    @functools.cache
    def parse(text: str) -> Cadence:
        """Parse one cadence.

        >>> Cadence.parse("0.5ep").next_after(0, steps_per_epoch=79)
        40
        """
        found = re.match(PATTERN, text)
        assert found is not None, text
        unit = cast(Literal["ep", "ba", "s"], found[2])
        return Cadence(Fraction(text[: -len(unit)]), unit)

    @property
    def by_time(self) -> bool:
        """Whether it depends on the clock."""
        return self.unit == "s"

    @property
    def seconds(self) -> float:
        """The interval in seconds; infinite if it is not in seconds."""
        return float(self.amount) if self.by_time else math.inf

    def steps(self, steps_per_epoch: int) -> Fraction:
        """Return the interval in steps."""
        return self.amount * (steps_per_epoch if self.unit == "ep" else 1)

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Return whether it is due at a step: the first step at or after a multiple of the interval."""
        if self.by_time or step == 0:
            return False
        interval = self.steps(steps_per_epoch)
        return step // interval > (step - 1) // interval

    def next_after(self, step: int, steps_per_epoch: int) -> int | None:
        """Return the next step at which it is due; None if it depends on the clock."""
        if self.by_time:
            return None
        interval = self.steps(steps_per_epoch)
        return math.ceil((step // interval + 1) * interval)
