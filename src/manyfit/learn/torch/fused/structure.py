"""Contents of modules and other objects as values that can be compared."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

PLAIN: Final = (bool, int, str, bytes, complex, types.NoneType, types.EllipsisType, torch.dtype, torch.device,
                torch.layout, torch.memory_format, torch.Size, np.dtype, range)  # fmt: skip
INTERNAL: Final = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Opaque(Exception):
    """An object whose contents cannot be compared with those of another."""


def find_content(value: Any, where: str, seen: tuple[int, ...] = ()) -> Hashable:
    """Return the contents of a value, equal for values that behave alike; raise `Opaque` if that is unknown.

    `where` is the place of the value, for the message.
    """
    kind = type(value)
    if kind in PLAIN or isinstance(value, enum.Enum | type):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if id(value) in seen:
        return "again", seen.index(id(value))
    inside = (*seen, id(value))
    if kind in (list, tuple):
        return kind, tuple(find_content(item, f"{where}.{i}", inside) for i, item in enumerate(value))
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        items = value.items()
        return kind, tuple(
            (find_content(k, where, inside), find_content(v, f"{where}.{k}", inside)) for k, v in items
        )
    if kind in (set, frozenset):
        return kind, frozenset(find_content(item, where, inside) for item in value)
    if isinstance(value, nn.Module):
        return describe_module(value, where, with_values=True)
    if isinstance(value, Tensor | np.ndarray):
        return _describe_array(value, where)
    if kind is functools.partial:
        return kind, find_content((value.func, value.args, value.keywords), where, inside)
    return _describe_code(value, where, inside)


def _describe_array(value: Tensor | np.ndarray[Any, Any], where: str) -> Hashable:
    if isinstance(value, Tensor):
        if value.requires_grad or value.layout is not torch.strided:
            raise Opaque(f"{where} is a tensor that is not registered as a parameter or a buffer")
        kind, value = (
            f"tensor {value.dtype} {value.device}",
            value.detach().cpu().contiguous().view(torch.uint8).numpy(),
        )
    else:
        kind = f"array {value.dtype}"
        if value.dtype.hasobject:
            raise Opaque(f"{where} is an array of objects")
    return kind, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()


def _describe_code(value: Any, where: str, inside: tuple[int, ...]) -> Hashable:
    if isinstance(value, types.FunctionType):
        if value.__closure__:
            raise Opaque(f"{where} is a closure, whose variables cannot be compared")
        rest = find_content((value.__defaults__, value.__kwdefaults__), where, inside)
        return value.__code__, id(value.__globals__), rest
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return "builtin", value
    if isinstance(value, types.MethodType):
        owner = "again" if id(value.__self__) in inside else find_content(value.__self__, where, inside)
        return "method", _describe_code(value.__func__, where, inside), owner
    if type(value).__module__ == "builtins" and callable(value):
        return "builtin", value  # such as a method descriptor
    if dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        return type(value), find_content(dict(vars(value)), where, inside)
    raise Opaque(f"{where} is a {type(value).__name__}, whose contents cannot be compared")


def describe_module(module: nn.Module, name: str = "", with_values: bool = False) -> Hashable:
    """Return the structure of a module: classes, attributes, names, shapes and ties of its tensors.

    Parameters and buffers may have other values, unless `with_values`. The rates of dropout may differ, too.
    """
    top = name or type(module).__name__
    found: list[Hashable] = []
    numbers: dict[int, int] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        where = f"{top}.{path}" if path else top
        if parametrize.is_parametrized(part):
            raise Opaque(f"{where} is parametrized, which cannot be stacked")
        hooks = [hook for hook in HOOKS if getattr(part, hook, None)]
        if hooks:
            raise Opaque(f"{where} has hooks, which cannot be compared")
        number = numbers.setdefault(id(part), len(numbers))
        found.append((path, type(part), number, _attributes(part, where)))
    for group in (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    ):
        for path, tensor in group:
            number = numbers.setdefault(id(tensor), len(numbers))
            values = _describe_array(tensor.detach(), path) if with_values else None
            trained = tensor.requires_grad
            found.append(
                (path, tuple(tensor.shape), tensor.dtype, str(tensor.device), trained, number, values)
            )
    return tuple(found)


def _attributes(part: nn.Module, where: str) -> Hashable:
    """Return the attributes of a module other than its tensors and submodules."""
    skipped = {"p"} if isinstance(part, nn.modules.dropout._DropoutNd) else set()
    own = {name: value for name, value in vars(part).items() if name not in INTERNAL and name not in skipped}
    listed = tuple((name, find_content(value, f"{where}.{name}", (id(part),))) for name, value in own.items())
    missing = tuple(sorted(name for name, value in part._buffers.items() if value is None))
    return listed, missing, tuple(sorted(part._non_persistent_buffers_set))
