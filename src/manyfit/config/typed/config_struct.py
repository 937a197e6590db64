"""A config in the layout in which it was written, for code that reads its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from manyfit.core.names import listing, nearest


class ConfigStruct(MutableMapping[str, Any]):
    """Values by attribute or by item, nested as written. It records which of them were read.

    >>> config = ConfigStruct(model_builder={"n_filters": 512}, batch_size=8)
    >>> config.model_builder.n_filters, config["batch_size"]
    (512, 8)
    >>> config.unread()
    []
    """

    __slots__ = ("_items", "_path", "_project", "_read")
    _items: dict[str, Any]
    _project: Path | None
    """The root of relative paths, if it belongs to a project."""
    _path: str
    _read: set[str]

    def __init__(self, entries: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        object.__setattr__(self, "_project", None)
        object.__setattr__(self, "_path", "")
        object.__setattr__(self, "_read", set())
        object.__setattr__(self, "_items", {})
        for key, value in {**(entries or {}), **more}.items():
            self._items[key] = self._wrap(key, value)

    def _wrap(self, key: str, value: Any) -> Any:
        where = f"{self._path}{key}"
        if isinstance(value, Mapping) and not isinstance(value, ConfigStruct):
            inner = ConfigStruct()
            object.__setattr__(inner, "_path", f"{where}.")
            object.__setattr__(inner, "_read", self._read)
            for name, item in value.items():
                inner._items[str(name)] = inner._wrap(str(name), item)
            return inner
        return [self._wrap(key, item) for item in value] if isinstance(value, list | tuple) else value

    def __getitem__(self, key: str) -> Any:
        if key not in self._items:
            raise KeyError(self._missing(key))
        self._read.add(f"{self._path}{key}")
        return self._items[key]

    def __getattribute__(self, key: str) -> Any:
        """Return a value by its name, also if a method has the same name."""
        if not key.startswith("_") and key in object.__getattribute__(self, "_items"):
            return object.__getattribute__(self, "__getitem__")(key)
        return object.__getattribute__(self, key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") or key not in self._items:
            raise AttributeError(self._missing(key))
        return self[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = self._wrap(key, value)
        self._read.add(f"{self._path}{key}")

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        self._read.update(f"{self._path}{key}" for key in self._items)
        return iter(self._items)

    def __contains__(self, key: object) -> bool:
        self._read.add(f"{self._path}{key}")
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._items]

    def __repr__(self) -> str:
        return f"ConfigStruct({self.plain()!r})"

    def __reduce__(self) -> tuple[type[ConfigStruct], tuple[dict[str, Any]]]:
        return ConfigStruct, (self.plain(),)

    @staticmethod
    def of(project: Path, entries: Mapping[str, Any]) -> ConfigStruct:
        """Create a config that belongs to a project."""
        found = ConfigStruct(entries)
        object.__setattr__(found, "_project", project)
        return found

    def plain(self) -> dict[str, Any]:
        """Return the values as dicts and lists; this does not count as reading them."""
        return {key: _plain(value) for key, value in self._items.items()}

    def unread(self) -> list[str]:
        """Return the dotted keys that have not been read; an unread section is one key."""
        found: list[str] = []
        for key, value in self._items.items():
            where = f"{self._path}{key}"
            if where not in self._read:
                found.append(where)
            elif isinstance(value, ConfigStruct):
                found += value.unread()
        return found

    def _missing(self, key: str) -> str:
        best = nearest(key, self._items)
        hint = f"it has {self._path}{best}" if best else f"available: {listing(list(self._items))}"
        return f"the config has no {self._path}{key}; {hint}"


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigStruct):
        return value.plain()
    return [_plain(item) for item in value] if isinstance(value, list) else value
