"""Several outputs of a model: which of them say something of each row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from manyfit.core.names import listing
from manyfit.data.nested import Nested, named_arrays, select_arrays

log = logging.getLogger("manyfit")


class PerRow:
    """Outputs with an entry for each row: as many as a batch has, and as many as a smaller one has, too."""

    def __init__(self, has_rows: Callable[[Any, int], bool]) -> None:
        """`has_rows` says whether something is an array of so many rows, which a report can hold."""
        self._has_rows = has_rows
        self._names: set[str] | None = None
        """Their names; None as long as nobody knows."""

    def look(self, outputs: Nested, rows: int, smaller: Callable[[], Nested]) -> None:
        """Find out once, by the outputs of a batch and of the same without its last row."""
        found = dict(named_arrays(outputs))
        if self._names is not None or rows < 2 or len(found) < 2:
            return
        fewer = dict(named_arrays(smaller()))
        alike = {name for name in found if self.fits(name, fewer.get(name), rows - 1)}
        self._names = {name for name in alike if self.fits(name, found[name], rows)}
        if lost := [repr(name) for name in found if name not in self._names]:
            log.warning("reports leave out the outputs %s: no dense array of one row each", listing(lost))

    def fits(self, name: str, value: Any, rows: int) -> bool:
        """Whether an output has an entry for each row."""
        return (self._names is None or name in self._names) and self._has_rows(value, rows)

    def of(self, outputs: Nested, rows: int) -> Nested:
        """Those outputs; a single one is what it is."""
        if sum(1 for _ in named_arrays(outputs)) < 2:
            return outputs
        return select_arrays(outputs, lambda name, value: self.fits(name, value, rows))
