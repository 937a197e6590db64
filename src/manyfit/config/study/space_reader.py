"""Reading a search space from the study file, with the line of every problem."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, Final

from manyfit.config.study.space import MOST_POINTS, RANGES, SPECIAL, WORDS, Axis, Patch, Range, Space
from manyfit.config.tree.expressions import Expression
from manyfit.config.tree.nodes import Leaf, Map, Node, Seq, join_path, leaves, plain
from manyfit.config.tree.overrides import split
from manyfit.core.errors import ConfigError, Origin, Problem
from manyfit.core.names import nearest

LARGEST: Final = 1e18


class SpaceReader:
    """Reader of the section `space` of a study; problems are collected."""

    def __init__(self, known: Collection[str], problems: list[Problem]) -> None:
        """`known` holds the keys of the base, which conditions may use."""
        self._known = known
        self._problems = problems

    def read(self, node: Node) -> Space:
        """Read all axes."""
        if not isinstance(node, Map):
            self._fail("space", node.origin, "not a search space", "a mapping from keys to values")
            return Space(())
        axes: list[Axis] = []
        for key, value in node.items.items():
            if key not in SPECIAL:
                axes += self._axis(key, value, node.key_origin(key))
        if "zip" in node.items:
            given = node.items["zip"]
            for i, group in enumerate(given.items if isinstance(given, Seq) else (given,)):
                axes += self._zip(group, f"zip.{i}" if isinstance(given, Seq) else "zip")
        if "list" in node.items:
            axes += self._list(node.items["list"])
        if "ablate" in node.items:
            axes += self._ablate(node.items["ablate"])
        self._check_twice(axes)
        constraints = (
            list(self._constraints(node.items["constraints"])) if "constraints" in node.items else []
        )
        asked = [(key, axis.origin, f"space.{axis.name}.when") for axis in axes for key in axis.when]
        asked += [(key, where, "space.constraints") for found, where in constraints for key in found.keys]
        self._check_asked(asked, axes)
        if not axes and not self._problems:
            self._fail("space", node.origin, "the search space is empty", "at least one key with its values")
        return Space(self._order(axes), tuple(constraints), node.origin)

    def _axis(self, key: str, node: Node, origin: Origin) -> list[Axis]:
        if not self._is_key(key, origin):
            return []
        if isinstance(node, Seq):
            return [Axis(key, node.origin, self._options(key, node))]
        if not isinstance(node, Map):
            self._fail(
                f"space.{key}", node.origin, "a single value cannot vary",
                "a list of values, or a range such as {log: [1e-4, 1e-1]}; a value for all trials "
                "belongs in `set`",
            )  # fmt: skip
            return []
        for word in node.items:
            if word not in WORDS:
                self._fail(
                    f"space.{key}.{word}", node.key_origin(word), "unknown key for a range",
                    f"one of {', '.join(WORDS)}", word, nearest(word, WORDS),
                )  # fmt: skip
                return []
        when = self._read_when(key, node.items["when"]) if "when" in node.items else {}
        if "values" in node.items:
            values = node.items["values"]
            if not isinstance(values, Seq):
                self._fail(f"space.{key}.values", values.origin, "not a list", "a list of values")
                return []
            return [Axis(key, values.origin, self._options(key, values), when=when)]
        found = self._range(key, node)
        return [Axis(key, node.origin, range=found, when=when)] if found is not None else []

    def _options(self, key: str, node: Seq) -> tuple[Patch, ...]:
        if not node.items:
            self._fail(f"space.{key}", node.origin, "the list is empty", "at least one value")
        return tuple({key: item} for item in node.items)

    def _range(self, key: str, node: Map) -> Range | None:
        path = f"space.{key}"
        given = [word for word in RANGES if word in node.items and isinstance(node.items[word], Seq)]
        if len(given) != 1:
            self._fail(
                path, node.origin, "not a range",
                "one of linear, log and int with [low, high], or values with a list",
            )  # fmt: skip
            return None
        kind: Any = given[0]
        given_ends = node.items[kind]
        assert isinstance(given_ends, Seq)
        ends = [plain(item) for item in given_ends.items]
        numbers = [e for e in ends if type(e) is int or (type(e) is float and math.isfinite(e))]
        where = node.items[kind].origin
        if len(ends) != 2 or len(numbers) != 2:
            self._fail(f"{path}.{kind}", where, "a range has two bounds", "[low, high]", repr(ends))
            return None
        low, high = ends
        if max(abs(low), abs(high)) > LARGEST:
            self._fail(f"{path}.{kind}", where, "these numbers are too large", f"at most {LARGEST:g}")
            return None
        log = kind == "log" or self._flag(node, "log", path)
        if low >= high:
            self._fail(f"{path}.{kind}", where, "the lower bound must come first", "[low, high]", repr(ends))
        elif kind == "int" and not all(isinstance(e, int) for e in ends):
            self._fail(f"{path}.{kind}", where, "the bounds must be whole numbers", received=repr(ends))
        elif log and low <= 0:
            self._fail(f"{path}.{kind}", where, "a logarithmic range must be above 0", received=repr(ends))
        else:
            step = self._number(node, "step", path, whole=kind == "int")
            points = self._number(node, "points", path, whole=True)
            if step and log:
                self._fail(f"{path}.step", node.items["step"].origin, "a logarithmic range has no step")
            elif step and step > high - low:
                self._fail(f"{path}.step", node.items["step"].origin, "the step is larger than the range")
            return Range(low, high, kind, step, int(points) if points else None, log)
        return None

    def _flag(self, node: Map, word: str, path: str) -> bool:
        found = node.items.get(word)
        if found is None:
            return False
        if not (isinstance(found, Leaf) and isinstance(found.value, bool)):
            self._fail(
                f"{path}.{word}", found.origin, "this must be true or false here", received=repr(plain(found))
            )
            return False
        return found.value

    def _number(self, node: Map, word: str, path: str, whole: bool) -> float | None:
        found = node.items.get(word)
        if found is None:
            return None
        value = plain(found)
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not fits or not 0 < value < MOST_POINTS:
            expected = "a whole number above 0" if whole else "a number above 0"
            self._fail(f"{path}.{word}", found.origin, f"not {expected}", received=repr(value))
            return None
        return float(value) if not whole else int(value)

    def _read_when(self, key: str, node: Node) -> dict[str, tuple[Any, ...]]:
        if not isinstance(node, Map):
            self._fail(f"space.{key}.when", node.origin, "not a condition", "{key: value}")
            return {}
        found = {}
        for other, value in node.items.items():
            found[other] = tuple(plain(value)) if isinstance(value, Seq) else (plain(value),)
        return found

    def _zip(self, node: Node, name: str) -> list[Axis]:
        if not (
            isinstance(node, Map) and node.items and all(isinstance(v, Seq) for v in node.items.values())
        ):
            self._fail(f"space.{name}", node.origin, "this cannot be zipped", "{key: [...], key: [...]}")
            return []
        columns = {key: list(seq.items) for key, seq in node.items.items() if isinstance(seq, Seq)}
        lengths = {key: len(items) for key, items in columns.items()}
        if len(set(lengths.values())) != 1 or not all(lengths.values()):
            self._fail(
                f"space.{name}", node.origin, "these lists have different lengths", received=repr(lengths)
            )
            return []
        good = [self._is_key(key, node.key_origin(key)) for key in columns]
        if not all(good):
            return []
        rows = zip(*columns.values(), strict=True)
        return [Axis(name, node.origin, tuple(dict(zip(columns, row, strict=True)) for row in rows))]

    def _list(self, node: Node) -> list[Axis]:
        if not (isinstance(node, Seq) and node.items and all(isinstance(item, Map) for item in node.items)):
            self._fail("space.list", node.origin, "not a list of points", "[{key: value, ...}, ...]")
            return []
        points = [item for item in node.items if isinstance(item, Map)]
        good = [self._is_key(key, point.key_origin(key)) for point in points for key in point.items]
        return [Axis("list", node.origin, tuple(dict(point.items) for point in points))] if all(good) else []

    def _ablate(self, node: Node) -> list[Axis]:
        if not (isinstance(node, Map) and node.items):
            self._fail("space.ablate", node.origin, "not an ablation", "{key: value, ...}")
            return []
        options: list[Patch] = [{}]
        good = [self._is_key(key, node.key_origin(key)) for key in node.items]
        for key, value in node.items.items():
            options += [{key: item} for item in (value.items if isinstance(value, Seq) else (value,))]
        return [Axis("ablate", node.origin, tuple(options))] if all(good) else []

    def _constraints(self, node: Node) -> Iterator[tuple[Expression, Origin]]:
        for item in node.items if isinstance(node, Seq) else (node,):
            if not (isinstance(item, Leaf) and isinstance(item.value, str)):
                self._fail("space.constraints", item.origin, "not a condition", "text, in quotes")
                continue
            try:
                yield Expression(item.value), item.origin
            except ValueError as error:
                self._fail("space.constraints", item.origin, str(error), received=repr(item.value))

    def _is_key(self, key: str, origin: Origin) -> bool:
        """Check that a key may vary. Whether the config has it is checked with the points."""
        try:
            split(key, origin)
        except ConfigError as error:
            self._problems += error.problems
            return False
        if key == "seed":
            self._fail(
                "space.seed", origin, "seeds are replicates, not an axis of the search", "search.seeds"
            )
        return key != "seed"

    def _check_asked(self, asked: list[tuple[str, Origin, str]], axes: list[Axis]) -> None:
        """Check that conditions use keys of the base or of the space."""
        known = dict.fromkeys([*self._known, *(key for axis in axes for key in _settable(axis))])
        for key, origin, path in asked:
            if key not in known:
                self._fail(
                    path,
                    origin,
                    "no such key",
                    "a key of the base or of the space",
                    key,
                    nearest(key, known),
                )

    def _check_twice(self, axes: list[Axis]) -> None:
        """Check that no key is set by two axes; a key and a part of it may be, and the part wins."""
        seen: dict[str, Axis] = {}
        for axis in axes:
            for key in axis.keys:
                if key in seen and axis.name != "ablate":
                    self._fail(f"space.{key}", axis.origin, f"this key already varies, at {seen[key].origin}")
                seen.setdefault(key, axis)

    def _order(self, axes: list[Axis]) -> tuple[Axis, ...]:
        """Return the axes in the order of the file, except that a condition follows the axes it uses."""
        done: list[Axis] = []
        rest = list(axes)
        while rest:
            waiting = {key for axis in rest for key in axis.keys}
            free = next(
                (a for a in rest if not any(_touches(k, waiting - set(a.keys)) for k in a.when)), None
            )
            if free is None:
                names = ", ".join(axis.name for axis in rest)
                self._fail("space", rest[0].origin, f"circular conditions: {names}")
                return tuple(axes)
            rest.remove(free)
            done.append(free)
        return tuple(done)

    def _fail(
        self, path: str, origin: Origin, message: str, expected: str = "", received: str = "", near: str = ""
    ) -> None:
        self._problems.append(Problem(path, origin, message, expected, received, near))


def _settable(axis: Axis) -> Iterator[str]:
    """Yield every key that an axis may set, also inside sub-configs."""
    yield from axis.keys
    for option in axis.options:
        for key, node in option.items():
            yield from (f"{key}.{join_path(path)}" for path, _ in leaves(node) if path)


def _touches(key: str, others: set[str]) -> bool:
    return any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in others)
