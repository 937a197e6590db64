"""Nested structures of arrays: dicts, tuples and lists, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Nested: TypeAlias = Any
"""An array or a tensor; or a dict, a tuple or a list of them."""


def is_nested(value: Nested) -> bool:
    """Return whether a value is a structure and not a single array."""
    return isinstance(value, Mapping | tuple | list)


def map_arrays(function: Callable[[Any], Any], value: Nested) -> Nested:
    """Apply a function to each array and return the same structure.

    >>> map_arrays(abs, {"a": -1, "b": (-2, None)})
    {'a': 1, 'b': (2, None)}
    """
    if isinstance(value, Mapping):
        return {name: map_arrays(function, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        found = [map_arrays(function, item) for item in value]
        return found if isinstance(value, list) else tuple(found)
    return None if value is None else function(value)


def named_arrays(value: Nested, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays by name: the keys that lead to them, or positions in a sequence, counted from 0.

    >>> dict(named_arrays({"a": 1, "b": (2, 3)}))
    {'a': 1, 'b_0': 2, 'b_1': 3}
    """
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    if items is not None:
        for key, item in items:
            yield from named_arrays(item, f"{name}_{key}" if name else str(key))
    elif value is not None:
        yield name, value


def first(value: Nested) -> Any:
    """Return the array, or the first of several; None if there is none."""
    return next((leaf for _, leaf in named_arrays(value)), None)


def pair_outputs(output: Nested, target: Nested) -> list[tuple[str, Any, Any]]:
    """Return each output with its name and its target (or None), the main output first.

    Outputs and targets are matched by name or by position. A sequence of targets is matched to named outputs
    in the sorted order of the names, as Keras does. A single target belongs to the first output.

    >>> pair_outputs({"a": 1, "b": 2}, {"b": 3})
    [('b', 2, 3), ('a', 1, None)]
    """
    if not (is_nested(output) and is_nested(target)):
        found = [(name, leaf, None) for name, leaf in named_arrays(output)]
        return [(found[0][0], found[0][1], first(target)), *found[1:]] if found else []
    if isinstance(output, Mapping) and isinstance(target, tuple | list) and len(output) == len(target):
        target = dict(zip(sorted(output), target, strict=True))
    targets = dict(named_arrays(target))
    pairs = [(name, leaf, targets.get(name)) for name, leaf in named_arrays(output)]
    if pairs and all(known is None for _, _, known in pairs):  # no names match
        pairs[0] = (*pairs[0][:2], first(target))
    return sorted(pairs, key=lambda pair: pair[2] is None)


def select_arrays(value: Nested, fits: Callable[[str, Any], bool]) -> Nested:
    """Return the structure with only the arrays that fit, by `fits(name, array)`; sequences keep None.

    >>> select_arrays({"a": 1, "b": (2, 3)}, lambda name, array: name not in ("a", "b_0"))
    {'b': (None, 3)}
    """
    names = (name for name, _ in named_arrays(value))

    def kept(item: Nested) -> Nested:
        if isinstance(item, Mapping):
            found = {name: kept(inner) for name, inner in item.items()}
            return {name: inner for name, inner in found.items() if inner is not None}
        if isinstance(item, tuple | list):
            return list(map(kept, item)) if isinstance(item, list) else tuple(map(kept, item))
        return item if item is not None and fits(next(names), item) else None

    return kept(value)


def shapes(value: Nested) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the row shape of each array."""
    return [(name, tuple(np.shape(array)[1:])) for name, array in named_arrays(value)]


def concatenate(parts: Sequence[Nested]) -> Nested:
    """Concatenate several values of the same structure along the rows."""
    some = parts[0]
    if isinstance(some, Mapping):
        return {name: concatenate([part[name] for part in parts]) for name in some}
    if isinstance(some, tuple | list):
        found = [concatenate(list(items)) for items in zip(*parts, strict=True)]
        return found if isinstance(some, list) else tuple(found)
    return None if some is None else np.concatenate(parts)


def count_rows(value: Nested) -> int:
    """Return the number of rows."""
    return len(first(value))
