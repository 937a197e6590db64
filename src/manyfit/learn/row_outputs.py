"""Models with several outputs: which of them have one entry per row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from manyfit.core.names import listing
from manyfit.data.nested import Nested, named_arrays, select_arrays

log = logging.getLogger("manyfit")


class PerRow:
    """Outputs with one entry per row: their length follows the size of the batch."""

    def __init__(self, has_rows: Callable[[Any, int], bool]) -> None:
        """`has_rows` returns whether a value is an array of this many rows that a report can hold."""
        self._has_rows = has_rows
        self._names: set[str] | None = None
        """Their names; None while unknown."""

    def look(self, outputs: Nested, rows: int, smaller: Callable[[], Nested]) -> None:
        """Determine them once, from the outputs of a batch and of the same batch without its last row."""
        found = dict(named_arrays(outputs))
        if self._names is not None or rows < 2 or len(found) < 2:
            return
        fewer = dict(named_arrays(smaller()))
        alike = {name for name in found if self.fits(name, fewer.get(name), rows - 1)}
        self._names = {name for name in alike if self.fits(name, found[name], rows)}
        if lost := [repr(name) for name in found if name not in self._names]:
            log.warning(
                "reports omit the outputs %s: not a dense array with one entry per row", listing(lost)
            )

    def fits(self, name: str, value: Any, rows: int) -> bool:
        """Return whether an output has one entry per row."""
        return (self._names is None or name in self._names) and self._has_rows(value, rows)

    def of(self, outputs: Nested, rows: int) -> Nested:
        """Return the outputs with one entry per row; a single output is returned as it is."""
        if sum(1 for _ in named_arrays(outputs)) < 2:
            return outputs
        return select_arrays(outputs, lambda name, value: self.fits(name, value, rows))
