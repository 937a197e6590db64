"""The interface of all tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

CLASSES: Final = "_classes.txt"
LABELS: Final = ("label", "target", "class")
Row = Mapping[str, Any]


class RowTable(ABC):
    """Rows that can be read from any position."""

    size: int = 0
    """The approximate size in bytes."""
    classes: Sequence[str] = ()
    """The class names, by class number, if labels are class numbers."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def rows(self, begin: int, end: int) -> Iterator[Row]:
        """Yield the rows from `begin` to `end`, as values by name."""

    @abstractmethod
    def features(self) -> dict[str, str]:
        """Return the feeder options of each feature, as YAML."""

    def beside(self) -> dict[str, str]:
        """Return the contents of additional files by name, such as the class names."""
        return {CLASSES: "".join(f"{name}\n" for name in self.classes)} if self.classes else {}
