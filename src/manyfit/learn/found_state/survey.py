"""One look at an object: objects with state, plain values, and what is neither."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor, nn

from manyfit.learn.found_state.generators import GENERATORS
from manyfit.learn.found_state.hidden import describe_hidden, is_harmless, is_walked
from manyfit.learn.found_state.values import NotPlain, encode_value

MANY: Final = 1000
"""The most items of a container that are compared with other attributes."""
MODULE_INTERNAL: Final = frozenset(vars(nn.Module()))
"""Attributes of every module: parameters, buffers, hooks, and whether it is in training mode."""


@dataclass
class Slot:
    """Where a value is: an attribute of an object, or an item of a list or a dict."""

    holder: Any
    key: Any
    is_item: bool = False

    def get(self) -> Any:
        """Return the value, None if it is not there."""
        if self.is_item:
            try:
                return self.holder[self.key]
            except (KeyError, IndexError):
                return None
        return vars(self.holder).get(self.key) if hasattr(self.holder, "__dict__") else None

    def set(self, value: Any) -> None:
        """Set the value."""
        if self.is_item:
            if isinstance(self.holder, list) and self.key == len(self.holder):
                self.holder.append(value)
            else:
                self.holder[self.key] = value
        elif isinstance(self.holder, nn.Module) and isinstance(value, Tensor):
            setattr(self.holder, self.key, value)  # it may be a buffer
        else:
            object.__setattr__(self.holder, self.key, value)

    def remove(self) -> None:
        """Remove the value, which was not there when the object was made."""
        if self.is_item and isinstance(self.holder, dict):
            del self.holder[self.key]
        elif not self.is_item:
            object.__delattr__(self.holder, self.key)


@dataclass
class Survey:
    """Everything that was found in one look at an object, by path."""

    objects: dict[str, Any] = field(default_factory=dict)
    """Objects with a state of their own, and generators."""
    modules: dict[str, nn.Module] = field(default_factory=dict)
    """All modules, also those that are stored elsewhere."""
    values: dict[str, tuple[Slot, Any]] = field(default_factory=dict)
    """Plain values, with what they are encoded as."""
    aliases: dict[str, tuple[Slot, str]] = field(default_factory=dict)
    """Further places of a value or an object, with its first path."""
    holders: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """What is not kept, with the reason."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """What holds no state, but is not kept if it is replaced: functions, classes, paths, sizes of lists."""


class Surveyor:
    """One look at some objects. `kept` are objects whose state is stored elsewhere."""

    def __init__(self, kept: Collection[int], hidden: Collection[str], is_thorough: bool = False) -> None:
        self.found = Survey()
        self._is_thorough = is_thorough
        self._kept = kept
        self._hidden = hidden
        self._seen: dict[int, str] = {}
        self._held: list[Any] = []
        self._memory: dict[Any, str] = {}

    def look(self, root: Any) -> Survey:
        """Look at an object and everything that it refers to."""
        self._claim_tensors(root)
        self._look(root, "", None, is_root=True)
        return self.found

    def _claim_tensors(self, root: Any) -> None:
        """Mark parameters and buffers as seen: a tensor that is also an attribute belongs to its module."""
        for module in find_modules(root):
            for tensor in (*module.parameters(), *module.buffers()):
                self._seen[id(tensor)] = "\0"

    def _look(self, value: Any, path: str, place: Slot | None, is_root: bool = False) -> None:
        if value is None or type(value) in (bool, int, float, str):
            if place is not None:
                self.found.values[path] = (place, value)
            return
        if id(value) in self._seen:
            first = self._seen[id(value)]
            if place is not None and first != "\0" and first != path:
                self.found.aliases[path] = (place, first)
            return
        self._seen[id(value)] = path
        self._held.append(value)  # so that no later object has its id
        if isinstance(value, nn.Module):
            self._look_at_module(value, path)
        elif not is_root and (isinstance(value, GENERATORS) or has_state(value)):
            if id(value) not in self._kept:
                self.found.objects[path] = value
        elif is_root:
            self._look_inside(value, path)
        else:
            self._look_at_value(value, path, place)

    def _look_at_value(self, value: Any, path: str, place: Slot | None) -> None:
        try:
            coded = encode_value(value)
            if place is not None:
                self.found.values[path] = (place, coded)
                self._note_shared(value, path)
            return
        except NotPlain:
            pass
        if isinstance(value, dict):
            self.found.holders[path] = value
            for key, item in list(value.items()):
                self._look(item, join(path, str(key)), Slot(value, key, is_item=True))
        elif isinstance(value, list | tuple):
            self.found.holders[path] = value
            self.found.fixed[path] = len(value)
            for i, item in enumerate(value):
                slot = Slot(value, i, is_item=True) if isinstance(value, list) else None
                self._look(item, join(path, str(i)), slot)
        elif is_walked(value):
            self._look_inside(value, path)
        elif reason := describe_hidden(value, self._seen):
            self.found.lost[path] = reason
        elif not is_harmless(value):
            self.found.lost[path] = f"a {type(value).__name__}"
        else:
            self.found.fixed[path] = value

    def _note_shared(self, value: Any, path: str) -> None:
        """Name values that share memory with another attribute: each is restored on its own."""
        key = memory_of(value)
        if key is None and not isinstance(value, tuple):
            return
        first = self._memory.setdefault(key, path) if key is not None else path
        if first != path and path not in self.found.lost:
            self.found.lost[path] = (
                f"it shares a {type(value).__name__} with {first}; each is kept on its own"
            )
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        )
        for item in itertools.islice(inner, MANY):
            self._note_shared(item, path)

    def _look_inside(self, value: Any, path: str) -> None:
        """Look at the attributes of a plain object."""
        self.found.holders[path] = value
        names = dict(vars(value)) if hasattr(value, "__dict__") else {}
        slots = [n for cls in type(value).__mro__ for n in getattr(cls, "__slots__", ()) if hasattr(value, n)]
        names |= {name: getattr(value, name) for name in slots if not name.startswith("__")}
        for name, item in names.items():
            if path or name not in self._hidden:
                self._look(item, join(path, name), Slot(value, name))

    def _look_at_module(self, module: nn.Module, path: str) -> None:
        """Look at a module: its state, and the attributes of the user's classes in it."""
        self.found.modules[path] = module
        if id(module) not in self._kept:
            self.found.objects[path] = module
        for name, part in module.named_modules():
            inside = join(path, name)
            self._seen.setdefault(id(part), inside)
            self.found.holders[inside] = part
            for buffer in part._non_persistent_buffers_set:
                if (tensor := part._buffers.get(buffer)) is not None:
                    place = Slot(part, buffer)
                    self.found.values[join(inside, buffer)] = (place, encode_value(tensor))
            if type(part).__module__.startswith(("torch.nn.", "torch.ao.")):
                self._look_at_layer(part, inside)
                continue
            for key, item in list(vars(part).items()):
                if key not in MODULE_INTERNAL and (inside or key not in self._hidden):
                    self._look(item, join(inside, key), Slot(part, key))

    def _look_at_layer(self, layer: nn.Module, path: str) -> None:
        """Look at the options of a layer of torch, such as its dropout: they may be scheduled."""
        if not self._is_thorough:
            return
        for key, item in vars(layer).items():
            if key not in MODULE_INTERNAL and (item is None or type(item) in (bool, int, float, str)):
                self.found.values[join(path, key)] = (Slot(layer, key), item)


def memory_of(value: Any) -> Any:
    """Return what tells whether two values share memory; None for values that cannot change."""
    if isinstance(value, Tensor):
        return ("tensor", value.untyped_storage().data_ptr()) if value.numel() else None
    return id(value) if isinstance(value, list | dict | set | deque) and len(value) else None


def join(path: str, name: str) -> str:
    """Return the path of something inside."""
    return f"{path}.{name}" if path and name else path or name


def has_state(value: Any) -> bool:
    """Return whether an object can return its state and load it."""
    return not isinstance(value, type) and all(
        callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict")
    )


def find_modules(root: Any) -> Iterator[nn.Module]:
    """Yield the outermost modules in an object, in its attributes, and in lists and dicts there."""
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
        elif value is root or is_walked(value):
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()


def locate(found: Survey, path: str, is_item: bool | None, key: Any = None) -> Slot | None:
    """Return the place of a path, also of one that has no value yet; `key` is that of a dict, if not text."""
    if path in found.values:
        return found.values[path][0]
    if path in found.aliases:
        return found.aliases[path][0]
    before, _, name = path.rpartition(".")
    holder = found.holders.get(before)
    if holder is None or is_item is None:
        return None
    if not is_item:
        return None if isinstance(holder, dict | list | tuple) else Slot(holder, name)
    if isinstance(holder, list):
        return Slot(holder, int(name), is_item=True) if int(name) <= len(holder) else None
    return Slot(holder, name if key is None else key, is_item=True) if isinstance(holder, dict) else None
