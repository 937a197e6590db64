"""Facts of a data set that a config refers to: `${data.features}`, `${data.classes}` and others.

A data class states its own facts with a method `facts()`, which returns a mapping. For other data, they
follow from the training split.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from manyfit.core.errors import UsageError
from manyfit.data.nested import is_nested, named_arrays
from manyfit.data.source import Source, as_source, once
from manyfit.data.stream import IterableSource

DERIVED: Final = ("features", "shape", "classes", "rows")
"""Facts that follow from the training split of any data set."""


def facts_of(data: Any, name: str) -> dict[str, Any]:
    """Return the facts of a data object: its own, and `name` if it follows from its training split."""
    with _unchanged_randomness():
        own = getattr(data, "facts", None)
        found: dict[str, Any] = dict(own()) if callable(own) else {}
        if not all(isinstance(key, str) for key in found):
            raise UsageError(f"{type(data).__name__}.facts() must return a mapping from names to values")
        if name not in found and name in DERIVED:
            found |= derive_facts(as_source(data.source("train"), getattr(data, "workers", 0)), name)
    return {key: _plain(value) for key, value in found.items()}


def derive_facts(source: Source | None, name: str) -> dict[str, Any]:
    """Return one of the facts that follow from the rows of a split."""
    if source is None:
        return {}
    if isinstance(source, IterableSource) and source.is_stream:
        raise UsageError(
            f"a stream does not know its {name}; write the number, or give the data a method facts()"
        )
    if name == "rows":
        return {name: len(source)}
    if name == "classes":
        return {name: count_classes(source)}
    batch = next(once(source, 1))
    arrays = dict(named_arrays(batch.inputs))
    if len(arrays) != 1:
        raise UsageError(f"there are several inputs ({', '.join(arrays)}), so {name} is not one value")
    (array,) = arrays.values()
    shape = [int(size) for size in array.shape[1:]]
    return {"shape": shape, "features": math.prod(shape)}


def count_classes(source: Source) -> int:
    """Return the number of classes: the largest class index plus one."""
    target = getattr(source, "target", None)
    parts = [target] if target is not None else [batch.target for batch in once(source, 1024)]
    if any(part is None or is_nested(part) for part in parts):
        raise UsageError("the rows have no target, or several, so the number of classes is not one value")
    values = [np.asarray(part) for part in parts]
    if not all(np.issubdtype(each.dtype, np.integer) for each in values):
        raise UsageError(
            f"the targets are {values[0].dtype}, not class indices, so there are no classes to count"
        )
    return int(max(each.max(initial=-1) for each in values)) + 1


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def _unchanged_randomness() -> Iterator[None]:
    """Restore the global random states on exit; torch is not imported for this."""
    import random

    python, numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    tensor = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(tensor)
