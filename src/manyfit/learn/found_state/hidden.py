"""State that cannot be kept: in closures, default arguments, global variables, iterators and files."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import io
import random
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from manyfit.core.installed import is_installed
from manyfit.learn.found_state.values import NotPlain, copy_tensors, encode_value

HARMLESS: Final = (
    "abc", "argparse", "datetime", "decimal", "fractions", "logging", "manyfit", "numpy", "operator",
    "inspect", "pathlib", "re", "string", "threading", "_thread", "torch", "torchvision", "types", "typing",
    "uuid",
    "weakref", "pydantic", "PIL", "warnings", "functools", "enum", "dataclasses",
)  # fmt: skip
"""Packages whose objects hold no state of a training, unless they can return it."""
WALKED: Final = ("argparse.Namespace", "types.SimpleNamespace")
STATEFUL: Final = (
    torch.Generator, random.Random, np.random.Generator, np.random.RandomState, torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler, nn.Module,
)  # fmt: skip
"""Types that always hold state."""


def is_own_class(cls: type) -> bool:
    """Return whether a class belongs to the user: neither to Python nor to an installed package."""
    name = cls.__module__.partition(".")[0]
    if name in sys.stdlib_module_names or name == "builtins":
        return False
    return not is_installed(name, getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def is_walked(value: Any) -> bool:
    """Return whether to look inside an object: it is a plain object of the user's."""
    cls = type(value)
    if f"{cls.__module__}.{cls.__qualname__}" in WALKED:
        return True
    if isinstance(value, type | torch.utils.data.Dataset) or callable(getattr(cls, "__next__", None)):
        return False
    if any(base.__module__.startswith("manyfit.") for base in cls.__mro__):
        return getattr(cls, "holds_state", False) is True
    return is_own_class(cls) and (hasattr(value, "__dict__") or hasattr(cls, "__slots__"))


def is_harmless(value: Any) -> bool:
    """Return whether an object can hold no state that training changes."""
    if isinstance(value, io.IOBase) or callable(getattr(type(value), "__next__", None)):
        return False
    if isinstance(value, torch.utils.data.Dataset) and is_own_class(type(value)):
        return False  # it may collect what training makes
    if isinstance(value, type | types.ModuleType | torch.utils.data.Dataset) or inspect.isroutine(value):
        return True
    if isinstance(value, functools.partial | tuple):
        return True
    module = type(value).__module__
    if module == "builtins":
        return type(value) in (range, slice, type(NotImplemented), type(Ellipsis), property, memoryview)
    return module.partition(".")[0] in HARMLESS


def describe_hidden(value: Any, seen: Collection[int]) -> str:
    """Return what a function hides in its closure or its default arguments; empty if it hides no state."""
    if isinstance(value, functools.partial):
        inside = [*value.args, *value.keywords.values()]
        held = [f"it holds a {type(each).__name__}" for each in inside if is_stateful(each, seen)]
        return next(iter(held), "") or describe_hidden(value.func, seen)
    if inspect.ismethod(value):
        return describe_hidden(value.__func__, seen)
    if not isinstance(value, types.FunctionType):
        return ""
    for name, inside in _iterate_closure(value):
        if is_stateful(inside, seen, also=(list, dict, set, Iterator)):
            return f"its closure holds {name!r}, a {type(inside).__name__}"
    defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    for each in defaults:
        if is_stateful(each, seen, also=(list, dict, set, Iterator)):
            return f"a default argument is a {type(each).__name__}"
    return ""


def _iterate_closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a function's closure, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            inside = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield name, inside


def is_stateful(value: Any, seen: Collection[int], also: tuple[type, ...] = ()) -> bool:
    """Return whether a value holds state and was not found elsewhere."""
    return id(value) not in seen and isinstance(value, (*STATEFUL, *also))


def find_globals(root: Any) -> dict[str, str]:
    """Return global variables that hold state and are used by the methods of a user's object."""
    found: dict[str, str] = {}
    for cls in type(root).__mro__:
        if not is_own_class(cls):
            continue
        for name, method in vars(cls).items():
            function = inspect.unwrap(method) if inspect.isroutine(method) else None
            if not isinstance(function, types.FunctionType):
                continue
            for used in function.__code__.co_names:
                value = function.__globals__.get(used)
                if isinstance(value, STATEFUL) or (isinstance(value, Iterator) and value is not None):
                    found[used] = f"a {type(value).__name__} in a global variable of {cls.__module__}"
            if reason := describe_hidden(function, ()):
                found[f"{cls.__name__}.{name}"] = reason
    return found


def read_outside(root: Any) -> dict[str, Any]:
    """Return plain values that methods of the user's object can change, but that are not its attributes.

    These are class attributes, the global variables that its methods name, and what functions among its
    attributes have in their closures.
    """
    found: dict[str, Any] = {}
    for name, value in vars(root).items() if hasattr(root, "__dict__") else ():
        if isinstance(value, types.FunctionType):
            for variable, inside in _iterate_closure(value):
                _note(found, f"{name}.{variable}", inside)
    for cls in type(root).__mro__:
        if not is_own_class(cls):
            continue
        for name, value in vars(cls).items():
            if not name.startswith("__") and not inspect.isroutine(value):
                _note(found, f"{cls.__name__}.{name}", value)
            function = inspect.unwrap(value) if inspect.isroutine(value) else None
            if isinstance(function, types.FunctionType):
                for used in function.__code__.co_names:
                    if used in function.__globals__ and used not in found:
                        _note(found, used, function.__globals__[used])
    return found


def _note(found: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, bool | int | float | str | list | dict | set | collections.deque):
        with contextlib.suppress(NotPlain):
            found[name] = copy_tensors(encode_value(value))
