"""The search space of a study. It consists of axes; each option of an axis is a patch of the base config.

::

    space:
      train.optimizer.lr: {log: [1e-4, 1e-1]}          # also linear, int; step, points (of a grid), when
      model.hidden: [64, 128, 256]                     # categories: values, or whole sub-configs
      model.heads: {values: [2, 4], when: {model.class: models.Attention}}
      zip: {data.batch_size: [32, 64], train.accumulate: [2, 1]}    # in parallel, not crossed
      list: [{model.hidden: 64}, {model.hidden: 128, model.dropout: 0.2}]
      ablate: {model.dropout: 0.0, train.optimizer.weight_decay: 0.0}  # the base, then one change at a time
      constraints: ["model.hidden * data.batch_size <= 8192"]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from manyfit.config.tree.expressions import Expression
from manyfit.config.tree.nodes import PYTHON, Leaf, Map, Node, child, class_word, from_plain, plain
from manyfit.config.tree.overrides import Override, split
from manyfit.core.errors import ConfigError, Origin, Problem

RANGES: Final = ("linear", "log", "int")
WORDS: Final = (*RANGES, "values", "step", "points", "when")
SPECIAL: Final = ("zip", "list", "ablate", "constraints")
MOST_POINTS: Final = 1_000_000
MOST_TURNS: Final = 16
"""Number of combinations tried to find one that satisfies the constraints."""

Patch: TypeAlias = Mapping[str, Node]
Choice: TypeAlias = int | float
"""The index of an option on its axis, or a number of a range."""


@dataclass(frozen=True)
class Range:
    """The numbers from low to high, inclusive."""

    low: float
    high: float
    kind: Literal["linear", "log", "int"]
    step: float | None = None
    points: int | None = None
    log: bool = False

    def grid(self) -> list[float]:
        """Return the grid values; empty if their number is not defined."""
        if self.points is not None and not self.step:
            count, low, high = self.points, self.low, self.high
            if count == 1:
                values = [low]
            elif self.log:
                first, last = math.log(low), math.log(high)
                values = [math.exp(first + (last - first) * i / (count - 1)) for i in range(count)]
                values[0], values[-1] = low, high
            else:
                values = [low + (high - low) * i / (count - 1) for i in range(count)]
        elif self.step or (self.kind == "int" and not self.log):
            step = self.step or 1
            values = [self.low + i * step for i in range(int((self.high - self.low) / step + 1e-9) + 1)]
        else:
            return []
        return list(dict.fromkeys(map(self.tidy, values)))

    def holds(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else int | float):
            return False
        step = self.step or (1 if self.kind == "int" else None)
        places = (value - self.low) / step if step else 0.0
        return bool(self.low <= value <= self.high and abs(places - round(places)) < 1e-6)

    def count(self) -> int:
        """Return the number of grid values; 0 if it is not defined."""
        if self.points is not None and not self.step:
            return self.points
        if self.step or (self.kind == "int" and not self.log):
            return int((self.high - self.low) / (self.step or 1) + 1e-9) + 1
        return 0

    def tidy(self, value: float) -> float:
        """Round a number: to an integer for `int`, else to 12 significant digits."""
        return round(value) if self.kind == "int" else float(f"{value:.12g}")


@dataclass(frozen=True)
class Axis:
    """One dimension of the search space: options, each a patch of the base, or a range for one key."""

    name: str
    origin: Origin
    options: tuple[Patch, ...] = ()
    range: Range | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All keys that it sets."""
        if self.range is not None:
            return [self.name]
        return list(dict.fromkeys(key for option in self.options for key in option))

    def choices(self) -> list[Choice]:
        """Return the choices of a grid."""
        return list(self.range.grid()) if self.range is not None else list(range(len(self.options)))

    def ends(self) -> list[Choice]:
        """Return the choices to check before sampling: every option, both ends of a range."""
        if self.range is not None:
            return [self.range.tidy(self.range.low), self.range.tidy(self.range.high)]
        return list(range(len(self.options)))

    def patch(self, choice: Choice) -> Patch:
        """Return the patch of a choice."""
        if self.range is not None:
            return {self.name: Leaf(choice, self.origin)}
        return self.options[int(choice)]


@dataclass(frozen=True)
class Space:
    """All axes, ordered so that a condition follows the axes it depends on, and the constraints."""

    axes: tuple[Axis, ...]
    constraints: tuple[tuple[Expression, Origin], ...] = ()
    origin: Origin = PYTHON

    @property
    def keys(self) -> list[str]:
        """All keys that the axes set."""
        return list(dict.fromkeys(key for axis in self.axes for key in axis.keys))

    @property
    def has_conditions(self) -> bool:
        """Whether some combinations are not points."""
        return bool(self.constraints) or any(axis.when for axis in self.axes)

    def grid(self, base: Callable[[str], Any]) -> Iterator[Patch]:
        """Yield every point, the first axis varying slowest; `base` returns values not set by the space."""
        for patch in self._grid(0, {}, base):
            if self.allows(patch, base):
                yield patch

    def _grid(self, depth: int, so_far: Patch, base: Callable[[str], Any]) -> Iterator[Patch]:
        if depth == len(self.axes):
            yield so_far
            return
        axis = self.axes[depth]
        if not self.is_active(axis, so_far, base):
            yield from self._grid(depth + 1, so_far, base)
            return
        for choice in axis.choices():
            yield from self._grid(depth + 1, {**so_far, **axis.patch(choice)}, base)

    def is_active(self, axis: Axis, patch: Patch, base: Callable[[str], Any]) -> bool:
        """Return whether the condition of an axis holds."""
        return all(lookup(patch, key, base) in wanted for key, wanted in axis.when.items())

    def allows(self, patch: Patch, base: Callable[[str], Any]) -> bool:
        """Return whether a point satisfies all constraints; those on keys of inactive axes are skipped."""
        conditional = {key for axis in self.axes if axis.when for key in axis.keys}
        for expression, origin in self.constraints:
            try:
                silent = any(
                    key in conditional and lookup(patch, key, base) is None for key in expression.keys
                )
                if not silent and not expression(lambda key: lookup(patch, key, base)):
                    return False
            except (TypeError, ZeroDivisionError, ValueError) as error:
                shown = {key: lookup(patch, key, base) for key in expression.keys}
                raise ConfigError(
                    [
                        Problem(
                            "space.constraints", origin, f"{expression.text}: {error}", received=repr(shown)
                        )
                    ]
                ) from None
        return True

    def probes(self, base: Callable[[str], Any]) -> Iterator[Patch]:
        """Yield points that together cover every option and both ends of each range, if constraints allow."""
        for axis in self.axes:
            for choice in axis.ends():
                tries = (self._probe(axis, choice, turn, base) for turn in range(MOST_TURNS))
                yield from itertools.islice((patch for patch in tries if self.allows(patch, base)), 1)

    def _probe(self, axis: Axis, choice: Choice, turn: int, base: Callable[[str], Any]) -> Patch:
        """Return a point with one choice and others that its condition requires; `turn` varies the rest."""
        needed = dict(axis.when)
        for other in reversed(self.axes):
            if any(_is_about(key, other) for key in needed):
                needed = {**other.when, **needed}
        patch: Patch = {}
        for other in self.axes:
            if other is axis:
                patch = {**patch, **axis.patch(choice)}
            elif self.is_active(other, patch, base):
                offers = [{**patch, **other.patch(each)} for each in other.ends()]
                asked = {key: wanted for key, wanted in needed.items() if _is_about(key, other)}
                fitting = [p for p in offers if all(lookup(p, k, base) in w for k, w in asked.items())]
                patch = (fitting or offers)[turn % len(fitting or offers)]
        return patch


def _is_about(key: str, axis: Axis) -> bool:
    """Return whether a key of a condition is set by an axis."""
    return any(key == other or key.startswith(f"{other}.") for other in axis.keys)


def lookup(patch: Patch, key: str, base: Callable[[str], Any]) -> Any:
    """Return a value of a point: as the point sets it, also inside a sub-config, else that of the base."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        node: Node | None = patch.get(".".join(parts[:length]))
        if node is None:
            continue
        for part in parts[length:]:
            if isinstance(node, Leaf) and part == "class":
                return node.value
            node = child(node, part) if node is not None else None
        return plain(node) if node is not None else None
    return base(key)


def to_overrides(patch: Patch) -> list[Override]:
    """Return a point as overrides of the base. A mapping with a class replaces the previous value."""
    found = []
    for key in sorted(patch, key=lambda key: key.count(".")):
        node = patch[key]
        is_laid = isinstance(node, Map) and not class_word(node)
        found.append(Override("lay" if is_laid else "set", split(key, node.origin), node, node.origin))
    return found


def to_patch(values: Mapping[str, Any], origin: Origin) -> dict[str, Node]:
    """Return plain values as a patch."""
    return {key: from_plain(value, origin) for key, value in values.items()}
