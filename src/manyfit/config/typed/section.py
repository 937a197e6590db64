"""A read-only mapping whose values can also be read as attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from manyfit.core.names import nearest


class Section(Mapping[str, Any]):
    """Read-only access to values by item or by attribute.

    >>> Section.of({"train": {"epochs": 3}}).train["epochs"]
    3
    """

    __slots__ = ("_items",)
    _items: dict[str, Any]

    def __init__(self, items: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_items", {key: Section.of(value) for key, value in items.items()})

    @staticmethod
    def of(value: Any) -> Any:
        """Wrap all mappings in a value."""
        if isinstance(value, Mapping) and not isinstance(value, Section):
            return Section(value)
        return tuple(Section.of(item) for item in value) if isinstance(value, list) else value

    def __getitem__(self, key: str) -> Any:
        try:
            return self._items[key]
        except KeyError:
            raise KeyError(self._missing(key)) from None

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") or key not in self._items:
            raise AttributeError(self._missing(key))
        return self._items[key]

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"a config is frozen: {key!r} cannot be set; load it again with an override")

    def _missing(self, key: str) -> str:
        best = nearest(key, self._items)
        return f"no value named {key!r}" + (
            f"; did you mean {best!r}?" if best else f"; available: {', '.join(self._items)}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Section({self._items!r})"
