"""Rows to convert: the interface of all tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

CLASSES: Final = "_classes.txt"
LABELS: Final = ("label", "target", "class")
Row = Mapping[str, Any]


class RowTable(ABC):
    """Rows that can be read from any place on."""

    size: int = 0
    """Bytes, more or less."""
    classes: Sequence[str] = ()
    """The names of the classes, by number, if labels are numbers that stand for names."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Some rows, as values by name."""

    @abstractmethod
    def features(self) -> dict[str, str]:
        """How a feeder reads each feature, as YAML."""

    def beside(self) -> dict[str, str]:
        """Further files that belong to the records."""
        return {CLASSES: "".join(f"{name}\n" for name in self.classes)} if self.classes else {}
